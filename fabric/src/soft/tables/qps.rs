//! The QPs of a software NIC: places that are reused, with a generation each.

use crate::nic::Qp;
use crate::soft::token::Kind;

/// State of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    /// A peer's request waits in its socket, and is read next. The user does not know of the QP.
    Handshake,
    /// The user was asked whether to accept.
    Requested,
    /// The peer was asked whether it accepts.
    Connecting,
    /// The connection is ready for work.
    Connected,
    /// The user ended the connection; posted work may still be sent.
    Closing,
    /// The connection ended; its last event waits to be polled.
    Ended,
}

/// Table entry of one QP, as both transports see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpEntry {
    generation: u32,
    used: bool,
    /// Transport of the connection.
    pub(crate) kind: Kind,
    /// State of the connection.
    pub(crate) state: QpState,
    /// SENDs that were posted and have not completed.
    pub(crate) sends: u32,
    /// READs that were posted and have not completed.
    pub(crate) reads: u32,
    /// READs that may be outstanding, as both ends agreed when the connection was made.
    pub(crate) reads_max: u32,
}

/// Table of all QPs. The place that was freed last is used next, so that few places are touched at low load.
#[derive(Debug)]
pub(crate) struct Qps {
    entries: Box<[QpEntry]>,
    free: Vec<u32>,
}

impl Qps {
    pub(crate) fn new(max: u32) -> Self {
        let empty = QpEntry {
            generation: 0,
            used: false,
            kind: Kind::Shm,
            state: QpState::Ended,
            sends: 0,
            reads: 0,
            reads_max: 0,
        };
        Self { entries: vec![empty; max as usize].into(), free: (0..max).rev().collect() }
    }

    /// Takes a free place. `None` where all are taken.
    pub(crate) fn take(&mut self, kind: Kind, state: QpState) -> Option<Qp> {
        let index = self.free.pop()?;
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        (entry.used, entry.kind, entry.state) = (true, kind, state);
        (entry.sends, entry.reads, entry.reads_max) = (0, 0, 0);
        Some(Qp { index, generation: entry.generation })
    }

    /// Gives a place back; its QP is stale from now on.
    pub(crate) fn release(&mut self, qp: Qp) {
        let entry = self.get_mut(qp).expect("a QP is released once");
        assert!(entry.sends == 0 && entry.reads == 0, "a QP is released after its work completed");
        entry.used = false;
        self.free.push(qp.index);
    }

    /// Returns the QP's entry; `None` where the QP is stale.
    pub(crate) fn get(&self, qp: Qp) -> Option<&QpEntry> {
        self.entries.get(qp.index as usize).filter(|entry| entry.used && entry.generation == qp.generation)
    }

    /// Returns the QP's entry for changes; `None` where the QP is stale.
    pub(crate) fn get_mut(&mut self, qp: Qp) -> Option<&mut QpEntry> {
        self.entries
            .get_mut(qp.index as usize)
            .filter(|entry| entry.used && entry.generation == qp.generation)
    }

    /// Returns the transport of the QP at this place, or of the last QP there.
    pub(crate) fn kind_at(&self, index: u32) -> Kind {
        self.entries[index as usize].kind
    }

    /// Changes the state of a QP that is not stale.
    pub(crate) fn set_state(&mut self, qp: Qp, state: QpState) {
        self.get_mut(qp).expect("only a living QP changes its state").state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_reused_makes_the_old_qp_stale() {
        let mut qps = Qps::new(2);
        let first = qps.take(Kind::Shm, QpState::Connecting).unwrap();
        let second = qps.take(Kind::Tcp, QpState::Connecting).unwrap();
        assert!(qps.take(Kind::Shm, QpState::Connecting).is_none());
        qps.release(first);
        assert!(qps.get(first).is_none());
        let third = qps.take(Kind::Shm, QpState::Connecting).unwrap();
        assert_eq!(third.index, first.index);
        assert!(qps.get(first).is_none() && qps.get(second).is_some() && qps.get(third).is_some());
        assert!(qps.get(Qp { index: 9, generation: 1 }).is_none());
    }
}
