//! A list of peers in the order of their turns.

use crate::index::NONE;
use alloc::boxed::Box;
use alloc::vec;

/// A list of peers, in which each peer is at most once.
#[derive(Debug)]
pub(in super::super) struct Ring {
    head: u32,
    tail: u32,
    len: u32,
    links: Box<[Link]>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    listed: bool,
}

/// A place in a list, behind a peer or at the front. It is valid while that peer stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Place(u32);

impl Place {
    /// Before all peers.
    pub const FRONT: Self = Self(NONE);
}

impl Ring {
    pub fn new(peers: u32) -> Self {
        let unlisted = Link { next: NONE, listed: false };
        Self { head: NONE, tail: NONE, len: 0, links: vec![unlisted; peers as usize].into_boxed_slice() }
    }

    /// Returns the first peer.
    #[inline]
    pub fn head(&self) -> Option<u32> {
        self.at(Place::FRONT)
    }

    /// Returns the peer behind a place.
    #[inline]
    pub fn at(&self, place: Place) -> Option<u32> {
        let peer = if place == Place::FRONT { self.head } else { self.links[place.0 as usize].next };
        (peer != NONE).then_some(peer)
    }

    /// Returns the place behind the next peer; the same place at the end.
    #[inline]
    pub fn behind(&self, place: Place) -> Place {
        self.at(place).map_or(place, Place)
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Puts a peer at the end, if it is not in the list. Returns whether it was put there.
    #[inline]
    pub fn push(&mut self, peer: u32) -> bool {
        let end = if self.tail == NONE { Place::FRONT } else { Place(self.tail) };
        self.insert(end, peer)
    }

    /// Puts a peer at a place, if it is not in the list. Returns whether it was put there.
    #[inline]
    pub fn insert(&mut self, place: Place, peer: u32) -> bool {
        if self.links[peer as usize].listed {
            return false;
        }
        let after = if place == Place::FRONT {
            core::mem::replace(&mut self.head, peer)
        } else {
            core::mem::replace(&mut self.links[place.0 as usize].next, peer)
        };
        self.links[peer as usize] = Link { next: after, listed: true };
        if after == NONE {
            self.tail = peer;
        }
        self.len += 1;
        true
    }

    /// Takes the first peer out of the list.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        self.take(Place::FRONT)
    }

    /// Takes the peer behind a place out of the list.
    #[inline]
    pub fn take(&mut self, place: Place) -> Option<u32> {
        let peer = self.at(place)?;
        let link = &mut self.links[peer as usize];
        link.listed = false;
        let after = link.next;
        if place == Place::FRONT {
            self.head = after;
        } else {
            self.links[place.0 as usize].next = after;
        }
        if after == NONE {
            self.tail = place.0;
        }
        self.len -= 1;
        Some(peer)
    }

    /// Takes a peer out of the list, wherever it is: a search.
    pub fn remove(&mut self, peer: u32) {
        if !self.links[peer as usize].listed {
            return;
        }
        let mut place = Place::FRONT;
        while self.at(place).is_some_and(|other| other != peer) {
            place = self.behind(place);
        }
        self.take(place);
    }

    /// Moves the peers before a place to the end of the list, in their order, but for those that stay.
    pub fn move_to_end(&mut self, place: Place, stays: impl Fn(u32) -> bool) {
        if place == Place::FRONT {
            return;
        }
        let mut at = Place::FRONT;
        // Each peer once at most.
        for _ in 0..self.len {
            let Some(peer) = self.at(at) else { return };
            if stays(peer) {
                at = Place(peer);
            } else {
                self.take(at);
                self.push(peer);
            }
            if Place(peer) == place {
                return;
            }
        }
    }
}

#[cfg(test)]
impl Ring {
    /// Returns whether a peer is in the list.
    pub fn has(&self, peer: u32) -> bool {
        self.links[peer as usize].listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u32),
        Insert(usize, u32),
        Take(usize),
        Remove(u32),
        /// The peers before so many places, and which peers stay.
        MoveToEnd(usize, [bool; 6]),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..6u32).prop_map(Op::Push),
            2 => (0..7usize, 0..6u32).prop_map(|(place, peer)| Op::Insert(place, peer)),
            2 => (0..7usize).prop_map(Op::Take),
            1 => (0..6u32).prop_map(Op::Remove),
            1 => (0..7usize, any::<[bool; 6]>()).prop_map(|(place, stay)| Op::MoveToEnd(place, stay)),
        ]
    }

    /// Returns the place behind so many peers.
    fn place(ring: &Ring, count: usize) -> Place {
        (0..count).fold(Place::FRONT, |place, _| ring.behind(place))
    }

    proptest! {
        #[test]
        fn a_ring_is_a_list_in_which_each_peer_is_once(ops in prop::collection::vec(op(), 1..200)) {
            let mut ring = Ring::new(6);
            let mut model: Vec<u32> = Vec::new();
            for op in ops {
                match op {
                    Op::Push(peer) | Op::Insert(_, peer) if model.contains(&peer) => {
                        prop_assert!(!ring.push(peer));
                        prop_assert!(!ring.insert(Place::FRONT, peer));
                    }
                    Op::Push(peer) => {
                        model.push(peer);
                        prop_assert!(ring.push(peer));
                    }
                    Op::Insert(at, peer) => {
                        let at = at.min(model.len());
                        prop_assert!(ring.insert(place(&ring, at), peer));
                        model.insert(at, peer);
                    }
                    Op::Take(at) => {
                        let at = at.min(model.len());
                        let expected = (at < model.len()).then(|| model.remove(at));
                        prop_assert_eq!(ring.take(place(&ring, at)), expected);
                    }
                    Op::Remove(peer) => {
                        ring.remove(peer);
                        model.retain(|&other| other != peer);
                    }
                    Op::MoveToEnd(at, stay) => {
                        let rest = model.split_off(at.min(model.len()));
                        ring.move_to_end(place(&ring, model.len()), |peer| stay[peer as usize]);
                        let (stays, moved): (Vec<u32>, Vec<u32>) =
                            model.iter().partition(|peer| stay[**peer as usize]);
                        model = [stays, rest, moved].concat();
                    }
                }
                let listed: Vec<u32> =
                    (0..model.len()).map_while(|count| ring.at(place(&ring, count))).collect();
                prop_assert_eq!(ring.at(place(&ring, 6)), None);
                prop_assert_eq!(&listed, &model);
                prop_assert_eq!((ring.len() as usize, ring.head()), (model.len(), model.first().copied()));
                prop_assert!((0..6).all(|peer| ring.has(peer) == model.contains(&peer)));
            }
        }
    }
}
