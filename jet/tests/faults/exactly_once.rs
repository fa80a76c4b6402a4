//! Tests of effects that happen once, between real processes: the daemon is killed, and the sender and the
//! application begin anew with what they stored.

use crate::rig::{Rig, random_for};
use jet_client::exactly_once::SeenWindow;
use jet_client::send::{AckStatus, Envelope, Identity, SendConnectError, Sender};
use jet_test_support::device::fabrics;
use jet_test_support::waiting::WAIT_LIMIT;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const APP: &str = "store";
const ID: u64 = 0x1d;
const MESSAGES: u64 = 600;
/// What ends one of the three, now and then.
const DEATHS: u64 = 12;

/// What an application stores, in one transaction for each message.
#[derive(Default)]
struct Stored {
    /// How often each message had its effect.
    effects: HashMap<u64, u32>,
    seen: HashMap<u64, [u8; SeenWindow::BYTES]>,
    /// Messages that came again after their effect.
    again: u32,
}

impl Stored {
    fn take(&mut self, sender: u64, sequence: u64, tag: u64) {
        let stored = self.seen.entry(sender).or_insert_with(|| SeenWindow::new().to_bytes());
        let mut seen = SeenWindow::from_bytes(stored).expect("it was stored so");
        if seen.has_seen(sequence) {
            self.again += 1;
            return;
        }
        assert_eq!(sequence, tag, "a message keeps its number");
        *self.effects.entry(tag).or_default() += 1;
        seen.mark(sequence);
        *stored = seen.to_bytes();
    }
}

#[test]
fn each_message_has_its_effect_once_whatever_begins_anew() {
    for fabric in 0..fabrics().len() {
        let mut random = random_for("exactly_once", 81);
        let mut rig = Rig::start(&[]);
        let address = rig.addresses()[fabric].clone();
        let mut stored = Stored::default();
        let mut session = Some(rig.session_again(APP));
        // The sender's log: all messages up to here have known ends.
        let mut known = 0;
        let mut ended = vec![false; usize::try_from(MESSAGES).expect("few") + 1];
        let (mut sender, mut next) = (None, 1);
        let (mut deaths, began) = (0, Instant::now());
        while known < MESSAGES {
            assert!(began.elapsed() < 3 * WAIT_LIMIT, "{known} of {MESSAGES} have ended");
            let sender_end = sender.get_or_insert_with(|| {
                // It comes back with the oldest message whose end it does not know.
                next = known + 1;
                let identity = Identity::new(ID).first_sequence(next);
                Sender::connect(&Rig::lasting_options(&address, APP).identity(identity)).expect("let in")
            });
            while next <= MESSAGES {
                match sender_end.send_small(Envelope::new(next), b"add one") {
                    Ok(ticket) => assert_eq!(ticket.0, next),
                    Err(error) if error.is_would_block() => break,
                    Err(error) => panic!("{error}"),
                }
                next += 1;
            }
            sender_end.flush();
            let of_session = session.get_or_insert_with(|| rig.session_again(APP));
            let mut dies = false;
            if let Ok(message) = of_session.receive_timeout(Duration::from_millis(20)) {
                stored.take(message.sender(), message.sequence(), message.tag());
                // Sometimes it dies between the effect and the end.
                dies = random.below(40) == 0;
                if dies {
                    std::mem::forget(message);
                } else {
                    message.consume();
                }
            }
            if dies {
                session = None;
            }
            while let Some(end) = sender_end.poll() {
                assert_eq!(end.status, AckStatus::Consumed);
                ended[usize::try_from(end.tag).expect("few")] = true;
            }
            while known < MESSAGES && ended[usize::try_from(known).expect("few") + 1] {
                known += 1;
            }
            if known >= (deaths + 1) * MESSAGES / (DEATHS + 1) {
                deaths += 1;
                if deaths % 3 == 0 {
                    session = None;
                    rig.kill_daemon();
                    rig.start_again();
                } else {
                    sender = None;
                }
            }
        }
        assert_eq!(stored.effects.len() as u64, MESSAGES, "each has its effect");
        let twice: Vec<_> = stored.effects.iter().filter(|effect| *effect.1 != 1).collect();
        assert!(twice.is_empty(), "effects that happened more than once: {twice:?}");
        assert!(stored.again > 0, "none came again: nothing was tried");
    }
}

#[test]
fn an_identity_that_cannot_be_kept_is_refused() {
    let rig = Rig::start(&[]);
    let options = Rig::lasting_options(&rig.addresses()[0], APP);
    for first in [0, (1 << 62) + 1, u64::MAX] {
        let refused = Sender::connect(&options.clone().identity(Identity::new(1).first_sequence(first)));
        assert!(matches!(refused, Err(SendConnectError::Option(_))), "{first}");
    }
    let refused = Sender::connect(&options.clone().in_flight_max(1025).identity(Identity::new(1)));
    assert!(matches!(refused, Err(SendConnectError::Option(_))));
    let last = Identity::new(u64::MAX).first_sequence(1 << 62);
    let session = rig.session_again(APP);
    let mut sender = Sender::connect(&options.identity(last)).expect("let in");
    assert_eq!((sender.id(), sender.send_small(1, b"x").expect("taken").0), (u64::MAX, 1 << 62));
    sender.flush();
    let message = session.receive_timeout(WAIT_LIMIT).expect("it arrives");
    assert_eq!((message.sender(), message.sequence()), (u64::MAX, 1 << 62));
}
