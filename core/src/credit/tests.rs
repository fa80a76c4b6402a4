//! Tests of credit by itself: what newcomers may have, and that the sums are what the accounts add up to.

use super::{
    CREDIT_INITIAL, Credit, Decay, IDLE_TICKS, RECALL_TICKS, RECALL_TICKS_AGAIN, Reachability, Room,
};
use alloc::vec::Vec;
use proptest::prelude::*;

const ROOM: Room = Room { usable: 64, posted: true };
const PEERS: u32 = 100;
const MOST: u32 = 32;

/// Credit with one sender, peer 0, that has used all it got.
fn with_a_busy_sender() -> Credit {
    let mut credit = Credit::new(PEERS, MOST);
    credit.open(0, ROOM);
    use_up(&mut credit, 0);
    credit
}

/// The sender uses all its credit. Returns how much that was.
fn use_up(credit: &mut Credit, peer: u32) -> u64 {
    (0..).take_while(|_| credit.use_one(peer)).count() as u64
}

#[test]
fn a_crowd_that_says_nothing_leaves_the_others_half_of_the_credit() {
    let mut credit = with_a_busy_sender();
    let crowd: u64 = (1..PEERS).map(|peer| credit.open(peer, ROOM)).sum();
    assert_eq!(crowd, ROOM.usable / 2 + u64::from(PEERS - 1) - 4, "four have eight, the others one each");
    let issued = (0..3).map(|_| {
        credit.issue(0, ROOM, MOST);
        use_up(&mut credit, 0)
    });
    assert_eq!(issued.collect::<Vec<_>>(), [16, 32, 32], "the busy one has what it had without a crowd");
}

#[test]
fn who_has_sent_is_a_newcomer_no_more_and_others_can_be() {
    let mut credit = Credit::new(PEERS, MOST);
    let begin = u64::from(CREDIT_INITIAL);
    let first: Vec<u64> = (0..5).map(|peer| credit.open(peer, ROOM)).collect();
    assert_eq!(first, [begin, begin, begin, begin, 1]);
    assert!(credit.use_one(0));
    assert_eq!(credit.open(5, ROOM), begin);
    credit.close(&[1]);
    assert_eq!((credit.open(6, ROOM), credit.open(7, ROOM)), (begin, 1));
}

#[test]
fn who_began_with_one_credit_gets_more_when_it_sends() {
    let mut credit = Credit::new(PEERS, MOST);
    let first: u64 = (0..5).map(|peer| credit.open(peer, ROOM)).sum();
    assert_eq!(first, ROOM.usable / 2 + 1);
    assert_eq!(credit.issue(4, ROOM, MOST), 0, "its credit would count nowhere");
    assert!(credit.use_one(4));
    assert_eq!(credit.issue(4, ROOM, MOST), 2, "its target doubled: it used all it had");
}

#[test]
fn a_crowd_that_sends_one_message_each_leaves_the_others_their_share() {
    let mut credit = with_a_busy_sender();
    let crowd = 1..=10;
    crowd.clone().for_each(|peer| _ = credit.open(peer, ROOM));
    for peer in crowd {
        assert!(credit.use_one(peer));
        if credit.needs_credit(peer) {
            credit.issue(peer, ROOM, MOST);
        }
    }
    assert_eq!(credit.total(), 4 * 7 + 6 * 2, "who began with one credit has two now");
    assert_eq!(credit.issue(0, ROOM, MOST), ROOM.usable / 11);
}

#[test]
fn who_sends_again_without_an_answer_to_its_recall_has_little_time_for_it() {
    let mut credit = Credit::new(PEERS, MOST);
    let established = Reachability::Established { may_send: true };
    credit.open(0, ROOM);
    let ticks = |credit: &mut Credit| (1..50).find(|_| credit.decay(0, established) == Decay::Lapsed);
    assert_eq!(ticks(&mut credit), Some(IDLE_TICKS + RECALL_TICKS));
    assert!(credit.use_one(0));
    assert_eq!(ticks(&mut credit), Some(1 + RECALL_TICKS_AGAIN), "the first tick sees the SEND");
}

#[test]
fn who_used_its_credit_up_before_it_was_connected_gets_more_then() {
    let mut credit = with_a_busy_sender();
    for _ in 0..2 * RECALL_TICKS {
        assert_eq!(credit.decay(0, Reachability::NotYet), Decay::Stays);
    }
    assert!(credit.issue(0, ROOM, MOST) > 0);
}

