//! How connections share completion queues for what they post.
//!
//! One queue for all connections would need a place for everything that all of them can have under way. Such
//! a queue takes megabytes. Its completions fill them one place after the other, and so would take cache that
//! Jet keeps for its pool. A queue for each connection would cost one more command to the device with every
//! connection. So a few connections share a queue.

/// Places of a completion queue that a few connections share.
///
/// libibverbs' providers add one place and round up to a power of two (rxe_queue.c; mlx5's `create_cq`). 128
/// places are 8 KiB with mlx5's 64 bytes, and 16 KiB with rxe's 128.
const PLACES: u32 = 127;

/// Work that a connection can have under way, each piece with a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// SENDs and probes of one connection; at least one.
    pub own: u32,
    /// READs of one connection.
    pub reads: u32,
    /// READs of all connections together.
    pub reads_of_all: u32,
}

impl Work {
    /// Returns the most completions that so many connections can have at once.
    fn of(&self, connections: u32) -> u32 {
        let reads = connections.saturating_mul(self.reads).min(self.reads_of_all);
        connections.saturating_mul(self.own).saturating_add(reads)
    }

    /// Returns the most connections whose completions fit into so many places.
    fn fit(&self, places: u32) -> u32 {
        // READs are bounded by each connection's own limit, or by the limit of all together.
        (places / (self.own + self.reads)).max(places.saturating_sub(self.reads_of_all) / self.own)
    }
}

/// Distribution of connections over completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Connections that can be open at once.
    pub connections: u32,
    /// Connections that share a queue.
    pub seats: u32,
    /// Places of a queue, enough for all that its connections can have under way.
    pub places: u32,
    /// Number of queues when all connections are open.
    pub queues: u32,
}

impl Shape {
    /// Distributes so many connections, each with so much work, over at most so many queues of at most so
    /// many places.
    ///
    /// Where not all connections find places, the result has only as many as do. A queue takes few
    /// connections, unless so many queues would then be too few. `queues` is at least one.
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

    /// Work of a daemon's connection: 12 control messages and a farewell, a probe, and 16 READs. The daemon
    /// makes 32 READs at once.
    const DAEMON: Work = Work { own: 14, reads: 16, reads_of_all: 32 };
    /// Work of a sender's connection: 128 SENDs and a probe.
    const SENDER: Work = Work { own: 129, reads: 0, reads_of_all: 4 };
    /// Work of a connection of a daemon whose READs are limited by each connection alone.
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
        // A device with small queues: one connection in each.
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
            let Shape { connections, seats, places, queues } =
                Shape::of(&work, wanted, queues_max, places_max);
            let under_way = |connections: u32| connections * own + (connections * reads).min(reads_of_all);
            // Either all connections are there, or one more in each queue would be too many.
            let most = (0..).take_while(|&seats| under_way(seats) <= places_max).last().unwrap_or(0);
            prop_assert_eq!(connections, wanted.min(most * queues_max));
            if connections > 0 {
                // Each queue has places for its connections' own work, and for as many READs as they can
                // have.
                prop_assert_eq!(places, under_way(seats));
                prop_assert!(seats >= 1 && queues * seats >= connections);
                prop_assert!(places <= places_max && queues <= queues_max);
            }
        }
    }
}
