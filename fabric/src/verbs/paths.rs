//! Connections that are ready: counted for probing, and reported by the length of their packets.

use super::VerbsNic;
use super::queue_pair::QueuePair;
use super::watch::Path;
use crate::nic::Qp;

/// Number of MTUs in the InfiniBand specification.
const CLASSES: usize = 5;
const BYTES_LEAST: u32 = 256;

/// Number of connections for each path MTU: 256 bytes first, then twice as many each.
#[derive(Debug, Default)]
pub(super) struct Paths([u32; CLASSES]);

impl Paths {
    /// Counts one more connection with packets of so many bytes.
    fn begin(&mut self, bytes: u32) {
        self.0[class_of(bytes)] += 1;
    }

    /// Counts one connection less.
    fn end(&mut self, bytes: u32) {
        self.0[class_of(bytes)] -= 1;
    }

    /// Returns the MTUs that connections have, the shortest packets first.
    fn each(&self) -> Vec<Path> {
        let paths = self.0.iter().enumerate().filter(|(_, connections)| **connections > 0);
        let told = paths.map(|(class, connections)| Path {
            packet_bytes: BYTES_LEAST << class,
            connections: *connections,
        });
        told.collect()
    }
}

fn class_of(bytes: u32) -> usize {
    ((bytes / BYTES_LEAST).max(1).ilog2() as usize).min(CLASSES - 1)
}

impl VerbsNic {
    /// Counts a connection that is ready: it is probed from now on, and reported with its packets' length.
    pub(super) fn count_in(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if std::mem::replace(&mut connection.is_counted, true) {
            return;
        }
        self.probing.begin(qp.index);
        // A connection counts even if the device does not say how long its packets are.
        if let Some(path) = connection.pair.as_ref().and_then(QueuePair::path) {
            connection.path = Some(path.bytes);
            self.paths.begin(path.bytes);
            self.update_paths();
            if self.surveying.is_news(path.standing) {
                // The path's state of the port is already old, so it is not what is reported.
                self.begin_survey(false);
            }
        }
    }

    /// Stops counting a connection as ready.
    pub(super) fn count_out(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if std::mem::take(&mut connection.is_counted) {
            self.probing.end(qp.index);
        }
        if let Some(bytes) = connection.path.take() {
            self.paths.end(bytes);
            self.update_paths();
        }
    }

    fn update_paths(&self) {
        self.watch.update(|status| status.paths = self.paths.each());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mtu_of_the_specification_has_its_place() {
        assert_eq!([256, 512, 1024, 2048, 4096].map(class_of), [0, 1, 2, 3, 4]);
        assert_eq!((class_of(0), class_of(8192)), (0, 4));
    }

    #[test]
    fn connections_are_told_by_their_packets_while_they_stand() {
        let mut paths = Paths::default();
        assert_eq!(paths.each(), []);
        [4096, 1024, 4096].into_iter().for_each(|bytes| paths.begin(bytes));
        let path = |packet_bytes, connections| Path { packet_bytes, connections };
        assert_eq!(paths.each(), [path(1024, 1), path(4096, 2)]);
        paths.end(1024);
        assert_eq!(paths.each(), [path(4096, 2)]);
    }
}
