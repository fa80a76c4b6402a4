//! Test set-up: the effect handler, and a sender's NIC at the other end of a connection.

use crate::application::Application;
use crate::effect_handler::{EffectHandler, Parts};
use crate::memory::{EscapeRegion, PoolMemory};
use crate::workers::Workers;
use jet_core::pool::Run;
use jet_core::{Commands, PeerId, ReadId, Remote, SessionEnd, Standstill};
use jet_fabric::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion, Event, MemoryKey, Nic, PrivateData, Qp, Sge, SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_wire::message::hello::AppName;
use jet_wire::message::{CreditHeader, HEADER_BYTES, HeaderBytes};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAIT_LIMIT: Duration = Duration::from_secs(30);
pub(crate) const PEER: PeerId = PeerId(0);

/// An application of a test, which ignores that it is woken.
pub(crate) struct Silent;

impl Application for Silent {
    fn wake(&mut self) {}
    fn stands_still(&mut self, _: Option<Standstill>) {}
    fn ended(self, _: SessionEnd) {}
}

/// The effect handler on a software NIC that takes one READ and one SEND a connection, and a sender's NIC
/// with a region that can be READ.
pub(crate) struct Pair {
    pub(crate) handler: EffectHandler<SoftNic, Silent>,
    sender: SoftNic,
    pub(crate) remote: Remote,
    /// Memory where the sender's NIC puts headers, and its key.
    taken: (Arc<SharedMemory>, MemoryKey),
    pub(crate) config: jet_core::Config,
    pub(crate) qp: Qp,
    address: Address,
    /// Start of the time that the NICs are polled with. A connection that ends waits for its peer only for a
    /// limited time, so the time must advance.
    began: Instant,
    _folder: tempfile::TempDir,
}