#[test]
fn who_has_had_no_credit_for_long_takes_no_share_of_the_others() {
    let mut credit = with_a_busy_sender();
    for peer in 1..=40 {
        credit.open(peer, ROOM);
        use_up(&mut credit, peer);
    }
    let issued = |credit: &mut Credit| {
        credit.issue(0, ROOM, MOST);
        use_up(credit, 0)
    };
    assert_eq!(issued(&mut credit), ROOM.usable / 41, "each may be about to send");
    for _ in 0..IDLE_TICKS + RECALL_TICKS {
        issued(&mut credit);
        let mut position = 0;
        while let Some(peer) = credit.active_at(position) {
            let decay = credit.decay(position, Reachability::Established { may_send: peer == 0 });
            position += usize::from(decay != Decay::Idle);
        }
    }
    let busy: Vec<u64> = (0..4).map(|_| issued(&mut credit)).collect();
    assert_eq!(busy, [4, 8, 16, 32], "its credit follows its rate, up to the most");
    assert!(
        credit.issue(5, ROOM, MOST) > 0 && credit.active_count() == 2,
        "one hears again, and has a share"
    );
}

/// What happens to a peer's credit.
#[derive(Clone, Debug)]
enum Step {
    Open,
    Use(u32),
    Issue,
    Close,
    Answer,
    Tick { established: bool },
}

fn steps() -> impl Strategy<Value = Vec<(u32, Step)>> {
    let step = prop_oneof![
        3 => Just(Step::Open),
        4 => (1..12_u32).prop_map(Step::Use),
        4 => Just(Step::Issue),
        1 => Just(Step::Close),
        2 => Just(Step::Answer),
        3 => prop::bool::weighted(0.8).prop_map(|established| Step::Tick { established }),
    ];
    prop::collection::vec((0..12_u32, step), 1..400)
}

proptest! {
    #[test]
    fn sums_are_what_accounts_add_up_to(steps in steps(), usable in 0..96_u64) {
        let room = Room { usable, posted: true };
        let mut credit = Credit::new(12, MOST);
        let mut is_open = [false; 12];
        for (peer, step) in steps {
            let open = &mut is_open[peer as usize];
            match step {
                Step::Open if !*open => {
                    credit.open(peer, room);
                    *open = true;
                }
                Step::Use(count) if *open => {
                    let had = credit.outstanding(peer);
                    let used = (0..count).filter(|_| credit.use_one(peer)).count() as u64;
                    prop_assert_eq!(used, had.min(count.into()));
                    credit.end_recall_if_used_up(peer);
                }
                Step::Issue if *open => {
                    let is_recalled = credit.accounts[peer as usize].recalling;
                    let (had, issued) = (credit.outstanding(peer), credit.issue(peer, room, MOST));
                    prop_assert!(had + issued > 0 || is_recalled, "nobody else would give it credit");
                    prop_assert_eq!(credit.outstanding(peer), had + issued);
                }
                Step::Close if *open => {
                    credit.close(&[peer]);
                    *open = false;
                }
                Step::Answer if *open && credit.accounts[peer as usize].recalling => {
                    let keep = credit.limit_to_send(peer);
                    if credit.use_one(peer) {
                        credit.returned(peer, keep);
                    }
                    credit.end_recall_if_used_up(peer);
                }
                Step::Tick { established } => {
                    let state = Reachability::Established { may_send: true };
                    let state = if established { state } else { Reachability::NotYet };
                    let mut position = 0;
                    while position < credit.active_count() {
                        let decay = credit.decay(position, state);
                        position += usize::from(!matches!(decay, Decay::Idle | Decay::Lapsed));
                    }
                }
                _ => {}
            }
            let active = || credit.accounts.iter().filter(|account| account.active);
            let new = || active().filter(|account| account.arrived == 0);
            prop_assert_eq!(credit.outstanding, active().map(super::Account::outstanding).sum::<u64>());
            let has_new: u64 = new().map(super::Account::outstanding).sum();
            prop_assert_eq!(credit.newcomers.outstanding, has_new);
            prop_assert_eq!(credit.newcomers.count, new().count() as u64);
            prop_assert!(credit.newcomers.outstanding <= usable / 2, "{:?} of {}", credit.newcomers, usable);
            if credit.lapses() == 0 {
                // Each may have one where there is no room.
                let most = usable + active().count() as u64;
                prop_assert!(credit.outstanding <= most, "{} of {}", credit.outstanding, usable);
            }
        }
    }
}
