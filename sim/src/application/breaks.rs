//! What an application does that breaks its session: one thing that it must not give back, or anything
//! anywhere.

use super::ApplicationProcess;
use super::session::{Run, Session};
use crate::event::{Broke, Event};
use crate::observer::Observer;
use fastrand::Rng;
use jet_wire::segment::{Release, release_kind};

/// Returns releases of which the receiver can take all but the last one. Everything else in the session is
/// as it should be.
fn wrong_releases(session: &Session, random: &mut Rng) -> Vec<Release> {
    let runs: Vec<Run> = session.runs().collect();
    let (slots, messages) = (session.end.shape().slots, session.end.shape().messages);
    let of = |index, kind| Release { index, generation: 0, first: 0, count: 1, kind, reserved: 0, code: 0 };
    let run = runs[random.usize(..runs.len())];
    let slices = run.slices();
    let right = Release { count: 1, generation: run.generation, ..of(run.slot, release_kind::SLICES) };
    let last = Release { first: slices - 1, ..right };
    match random.u8(..12) {
        0 => vec![last, last],
        1 => vec![Release { first: slices, ..right }],
        2 => vec![Release { count: slices + 1, ..right }],
        3 => vec![Release { first: u16::MAX, count: u16::MAX, ..right }],
        4 => vec![Release { count: 0, ..right }],
        5 => vec![Release { generation: run.generation.wrapping_add(1), ..last }],
        6 => vec![Release { reserved: 1, ..last }],
        7 => vec![Release { kind: 0, ..last }],
        8 => vec![of(slots, release_kind::SLICES)],
        9 => vec![of(u32::MAX, release_kind::SLICES_AND_FINISH)],
        10 => vec![of(messages, release_kind::FINISH)],
        _ => {
            let generation = session.messages[run.message as usize].generation.wrapping_add(1);
            vec![Release { generation, ..of(run.message, release_kind::FINISH) }]
        }
    }
}

impl ApplicationProcess {
    /// Lets it break its session as soon as it holds something.
    pub fn will_break(&mut self) {
        self.breaks_after = Some(0);
    }

    /// Returns whether it broke its session.
    pub fn has_broken(&self) -> bool {
        self.broke.is_some()
    }

    /// Returns whether it wrote what it likes: the receiver may never notice.
    pub fn has_scribbled(&self) -> bool {
        self.broke == Some(Broke::Anything)
    }

    /// Breaks its session, and does nothing more.
    pub(super) fn break_session(&mut self, now_ns: u64, observer: &mut Observer) {
        let Self { random, session: Some(session), life, .. } = self else { return };
        let life = *life;
        if random.bool() {
            let wrong = wrong_releases(session, random);
            let fits = wrong.iter().all(|release| session.end.releases.push(*release).is_ok());
            session.end.releases.publish();
            if fits {
                if let [taken, _] = wrong[..] {
                    // These slices may be back now, and somebody else's.
                    session.reading.retain(|reading| reading.run.slot != taken.index);
                }
                self.broke = Some(Broke::Release);
                observer.note(now_ns, &Event::Broke { life, what: Broke::Release });
                observer.counts().add("wrong release");
                return;
            }
        }
        self.broke = Some(Broke::Anything);
        observer.note(now_ns, &Event::Broke { life, what: Broke::Anything });
        self.scribble();
    }

    /// Writes what it likes into what it shares with the receiver.
    fn scribble(&mut self) {
        let Some(session) = &mut self.session else { return };
        // Often releases of what it holds, or does not hold, in any form.
        for _ in 0..self.random.usize(..16) {
            let known = session.messages.iter().flat_map(|message| &message.waiting).next().copied();
            let index = known.map_or_else(|| self.random.u32(..2000), |run| run.slot);
            let generation = known.map_or_else(|| self.random.u16(..4), |run| run.generation);
            let (first, count, kind) = (self.random.u16(..70), self.random.u16(..70), self.random.u8(..4));
            // Whether there is room makes no difference.
            let _ = session.end.releases.push(Release {
                index,
                generation,
                first,
                count,
                kind,
                reserved: self.random.u8(..2),
                code: self.random.u32(..3),
            });
        }
        session.end.releases.publish();
        let words = session.segment.bytes() / 8;
        // Often in the rings' indices, which lie near the beginning.
        let near = words.min(64);
        for _ in 0..self.random.usize(1..64) {
            let at = if self.random.bool() { self.random.usize(..near) } else { self.random.usize(..words) };
            let word = if self.random.bool() { self.random.u64(..) } else { self.random.u64(..300) };
            // SAFETY: within the mapping, and aligned. The other end reads each word once and checks it.
            unsafe { session.segment.base().cast::<u64>().add(at).write_volatile(word) };
        }
    }
}
