//! Which connections share a completion queue for what they post, and to which of those queues something may come.
//!
//! One queue for all connections would need a place for everything that all of them can have under way: megabytes, through
//! which completions cycle, in the cache that Jet is about. A queue for each would be a command to the device more with
//! every connection. So a few share one, and as many as are under way decide which queues are looked into.

use crate::limits::DeviceAttributes;

/// Places of a shared queue: providers add one and round up to a power of two (rxe_queue.c; mlx5's `create_cq`), and 128
/// places of 64 bytes are 8 KiB. 32 active connections that sit in 32 queues then cycle through 256 KiB.
const PLACES: u32 = 127;

/// How connections are spread over queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Connections that share a queue.
    pub seats: u32,
    /// Completions of one connection at once.
    pub entries_each: u32,
    /// Queues, where all connections are there.
    pub queues: u32,
}

/// What the device has of completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueLimits {
    /// Places of one.
    pub places: u32,
    /// Queues, without that of arrivals.
    pub queues: u32,
}

impl QueueLimits {
    /// What a device says of them.
    pub fn of(device: &DeviceAttributes) -> Self {
        let number = |says: i32| u32::try_from(says).unwrap_or(0);
        Self { places: number(device.max_cqe), queues: number(device.max_cq).saturating_sub(1) }
    }

    /// Connections with so many completions each for which there are places.
    #[cfg(test)]
    pub fn connections(&self, entries_each: u32) -> u32 {
        (self.places / entries_each).saturating_mul(self.queues)
    }
}

impl Shape {
    /// For so many connections with so many completions each: few to a queue, or as many as it takes for the device's queues
    /// to suffice. `None`: these are more than [`QueueLimits::connections`].
    pub fn of(entries_each: u32, connections: u32, device: QueueLimits) -> Option<Self> {
        let fit = device.places / entries_each;
        let few = (PLACES / entries_each).clamp(1, fit.max(1));
        let needed = connections.div_ceil(device.queues.max(1));
        let seats = few.max(needed);
        let queues = connections.div_ceil(seats);
        (seats <= fit && queues <= device.queues).then_some(Self { seats, entries_each, queues })
    }

    /// Places of a queue in which whatever its connections have under way fits.
    pub fn places(&self) -> u32 {
        self.seats * self.entries_each
    }
}

/// A queue's connections.
#[derive(Clone, Copy, Debug, Default)]
struct Occupancy {
    taken: u32,
    /// Those to which something may come.
    busy: u32,
    is_listed: bool,
}

/// Who sits where.
#[derive(Debug)]
pub(super) struct Seating {
    seats: u32,
    queues: Vec<Occupancy>,
    /// Queues with a free seat, the one last left on top.
    vacant: Vec<u32>,
    /// Queues to which something may come, and some to which nothing may come any more.
    listed: Vec<u32>,
}

impl Seating {
    /// Everything is allocated here.
    pub fn new(shape: &Shape) -> Self {
        let room = shape.queues as usize;
        Self {
            seats: shape.seats,
            queues: Vec::with_capacity(room),
            vacant: Vec::with_capacity(room),
            listed: Vec::with_capacity(room),
        }
    }

    /// A queue with a free seat; `None`: there is none, one more is to be added.
    pub fn vacant(&self) -> Option<u32> {
        self.vacant.last().copied()
    }

    /// One more queue, all of whose seats are free.
    pub fn add(&mut self) {
        let queue = u32::try_from(self.queues.len()).expect("queues are few");
        self.queues.push(Occupancy::default());
        self.vacant.push(queue);
    }

    /// Takes a seat of the queue that [`Self::vacant`] told.
    pub fn take(&mut self) -> u32 {
        let queue = *self.vacant.last().expect("the caller looked for a free seat");
        let occupancy = &mut self.queues[queue as usize];
        occupancy.taken += 1;
        if occupancy.taken == self.seats {
            self.vacant.pop();
        }
        queue
    }

    /// Gives a seat back, of a connection to which nothing comes any more.
    pub fn leave(&mut self, queue: u32) {
        let occupancy = &mut self.queues[queue as usize];
        assert!(occupancy.taken > occupancy.busy, "a seat is left once, and by who is done");
        if occupancy.taken == self.seats {
            self.vacant.push(queue);
        }
        occupancy.taken -= 1;
    }

    /// Something may come to one more of its connections; `true`: the queue was not looked into before.
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

    /// Nothing comes any more to one of its connections.
    #[inline]
    pub fn end(&mut self, queue: u32) {
        self.queues[queue as usize].busy -= 1;
    }

    /// Whether something may come.
    #[inline]
    pub fn is_busy(&self, queue: u32) -> bool {
        self.queues[queue as usize].busy > 0
    }

    /// How many queues are to be looked into.
    #[inline]
    pub fn listed(&self) -> usize {
        self.listed.len()
    }

    /// One of them. Where nothing can come to it any more it leaves the list, and another takes its place there; none is left
    /// at that position: `None`.
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

    fn device(places: u32, queues: u32) -> QueueLimits {
        QueueLimits { places, queues }
    }

    #[test]
    fn a_daemons_connections_sit_by_four_and_a_senders_alone() {
        // 12 SENDs and 2, 16 READs and a probe; 128 SENDs and a probe.
        let of_daemon = Shape::of(31, 4624, device(1 << 22, 1 << 24)).unwrap();
        assert_eq!(of_daemon, Shape { seats: 4, entries_each: 31, queues: 1156 });
        assert!(of_daemon.places() < 128, "it would be 256 of them");
        let of_sender = Shape::of(129, 4, device(1 << 22, 1 << 24)).unwrap();
        assert_eq!(of_sender, Shape { seats: 1, entries_each: 129, queues: 4 });
    }

    #[test]
    fn with_few_queues_more_share_one_and_with_too_few_it_is_said() {
        let shape = Shape::of(31, 1000, device(1 << 15, 10)).unwrap();
        assert_eq!(shape, Shape { seats: 100, entries_each: 31, queues: 10 });
        assert_eq!(Shape::of(31, 1000, device(3099, 10)), None, "100 x 31 do not fit");
        assert_eq!(Shape::of(31, 1000, device(3100, 10)), Some(shape));
        assert_eq!(Shape::of(31, 8, device(30, 100)), None, "not even one does");
        assert_eq!(Shape::of(31, 8, device(1 << 15, 0)), None);
        for (places, queues) in
            [(3099, 10), (3100, 10), (30, 100), (31, 1), (1 << 15, 0), (700, 3), (128, 1000)]
        {
            let device = device(places, queues);
            let most = device.connections(31);
            assert!(most == 0 || Shape::of(31, most, device).is_some(), "{device:?}");
            assert_eq!(Shape::of(31, most + 1, device), None, "{device:?}");
        }
        // A device whose queues are small: one connection each.
        assert_eq!(Shape::of(31, 8, device(61, 100)).map(|shape| shape.seats), Some(1));
    }

    /// Who sits where, beside what is said to the seating.
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
            let shape = Shape { seats, entries_each: 31, queues: 64 };
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
                            let news = (0..seating.listed()).all(|position| seating.listed[position] != queue);
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
            // One look at each leaves those to which something may come, each once.
            let mut position = 0;
            let mut seen = Vec::new();
            while let Some(queue) = seating.at(position) {
                seen.push(queue);
                position += 1;
            }
            seen.sort_unstable();
            let mut busy: Vec<u32> = guests.iter().filter(|guest| guest.busy).map(|guest| guest.queue).collect();
            busy.sort_unstable();
            busy.dedup();
            prop_assert_eq!(seen, busy);
        }
    }
}
