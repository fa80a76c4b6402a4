//! The order in which the work of one QP completes on a device: as it was posted, SENDs and READs together.
//!
//! A transport takes SENDs and answers READs in an order of its own: a SEND is taken while the READ before it still runs.
//! What is done is kept here until all that was posted before it is done, too.

use crate::nic::{Status, Work};

/// No node.
const NONE: u32 = u32::MAX;

/// A SEND or a READ that was posted and whose completion was not shown.
#[derive(Clone, Copy, Debug)]
struct Node {
    work: Work,
    status: Option<Status>,
    next: u32,
}

/// One QP's, oldest first.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    /// The oldest SEND that is not done, and the oldest READ; each is looked for from here on.
    send: u32,
    read: u32,
}

impl Queue {
    const EMPTY: Self = Self { head: NONE, tail: NONE, send: NONE, read: NONE };
}

/// All QPs' send queues.
#[derive(Debug)]
pub(crate) struct SendOrder {
    nodes: Box<[Node]>,
    free: Vec<u32>,
    queues: Box<[Queue]>,
}

fn is_read(work: Work) -> bool {
    matches!(work, Work::Read { .. })
}

impl SendOrder {
    /// For so many QPs, and so many SENDs and READs of all of them together.
    pub(crate) fn new(qps: u32, posted_max: u32) -> Self {
        let unused = Node { work: Work::Send { id: 0 }, status: None, next: NONE };
        Self {
            nodes: vec![unused; posted_max as usize].into(),
            free: (0..posted_max).rev().collect(),
            queues: vec![Queue::EMPTY; qps as usize].into(),
        }
    }

    /// Work was posted on a QP.
    pub(crate) fn posted(&mut self, qp: u32, work: Work) {
        let place = self.free.pop().expect("room was looked for when the work was posted");
        self.nodes[place as usize] = Node { work, status: None, next: NONE };
        let queue = &mut self.queues[qp as usize];
        match queue.tail {
            NONE => queue.head = place,
            tail => self.nodes[tail as usize].next = place,
        }
        queue.tail = place;
        let oldest = if is_read(work) { &mut queue.read } else { &mut queue.send };
        if *oldest == NONE {
            *oldest = place;
        }
    }

    /// The oldest SEND of a QP is done, or its oldest READ.
    pub(crate) fn done(&mut self, qp: u32, work: Work, status: Status) {
        let queue = &mut self.queues[qp as usize];
        let oldest = if is_read(work) { &mut queue.read } else { &mut queue.send };
        let node = &mut self.nodes[*oldest as usize];
        assert!(
            node.work == work && node.status.is_none(),
            "SENDs are taken in their order, and READs answered"
        );
        node.status = Some(status);
        let mut next = node.next;
        while next != NONE && is_read(self.nodes[next as usize].work) != is_read(work) {
            next = self.nodes[next as usize].next;
        }
        *oldest = next;
    }

    /// Takes the QP's oldest work if it is done.
    pub(crate) fn take_done(&mut self, qp: u32) -> Option<(Work, Status)> {
        let queue = &mut self.queues[qp as usize];
        let place = queue.head;
        let node = *self.nodes.get(place as usize)?;
        let status = node.status?;
        queue.head = node.next;
        if queue.head == NONE {
            queue.tail = NONE;
        }
        self.free.push(place);
        Some((node.work, status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn a_send_waits_for_the_reads_before_it_and_a_read_for_the_sends() {
        let mut order = SendOrder::new(1, 8);
        let (send, read) = (|id| Work::Send { id }, |id| Work::Read { id });
        for work in [read(1), send(2), send(3), read(4), send(5)] {
            order.posted(0, work);
        }
        for id in [2, 3, 5] {
            order.done(0, send(id), Status::Success);
            assert_eq!(order.take_done(0), None, "the READ before it runs");
        }
        order.done(0, read(1), Status::Success);
        let shown: Vec<_> = std::iter::from_fn(|| order.take_done(0)).map(|(work, _)| work).collect();
        assert_eq!(shown, [read(1), send(2), send(3)]);
        order.done(0, read(4), Status::Flushed);
        assert_eq!(order.take_done(0), Some((read(4), Status::Flushed)));
        assert_eq!(order.take_done(0), Some((send(5), Status::Success)));
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

    proptest! {
        /// Whatever is done when: all is shown once, each QP's in the order of its posts, nothing before it is done.
        #[test]
        fn it_is_a_queue_for_each_qp(steps in prop::collection::vec(step(), 0..300)) {
            const PLACES: u32 = 20;
            let mut order = SendOrder::new(3, PLACES);
            // What was posted and not shown, and whether it is done.
            let mut model: [VecDeque<(Work, bool)>; 3] = Default::default();
            for (id, step) in (0u64..).zip(steps) {
                let of_kind = |read: bool| if read { Work::Read { id } } else { Work::Send { id } };
                match step {
                    Step::Post { qp, read } => {
                        if model.iter().map(VecDeque::len).sum::<usize>() == PLACES as usize {
                            continue;
                        }
                        order.posted(u32::try_from(qp).unwrap(), of_kind(read));
                        model[qp].push_back((of_kind(read), false));
                    }
                    Step::Finish { qp, read } => {
                        let oldest = model[qp].iter_mut().find(|(work, done)| !done && is_read(*work) == read);
                        if let Some((work, done)) = oldest {
                            *done = true;
                            order.done(u32::try_from(qp).unwrap(), *work, Status::Success);
                        }
                    }
                }
                for (qp, expected) in (0u32..).zip(&mut model) {
                    while expected.front().is_some_and(|(_, done)| *done) {
                        let (work, _) = expected.pop_front().unwrap();
                        prop_assert_eq!(order.take_done(qp), Some((work, Status::Success)));
                    }
                    prop_assert_eq!(order.take_done(qp), None);
                }
            }
        }
    }
}
