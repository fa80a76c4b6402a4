//! Send requests that were posted and not yet given to the device.
//!
//! They form one chain for each QP, so that ringing the NIC's doorbell once gives the device the whole chain.

use super::connections::Connection;
use crate::nic::Qp;
use rdma_sys::{ibv_post_send, ibv_qp, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use std::mem::MaybeUninit;

/// Most requests that are gathered. When there is no room for one more, all of them are given to the device.
const BATCH: usize = 64;

/// Gathered requests, and the connections that they belong to.
pub(super) struct Gathered {
    wrs: Box<[MaybeUninit<ibv_send_wr>]>,
    sges: Box<[ibv_sge]>,
    sges_each: usize,
    used: usize,
    /// Indices of the connections that have requests here.
    pub connections: Vec<u32>,
}

/// Operation of a request.
pub(super) enum Verb {
    /// SEND. With `inline` the stretches' addresses are this process's own.
    Send { inline: bool },
    /// READ.
    Read { address: u64, key: u32 },
    /// WRITE of no bytes. It needs no key, and succeeds if the peer is there.
    Probe,
}

impl Gathered {
    /// Makes room for requests with so many scatter entries each.
    pub fn new(sges_each: usize) -> Self {
        Self {
            wrs: (0..BATCH).map(|_| MaybeUninit::zeroed()).collect(),
            sges: vec![ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH * sges_each].into(),
            sges_each,
            used: 0,
            connections: Vec::with_capacity(BATCH),
        }
    }

    pub fn is_full(&self) -> bool {
        self.used == BATCH
    }

    /// Adds a request behind the last of its connection's chain, and returns its place.
    #[inline]
    fn add(
        &mut self,
        id: u64,
        verb: &Verb,
        stretches: impl Iterator<Item = ibv_sge>,
        after: Option<usize>,
    ) -> usize {
        let at = self.used;
        self.used += 1;
        let sges = &mut self.sges[at * self.sges_each..(at + 1) * self.sges_each];
        let mut count = 0;
        for stretch in stretches {
            sges[count] = stretch;
            count += 1;
        }
        let sges = sges.as_mut_ptr();
        // SAFETY: zeros, or a former request: both are values of the structure.
        let wr = unsafe { self.wrs[at].assume_init_mut() };
        wr.wr_id = id;
        wr.next = std::ptr::null_mut();
        wr.sg_list = sges;
        wr.num_sge = i32::try_from(count).expect("scatter entries are few");
        match *verb {
            Verb::Send { inline } => {
                wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
                wr.send_flags = if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
            }
            Verb::Probe => {
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
                wr.wr.rdma = rdma_sys::rdma_t { remote_addr: 0, rkey: 0 };
            }
            Verb::Read { address, key } => {
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
                wr.wr.rdma = rdma_sys::rdma_t { remote_addr: address, rkey: key };
            }
        }
        let this = std::ptr::from_mut(wr);
        if let Some(after) = after {
            // SAFETY: as above.
            unsafe { self.wrs[after].assume_init_mut() }.next = this;
        }
        at
    }

    /// Adds a request to its connection's chain. `position` is its position in the send queue.
    #[inline]
    pub fn chain(
        &mut self,
        qp: Qp,
        connection: &mut Connection,
        position: u32,
        verb: &Verb,
        stretches: impl Iterator<Item = ibv_sge>,
    ) {
        let id = (u64::from(qp.index) << 32) | u64::from(position);
        let at = self.add(id, verb, stretches, connection.gathered.map(|(_, last)| last));
        match &mut connection.gathered {
            Some((_, last)) => *last = at,
            none => {
                *none = Some((at, at));
                self.connections.push(qp.index);
            }
        }
    }

    /// Gives a chain to the device. Its last request is signalled, so that the completion of all is reported.
    ///
    /// The error is an errno of the device.
    ///
    /// # Safety
    /// The QP lives.
    #[inline]
    pub unsafe fn post(&mut self, qp: *mut ibv_qp, first: usize, last: usize) -> Result<(), i32> {
        // SAFETY: both were written by `add`.
        unsafe { self.wrs[last].assume_init_mut() }.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the chain lies within `wrs`, which the device copies; the QP lives, as the caller
        // guarantees.
        match unsafe { ibv_post_send(qp, self.wrs[first].as_mut_ptr(), &mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Forgets all requests. Call it once every chain has been posted.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}
