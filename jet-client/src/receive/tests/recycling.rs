//! Tests that every slab comes back once and every message ends once, whatever an application does.

use super::{Daemon, LONG, MESSAGES, POOL_SLABS, Run, SLOTS, check_slice, nothing, pair, slices};
use crate::receive::Slice;
use jet_wire::SLAB_BYTES_U32;
use jet_wire::segment::{delivery_flags as flags, release_kind};
use proptest::prelude::*;
use std::time::Duration;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    // Deliveries, takings, droppings and early consumptions in any order.
    #[test]
    fn every_slab_comes_back_once(steps in prop::collection::vec((0u8..8, any::<u8>()), 1..200)) {
        let (mut daemon, session) = pair(Duration::ZERO);
        let mut owed = [0u64; SLOTS as usize];
        let mut slot_of_message = [[false; SLOTS as usize]; MESSAGES as usize];
        let mut generation = [0u16; MESSAGES as usize];
        let mut progress = [None::<u64>; MESSAGES as usize];
        let mut finished = [true; MESSAGES as usize];
        // Whether the last run was delivered, or the message was withdrawn.
        let mut over = [true; MESSAGES as usize];
        let mut messages = Vec::new();
        let mut held: Vec<Slice<'_>> = Vec::new();
        let total = u64::from(6 * SLAB_BYTES_U32) + 17;
        let settle = |daemon: &mut Daemon, owed: &mut [u64; SLOTS as usize],
                          slots: &mut [[bool; SLOTS as usize]; MESSAGES as usize],
                          finished: &mut [bool; MESSAGES as usize],
                          over: &[bool; MESSAGES as usize]| {
            for release in daemon.releases() {
                let index = release.index as usize;
                let mut ended = None;
                if release.kind != release_kind::FINISH {
                    let bits = ((1u64 << release.count) - 1) << release.first;
                    assert_eq!(owed[index] & bits, bits, "{release:?} gives back what is not out");
                    owed[index] &= !bits;
                    let message = slots.iter().position(|slots| slots[index]).expect("somebody's");
                    if owed[index] == 0 {
                        slots[message][index] = false;
                    }
                    if release.kind == release_kind::SLICES_AND_FINISH {
                        ended = Some(message);
                    }
                } else {
                    ended = Some(index);
                }
                if let Some(message) = ended {
                    assert!(release.code != 0 || over[message], "message {message} is consumed before all of \
                        it came");
                    assert!(!std::mem::replace(&mut finished[message], true), "message {message} ends twice");
                }
            }
        };
        for (what, choice) in steps {
            let choice = usize::from(choice);
            match what {
                0 | 1 => {
                    let number = choice % MESSAGES as usize;
                    let Some(slot) = owed.iter().position(|&owed| owed == 0) else { continue };
                    let at = match progress[number] {
                        Some(at) => at,
                        None if finished[number] && !slot_of_message[number].contains(&true) => {
                            generation[number] += 1;
                            finished[number] = false;
                            over[number] = false;
                            0
                        }
                        None => continue,
                    };
                    let left = total - at;
                    let bytes = left.min(u64::from(SLAB_BYTES_U32) * (1 + choice as u64 % 3));
                    let first = if at == 0 { flags::FIRST } else { 0 };
                    let last = if bytes == left { flags::LAST } else { 0 };
                    let slices = bytes.div_ceil(u64::from(SLAB_BYTES_U32));
                    owed[slot] = (1 << slices) - 1;
                    slot_of_message[number][slot] = true;
                    progress[number] = (bytes < left).then_some(at + bytes);
                    over[number] = bytes == left;
                    let (slot, message) = (u32::try_from(slot).unwrap(), u32::try_from(number).unwrap());
                    let bytes = u32::try_from(bytes).unwrap();
                    let run = Run {
                        slot,
                        message,
                        offset: at,
                        bytes,
                        message_bytes: total,
                        slab: 4 * slot,
                        flags: first | last,
                    };
                    daemon.deliver_as(run, generation[number], b"");
                }
                2 => messages.extend(session.try_receive().ok()),
                3 if !messages.is_empty() => {
                    let at = choice % messages.len();
                    if let Ok(Some(slice)) = messages[at].try_next() {
                        check_slice(&slice, u32::try_from(messages[at].tag() - 1000).unwrap());
                        if choice % 2 == 0 { held.extend(slice.into_slabs()) } else { held.push(slice) }
                    }
                }
                4 if !messages.is_empty() => drop(messages.swap_remove(choice % messages.len())),
                5 if !held.is_empty() => drop(held.swap_remove(choice % held.len())),
                6 => {
                    session.flush();
                    settle(&mut daemon, &mut owed, &mut slot_of_message, &mut finished, &over);
                }
                7 if !messages.is_empty() => messages.swap_remove(choice % messages.len()).consume(),
                _ => {}
            }
        }
        // A message that was consumed before all of it arrived ends when it is withdrawn.
        session.flush();
        settle(&mut daemon, &mut owed, &mut slot_of_message, &mut finished, &over);
        for number in 0..MESSAGES as usize {
            if !finished[number] && !over[number] {
                over[number] = true;
                daemon.withdraw_as(u32::try_from(number).unwrap(), generation[number], 0);
            }
        }
        // A message that never arrived whole is rejected by dropping it. Deliveries that are still in the
        // ring go back.
        while let Ok(message) = session.try_receive() {
            drop(message);
        }
        drop(messages);
        drop(held);
        prop_assert!(nothing(session.try_receive()));
        settle(&mut daemon, &mut owed, &mut slot_of_message, &mut finished, &over);
        prop_assert_eq!(owed, [0; SLOTS as usize]);
        prop_assert_eq!(finished, [true; MESSAGES as usize]);
    }
}

#[test]
fn a_fragment_that_was_given_back_is_shown_without_a_wait() {
    let (mut daemon, session) = pair(Duration::ZERO);
    // Half a fragment each.
    let bytes = POOL_SLABS * SLAB_BYTES_U32;
    for (slot, flag) in (0..4).zip([flags::FIRST, 0, 0, flags::LAST]) {
        let offset = u64::from(slot * bytes);
        let message_bytes = u64::from(4 * bytes);
        daemon.deliver(Run { slot, message: 0, offset, bytes, message_bytes, slab: 0, flags: flag });
    }
    let mut message = session.try_receive().unwrap();
    let mut give_back = || drop(message.next_timeout(LONG).unwrap().unwrap());
    give_back();
    give_back();
    assert_eq!(daemon.releases(), [], "the newest entry is held back, and the other one is half a fragment");
    give_back();
    assert_eq!(daemon.releases(), [slices(0, 0, 32), slices(1, 0, 32)]);
    give_back();
    assert_eq!(daemon.releases(), []);
}