/// Completion or event of the effect handler's NIC.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Read(u64, Status),
    Sent(Status),
    Disconnected,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let config = jet_core::Config { peers_max: 4, sessions_max: 1, ..jet_core::Config::default() };
        Self::with(config, config.pool_slabs as usize * jet_wire::SLAB_BYTES, None)
    }

    /// Makes a pair with `pool_bytes` of memory for the pool, and `escape_bytes` for escape memory if there
    /// is to be any.
    pub(crate) fn with(config: jet_core::Config, pool_bytes: usize, escape_bytes: Option<usize>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("shm:{}", folder.path().join("nic.sock").display()).parse::<Address>().unwrap();
        let one = SoftOptions { reads_per_qp_max: 1, sends_per_qp_max: 1, ..SoftOptions::default() };
        let mut nic = SoftNic::new(one).unwrap();
        nic.listen(&address).unwrap();
        let mut sender = SoftNic::new(SoftOptions::default()).unwrap();
        let memory = Arc::new(SharedMemory::new("test-sender", 1 << 20, false).unwrap());
        let key = sender.register(&memory, Access::RemoteRead).unwrap();
        let remote = Remote { address: sender.remote_address(key, 0), key: key.0 };
        let headers = Arc::new(SharedMemory::new("test-taken", 4096, false).unwrap());
        let headers_key = sender.register(&headers, Access::LocalWrite).unwrap();
        let taken = (headers, headers_key);
        let qp = connect(&mut sender, &mut nic, &address);
        let mapped = |name, bytes| Arc::new(SharedMemory::new(name, bytes, false).unwrap());
        let pool = mapped("test-pool", pool_bytes);
        let headers = mapped("test-headers", config.srq_slabs as usize * HEADER_BYTES);
        let pool_key = nic.register(&pool, Access::LocalWrite).unwrap();
        let headers_key = nic.register(&headers, Access::LocalWrite).unwrap();
        let workers = Workers::start(0, 1, || ()).unwrap();
        let escape = escape_bytes.map(|bytes| {
            let memory = mapped("test-escape", bytes);
            let key = nic.register(&memory, Access::LocalWrite).unwrap();
            EscapeRegion { memory, key }
        });
        let pool = PoolMemory { pool, headers, pool_key, headers_key };
        let parts = Parts { nic, pool, escape, replies: None, workers, congestion: Box::new(|_| ()) };
        let mut handler = EffectHandler::new(parts, &config);
        handler.peers.bind(qp, PEER, AppName::new("store").unwrap());
        Self { handler, sender, remote, taken, config, qp, address, began: Instant::now(), _folder: folder }
    }

    /// Connects a second sender's NIC, as this peer.
    pub(crate) fn join(&mut self, peer: PeerId) -> SoftNic {
        let mut sender = SoftNic::new(SoftOptions::default()).unwrap();
        let qp = connect(&mut sender, &mut self.handler.nic, &self.address);
        self.handler.peers.bind(qp, peer, AppName::new("store").unwrap());
        sender
    }

    pub(crate) fn read(&mut self, id: u32, slab: u32) {
        self.read_of(PEER, id, slab);
    }

    pub(crate) fn read_of(&mut self, peer: PeerId, id: u32, slab: u32) {
        self.handler.post_read(peer, ReadId(id), self.remote, 4096, &[Run { first: slab, count: 1 }]);
    }

    /// Makes the handler send a header that gives this credit. The credit identifies the header.
    pub(crate) fn send(&mut self, credit_limit: u64) {
        self.handler.send(PEER, &CreditHeader::encode(credit_limit, false));
    }

    /// Makes the sender's NIC take one more header, into this entry.
    pub(crate) fn take(&mut self, entry: u32) {
        let bytes = u32::try_from(HEADER_BYTES).unwrap();
        let header = Sge { key: self.taken.1, offset: u64::from(entry * bytes), bytes };
        self.sender.post_srq(SrqEntry { id: entry, header, payload: None }).unwrap();
    }

    /// Returns the header that the sender's NIC took into an entry.
    pub(crate) fn took(&self, entry: usize) -> HeaderBytes {
        assert!((entry + 1) * HEADER_BYTES <= self.taken.0.bytes());
        // SAFETY: within the area, and the SEND that filled the entry has completed.
        unsafe { self.taken.0.base().add(entry * HEADER_BYTES).cast::<HeaderBytes>().read() }
    }

    /// Returns the next completion or event of the effect handler's NIC.
    pub(crate) fn next(&mut self) -> Seen {
        let Self { handler, sender, began, .. } = self;
        until(|| {
            let now_ns = u64::try_from(began.elapsed().as_nanos()).unwrap();
            sender.poll(now_ns, &mut []);
            while sender.poll_event(now_ns).is_some() {}
            let none = Completion { qp: self.qp, work: Work::Send { id: 0 }, status: Status::Success };
            let mut completions = [none];
            if handler.nic.poll(now_ns, &mut completions) == 1 {
                let [Completion { work, status, .. }] = completions;
                return match work {
                    Work::Read { id } => {
                        handler.posting.read_completed();
                        Some(Seen::Read(id, status))
                    }
                    Work::Send { id } => {
                        handler.peers.send_completed(PeerId(u32::try_from(id).unwrap()));
                        Some(Seen::Sent(status))
                    }
                    _ => None,
                };
            }
            matches!(handler.nic.poll_event(now_ns), Some(Event::Disconnected { .. }))
                .then_some(Seen::Disconnected)
        })
    }
}

/// Connects a sender's NIC. Returns the QP at the other end.
fn connect(sender: &mut SoftNic, nic: &mut SoftNic, address: &Address) -> Qp {
    let nothing = PrivateData::new(&[]).unwrap();
    sender.connect(address, &nothing).unwrap();
    until(|| {
        sender.poll(0, &mut []);
        nic.poll(0, &mut []);
        let _ = sender.poll_event(0);
        match nic.poll_event(0) {
            Some(Event::ConnectRequest { qp, .. }) => {
                nic.accept(qp, &nothing).unwrap();
                None
            }
            Some(Event::Connected { qp, .. }) => Some(qp),
            _ => None,
        }
    })
}

fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing came in {WAIT_LIMIT:?}");
    }
}
