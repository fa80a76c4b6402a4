//! Order of completions on a device: a SEND completes only after the READs that were posted on its QP before
//! it.
//!
//! A transport may take a SEND while READs before it still run. This module keeps the SEND's completion until
//! these are done. A READ does not wait for the SENDs before it. A device gets the acknowledgements of SENDs
//! as soon as the peer's device has the SENDs. The acknowledgements of the software NIC arrive when the
//! peer's user polls, which may be never.

use crate::nic::Status;

/// Value that stands for no node.
const NONE: u32 = u32::MAX;

/// SEND that was posted and whose completion was not shown.
#[derive(Clone, Copy, Debug)]
struct Node {
    id: u64,
    /// READs that were posted on the QP before this SEND, since the QP was first used.
    reads_before: u64,
    status: Option<Status>,
    next: u32,
}

/// SENDs of one QP, oldest first.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    /// Oldest SEND that is not done.
    running: u32,
    reads_posted: u64,
    reads_done: u64,
}

impl Queue {
    const EMPTY: Self = Self { head: NONE, tail: NONE, running: NONE, reads_posted: 0, reads_done: 0 };
}

/// SENDs of all QPs whose completions were not shown.
#[derive(Debug)]
pub(crate) struct SendOrder {
    nodes: Box<[Node]>,
    free: Vec<u32>,
    queues: Box<[Queue]>,
}

impl SendOrder {
    /// Makes room for so many QPs, and for so many SENDs of all of them together.
    pub(crate) fn new(qps: u32, sends_max: u32) -> Self {
        let unused = Node { id: 0, reads_before: 0, status: None, next: NONE };
        Self {
            nodes: vec![unused; sends_max as usize].into(),
            free: (0..sends_max).rev().collect(),
            queues: vec![Queue::EMPTY; qps as usize].into(),
        }
    }

    /// Notes that a READ was posted on a QP.
    pub(crate) fn read_posted(&mut self, qp: u32) {
        self.queues[qp as usize].reads_posted += 1;
    }

    /// Notes that the oldest READ of a QP is done.
    pub(crate) fn read_done(&mut self, qp: u32) {
        self.queues[qp as usize].reads_done += 1;
    }

    /// Notes that a SEND was posted on a QP.
    pub(crate) fn send_posted(&mut self, qp: u32, id: u64) {
        let place = self.free.pop().expect("room was looked for when the SEND was posted");
        let queue = &mut self.queues[qp as usize];
        self.nodes[place as usize] = Node { id, reads_before: queue.reads_posted, status: None, next: NONE };
        match queue.tail {
            NONE => queue.head = place,
            tail => self.nodes[tail as usize].next = place,
        }
        queue.tail = place;
        if queue.running == NONE {
            queue.running = place;
        }
    }

    /// Notes that the oldest running SEND of a QP is done, with this status.
    pub(crate) fn send_done(&mut self, qp: u32, id: u64, status: Status) {
        let queue = &mut self.queues[qp as usize];
        let node = &mut self.nodes[queue.running as usize];
        assert!(node.id == id && node.status.is_none(), "SENDs are taken in their order");
        node.status = Some(status);
        queue.running = node.next;
    }

    /// Takes the QP's oldest SEND, if it and all READs before it are done.
    pub(crate) fn take_done(&mut self, qp: u32) -> Option<(u64, Status)> {
        let queue = &mut self.queues[qp as usize];
        let place = queue.head;
        let node = *self.nodes.get(place as usize)?;
        let status = node.status.filter(|_| node.reads_before <= queue.reads_done)?;
        queue.head = node.next;
        if queue.head == NONE {
            queue.tail = NONE;
        }
        self.free.push(place);
        Some((node.id, status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn shown(order: &mut SendOrder) -> Vec<u64> {
        std::iter::from_fn(|| order.take_done(0)).map(|(id, _)| id).collect()
    }

    #[test]
    fn a_send_waits_for_the_reads_before_it_and_no_read_for_a_send() {
        let mut order = SendOrder::new(1, 8);
        order.send_posted(0, 1);
        order.read_posted(0);
        order.send_posted(0, 2);
        order.send_posted(0, 3);
        order.read_posted(0);
        order.send_posted(0, 4);
        for id in [1, 2, 3] {
            order.send_done(0, id, Status::Success);
        }
        assert_eq!(shown(&mut order), [1], "the READ before the others runs");
        order.read_done(0);
        assert_eq!(shown(&mut order), [2, 3]);
        order.read_done(0);
        assert_eq!(shown(&mut order), [], "it is not done itself");
        order.send_done(0, 4, Status::Flushed);
        assert_eq!(order.take_done(0), Some((4, Status::Flushed)));
        assert_eq!(order.take_done(0), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Post { qp: usize, read: bool },
        Finish { qp: usize, read: bool },
    }

    fn step() -> impl Strategy<Value = Step> {
        let of = (0..3usize, any::<bool>());
        prop_oneof![
            of.clone().prop_map(|(qp, read)| Step::Post { qp, read }),
            of.prop_map(|(qp, read)| Step::Finish { qp, read })
        ]
    }

    /// Work posted on a QP, oldest first: `None` for a READ, or the id of a SEND; and whether it is done.
    type Model = VecDeque<(Option<u64>, bool)>;

    proptest! {
        /// Every SEND is shown once, in the order of its QP, and as soon as it and all before it are done.
        #[test]
        fn a_send_is_shown_when_it_and_all_before_it_is_done(steps in prop::collection::vec(step(), 0..300)) {
            const PLACES: u32 = 20;
            let mut order = SendOrder::new(3, PLACES);
            let mut model: [Model; 3] = Default::default();
            for (id, step) in (0u64..).zip(steps) {
                match step {
                    Step::Post { qp, read: true } => {
                        order.read_posted(u32::try_from(qp).unwrap());
                        model[qp].push_back((None, false));
                    }
                    Step::Post { qp, read: false } => {
                        let sends = model.iter().flatten().filter(|(work, _)| work.is_some()).count();
                        if sends < PLACES as usize {
                            order.send_posted(u32::try_from(qp).unwrap(), id);
                            model[qp].push_back((Some(id), false));
                        }
                    }
                    Step::Finish { qp, read } => {
                        let oldest =
                            model[qp].iter_mut().find(|(work, done)| !done && work.is_none() == read);
                        let Some((work, done)) = oldest else { continue };
                        *done = true;
                        let of = u32::try_from(qp).unwrap();
                        match work {
                            Some(id) => order.send_done(of, *id, Status::Success),
                            None => order.read_done(of),
                        }
                    }
                }
                for (qp, expected) in (0u32..).zip(&mut model) {
                    while expected.front().is_some_and(|(_, done)| *done) {
                        if let (Some(id), _) = expected.pop_front().unwrap() {
                            prop_assert_eq!(order.take_done(qp), Some((id, Status::Success)));
                        }
                    }
                    prop_assert_eq!(order.take_done(qp), None);
                }
            }
        }
    }
}
