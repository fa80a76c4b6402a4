//! How connections share completion queues for what they post.
//!
//! One queue for all connections would need a place for everything that all of them can have under way:
//! megabytes, through which completions cycle, in the cache that Jet is about. A queue for each would be a
//! command to the device more with every connection. So a few share one.

/// Places of a shared queue: providers add one and round up to a power of two (rxe_queue.c; mlx5's
/// `create_cq`), and 128 places are 8 KiB with mlx5's 64 bytes, 16 with rxe's 128.
const PLACES: u32 = 127;

/// What a connection can have under way, each with a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// SENDs and probes; one at least.
    pub own: u32,
    /// READs.
    pub reads: u32,
    /// READs of all connections together.
    pub reads_of_all: u32,
}

impl Work {
    /// The most completions that so many connections can have at once.
    fn of(&self, connections: u32) -> u32 {
        let reads = connections.saturating_mul(self.reads).min(self.reads_of_all);
        connections.saturating_mul(self.own).saturating_add(reads)
    }

    /// The most connections whose completions fit into so many places.
    fn fit(&self, places: u32) -> u32 {
        // Where READs are bounded by each, or by all.
        (places / (self.own + self.reads)).max(places.saturating_sub(self.reads_of_all) / self.own)
    }
}

/// How connections are spread over completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Connections that there may be.
    pub connections: u32,
    /// Connections that share a queue.
    pub seats: u32,
    /// Places of a queue, in which whatever its connections have under way fits.
    pub places: u32,
    /// Queues, where all connections are there.
    pub queues: u32,
}

impl Shape {
    /// For so many connections with so much work each, or for as many as find place in so many queues (one at
    /// least) of so many places each: few to a queue, or as many as it takes for the queues to suffice.
    pub(super) fn of(work: &Work, connections: u32, queues: u32, places: u32) -> Self {
        let most = work.fit(places);
        let connections = connections.min(most.saturating_mul(queues));
        let few = work.fit(PLACES).clamp(1, most.max(1));
        let seats = few.max(connections.div_ceil(queues));
        Self { connections, seats, places: work.of(seats), queues: connections.div_ceil(seats) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 12 control messages and a farewell, a probe, 16 READs, of which a daemon makes 32 at once.
    const DAEMON: Work = Work { own: 14, reads: 16, reads_of_all: 32 };
    /// 128 SENDs and a probe.
    const SENDER: Work = Work { own: 129, reads: 0, reads_of_all: 4 };
    /// Of a daemon that may have as many READs as its connections can have together.
    const READER: Work = Work { own: 14, reads: 16, reads_of_all: u32::MAX };

    fn shape(connections: u32, seats: u32, places: u32, queues: u32) -> Shape {
        Shape { connections, seats, places, queues }
    }

    #[test]
    fn a_daemons_connections_sit_by_six_and_a_senders_alone() {
        let large = |work, connections| Shape::of(work, connections, 1 << 24, 1 << 22);
        let of_daemon = large(&DAEMON, 4624);
        assert_eq!(of_daemon, shape(4624, 6, 6 * 14 + 32, 771));
        assert!(of_daemon.places < 128, "it would be 256 of them");
        assert_eq!(large(&READER, 4624), shape(4624, 4, 4 * 30, 1156));
        assert_eq!(large(&SENDER, 4), shape(4, 1, 129, 4));
    }

    #[test]
    fn with_few_queues_more_share_one_and_with_too_few_there_are_fewer() {
        assert_eq!(Shape::of(&READER, 1000, 10, 1 << 15), shape(1000, 100, 3000, 10));
        assert_eq!(Shape::of(&READER, 1000, 10, 3000), shape(1000, 100, 3000, 10));
        assert_eq!(Shape::of(&READER, 1000, 10, 2999), shape(990, 99, 2970, 10), "100 x 30 do not fit");
        assert_eq!(Shape::of(&DAEMON, 1000, 10, 1432).connections, 1000);
        assert_eq!(Shape::of(&DAEMON, 1000, 10, 1431).connections, 990, "100 x 14 and 32 do not fit");
        assert_eq!(Shape::of(&DAEMON, 8, 100, 29).connections, 0, "not even one does");
        // A device whose queues are small: one connection each.
        assert_eq!(Shape::of(&DAEMON, 8, 100, 57), shape(8, 1, 30, 8));
    }

    proptest! {
        #[test]
        fn a_queue_holds_the_work_of_its_connections_and_there_are_enough_of_them(
            (own, reads, reads_of_all) in (1u32..300, 0u32..300, 0u32..5000),
            wanted in 1u32..6000,
            (queues_max, places_max) in (1u32..5000, 0u32..40_000),
        ) {
            let work = Work { own, reads, reads_of_all };
            let Shape { connections, seats, places, queues } = Shape::of(&work, wanted, queues_max, places_max);
            let under_way = |connections: u32| connections * own + (connections * reads).min(reads_of_all);
            // One more connection in each queue would be too many, so all are there, or no more would find
            // place.
            let most = (0..).take_while(|&seats| under_way(seats) <= places_max).last().unwrap_or(0);
            prop_assert_eq!(connections, wanted.min(most * queues_max));
            if connections > 0 {
                // Some have all their own, and some of them READs, as many as there may be.
                prop_assert_eq!(places, under_way(seats));
                prop_assert!(seats >= 1 && queues * seats >= connections);
                prop_assert!(places <= places_max && queues <= queues_max);
            }
        }
    }
}
