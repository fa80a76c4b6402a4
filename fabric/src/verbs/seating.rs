//! Seating of connections at the completion queues for what they post.
//!
//! It also knows which queues completions may come to. The number of these decides how many queues are
//! polled. How many connections share a queue, and why, is a [`Shape`].

use crate::limits::Shape;

/// Connections of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Occupancy {
    taken: u32,
    /// Number of connections to which a completion may come.
    busy: u32,
    is_listed: bool,
}

/// Table of which connections share which queue.
#[derive(Debug)]
pub(super) struct Seating {
    seats: u32,
    queues: Vec<Occupancy>,
    /// Queues with a free seat, the one that was left last on top.
    vacant: Vec<u32>,
    /// Queues to poll. Among them are some to which no completion may come any more.
    listed: Vec<u32>,
}

impl Seating {
    /// Makes a seating without queues. Everything is allocated here.
    pub fn new(shape: &Shape) -> Self {
        let room = shape.queues as usize;
        Self {
            seats: shape.seats,
            queues: Vec::with_capacity(room),
            vacant: Vec::with_capacity(room),
            listed: Vec::with_capacity(room),
        }
    }

    /// Returns a queue with a free seat; `None` where one more queue must be added.
    pub fn vacant(&self) -> Option<u32> {
        self.vacant.last().copied()
    }

    /// Adds a queue, all of whose seats are free.
    pub fn add(&mut self) {
        let queue = u32::try_from(self.queues.len()).expect("queues are few");
        self.queues.push(Occupancy::default());
        self.vacant.push(queue);
    }

    /// Takes a seat of the queue that [`Self::vacant`] returns, and returns that queue.
    pub fn take(&mut self) -> u32 {
        let queue = *self.vacant.last().expect("the caller looked for a free seat");
        let occupancy = &mut self.queues[queue as usize];
        occupancy.taken += 1;
        if occupancy.taken == self.seats {
            self.vacant.pop();
        }
        queue
    }

    /// Gives back the seat of a connection to which no completion comes any more.
    pub fn leave(&mut self, queue: u32) {
        let occupancy = &mut self.queues[queue as usize];
        assert!(occupancy.taken > occupancy.busy, "a seat is left once, and by who is done");
        if occupancy.taken == self.seats {
            self.vacant.push(queue);
        }
        occupancy.taken -= 1;
    }

    /// Notes that completions may come to one more connection of a queue. `true` where the queue was not
    /// polled before.
    #[inline]
    pub fn begin(&mut self, queue: u32) -> bool {
        let occupancy = &mut self.queues[queue as usize];
        occupancy.busy += 1;
        let is_new = !std::mem::replace(&mut occupancy.is_listed, true);
        if is_new {
            self.listed.push(queue);
        }
        is_new
    }

    /// Notes that no completion comes any more to one connection of a queue.
    #[inline]
    pub fn end(&mut self, queue: u32) {
        self.queues[queue as usize].busy -= 1;
    }

    /// Whether completions may come to a queue.
    #[inline]
    pub fn is_busy(&self, queue: u32) -> bool {
        self.queues[queue as usize].busy > 0
    }

    /// Returns how many queues are to be polled.
    #[inline]
    pub fn listed(&self) -> usize {
        self.listed.len()
    }

    /// Returns the queue at a position of the list of queues to poll. `None` where the list is shorter.
    ///
    /// A queue to which no completion may come any more leaves the list, and another queue takes its
    /// position.
    #[inline]
    pub fn at(&mut self, position: usize) -> Option<u32> {
        loop {
            let queue = *self.listed.get(position)?;
            let occupancy = &mut self.queues[queue as usize];
            if occupancy.busy > 0 {
                return Some(queue);
            }
            occupancy.is_listed = false;
            self.listed.swap_remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Connection with a seat, as the test's model knows it.
    #[derive(Clone, Copy)]
    struct Guest {
        queue: u32,
        busy: bool,
    }

    proptest! {
        #[test]
        fn whatever_can_complete_fits_and_is_looked_for(
            steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..400),
            seats in 1u32..6,
        ) {
            let shape = Shape { connections: 64, seats, places: seats * 31, queues: 64 };
            let (mut seating, mut made, mut most) = (Seating::new(&shape), 0, 0);
            let mut guests: Vec<Guest> = Vec::new();
            for (step, which) in steps {
                if step == 0 && guests.len() < 64 {
                    if seating.vacant().is_none() {
                        seating.add();
                        made += 1;
                    }
                    guests.push(Guest { queue: seating.take(), busy: false });
                    most = most.max(guests.len());
                } else if !guests.is_empty() {
                    let at = which.index(guests.len());
                    let Guest { queue, busy } = guests[at];
                    match step {
                        1 if !busy => {
                            let news =
                                (0..seating.listed()).all(|position| seating.listed[position] != queue);
                            prop_assert_eq!(seating.begin(queue), news);
                            guests[at].busy = true;
                        }
                        2 if busy => {
                            seating.end(queue);
                            guests[at].busy = false;
                        }
                        3 if !busy => {
                            seating.leave(queue);
                            guests.swap_remove(at);
                        }
                        _ => {}
                    }
                }
                for queue in 0..made {
                    let here = guests.iter().filter(|guest| guest.queue == queue);
                    prop_assert!(here.clone().count() <= seats as usize, "queue {} overruns", queue);
                    let busy = here.clone().any(|guest| guest.busy);
                    prop_assert_eq!(seating.is_busy(queue), busy);
                    let is_listed = seating.listed.contains(&queue);
                    prop_assert!(is_listed || !busy, "queue {} is not looked into", queue);
                }
            }
            prop_assert!(made as usize <= most.div_ceil(seats as usize), "{} queues for {}", made, most);
            // One poll of each queue leaves those to which completions may come, each once.
            let mut position = 0;
            let mut seen = Vec::new();
            while let Some(queue) = seating.at(position) {
                seen.push(queue);
                position += 1;
            }
            seen.sort_unstable();
            let mut busy: Vec<u32> =
                guests.iter().filter(|guest| guest.busy).map(|guest| guest.queue).collect();
            busy.sort_unstable();
            busy.dedup();
            prop_assert_eq!(seen, busy);
        }
    }
}
