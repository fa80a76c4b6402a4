//! Peers of one source that send to one application, by a number that they share.

use crate::effects::SourceId;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::hello::AppName;

type Name = (SourceId, AppName);

/// The groups of all peers. A group lives as long as one of its peers.
#[derive(Debug)]
pub(super) struct Groups {
    groups: BTreeMap<Name, Group>,
    /// Numbers that no group has.
    free: Vec<u32>,
    /// Name and number of each peer's group.
    of_peers: Box<[Option<(Name, u32)>]>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    peers: u32,
    number: u32,
}

impl Groups {
    /// Creates the groups of so many peers. Their numbers are below that.
    pub fn new(peers: u32) -> Self {
        Self {
            groups: BTreeMap::new(),
            free: (0..peers).rev().collect(),
            of_peers: vec![None; peers as usize].into_boxed_slice(),
        }
    }

    /// Puts a peer, which is in no group, into that of its source and application.
    pub fn join(&mut self, peer: u32, source: SourceId, app: AppName) {
        debug_assert!(self.of_peers[peer as usize].is_none(), "it left before");
        let name = (source, app);
        let new = || Group { peers: 0, number: self.free.pop().expect("no more groups than peers") };
        let group = self.groups.entry(name).or_insert_with(new);
        group.peers += 1;
        self.of_peers[peer as usize] = Some((name, group.number));
    }

    /// Takes a peer out of its group.
    pub fn leave(&mut self, peer: u32) {
        let Some((name, number)) = self.of_peers[peer as usize].take() else { return };
        if let Some(group) = self.groups.get_mut(&name) {
            group.peers -= 1;
            if group.peers == 0 {
                self.groups.remove(&name);
                self.free.push(number);
            }
        }
    }

    /// Returns the number of a peer's group.
    #[inline]
    pub fn of(&self, peer: u32) -> Option<usize> {
        self.of_peers[peer as usize].map(|(_, number)| number as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_one_source_and_application_have_one_number_while_one_of_them_is_there() {
        let [store, logs] = ["store", "logs"].map(|app| AppName::new(app).unwrap());
        let mut groups = Groups::new(4);
        groups.join(0, SourceId(1), store);
        groups.join(1, SourceId(1), store);
        groups.join(2, SourceId(1), logs);
        groups.join(3, SourceId(2), store);
        let numbers: Vec<_> = (0..4).map(|peer| groups.of(peer).unwrap()).collect();
        assert_eq!(numbers[0], numbers[1]);
        assert!(numbers[2] != numbers[0] && numbers[3] != numbers[0] && numbers[2] != numbers[3]);
        groups.leave(0);
        groups.leave(0);
        assert_eq!((groups.of(0), groups.of(1)), (None, Some(numbers[1])));
        groups.join(0, SourceId(1), store);
        assert_eq!(groups.of(0), groups.of(1));
        (0..4).for_each(|peer| groups.leave(peer));
        assert!(groups.groups.is_empty());
        groups.free.sort_unstable();
        assert_eq!(groups.free, [0, 1, 2, 3]);
    }
}
