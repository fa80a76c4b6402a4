//! A reactor in this process, which a benchmark drives itself: the daemon's receiver and NIC without the
//! daemon, its control plane and its thread.

use jet_client::receive::{Session, SessionParts};
use jet_control::ControlConnection;
use jet_control::connection::ANSWER_TIMEOUT;
use jet_core::{Config, Receiver, Registration, SessionEnd, Standstill};
use jet_fabric::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, Nic};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::unix::Doorbell;
use jet_reactor::workers::Workers;
use jet_reactor::{Application, Driver, NewSession, Parts, PoolMemory};
use jet_wire::SLAB_BYTES;
use jet_wire::message::HEADER_BYTES;
use jet_wire::message::hello::AppName;
use jet_wire::segment::{SegmentLayout, SegmentShape, daemon_end};
use std::error::Error;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// An application that is never woken: nothing is delivered to it, or it does not sleep.
pub struct Awake;

impl Application for Awake {
    fn wake(&mut self) {}

    fn stands_still(&mut self, _standstill: Option<Standstill>) {}

    fn ended(self, _end: SessionEnd) {}
}

/// A reactor of this thread, with one session.
pub struct OwnReactor {
    /// The reactor's driver, which has started.
    pub driver: Driver<SoftNic, Awake>,
    /// The address at which its NIC listens.
    pub address: Address,
    /// The pool's memory.
    pub pool: Arc<SharedMemory>,
    /// Number of slabs in the pool.
    pub pool_slabs: u32,
    /// The memory of the session's segment.
    pub segment: Arc<SharedMemory>,
    /// Ends of the application's doorbell and control connection, which stay open.
    far_ends: Option<(Doorbell, UnixStream)>,
}

impl OwnReactor {
    /// Starts a reactor that listens at `address` for `peers` senders to the application `app`, with the
    /// daemon's defaults else. `now_ns` begins the time that its turns are given.
    ///
    /// # Errors
    /// An error of the system, or of the receiver.
    pub fn start(address: &Address, peers: usize, app: &str, now_ns: u64) -> Result<Self, Box<dyn Error>> {
        let peers_max = u32::try_from(peers)? + 1;
        let config = Config { peers_max, ..Config::default() };
        let mut nic = SoftNic::new(SoftOptions {
            qps_max: 2 * peers_max,
            strangers_max: peers_max,
            ..SoftOptions::default()
        })?;
        let mapped = |name, bytes| SharedMemory::new(name, bytes, false).map(Arc::new);
        let pool_slabs = config.pool_slabs;
        let pool = mapped("jet-bench-pool", pool_slabs as usize * SLAB_BYTES)?;
        let headers = mapped("jet-bench-headers", config.srq_slabs as usize * HEADER_BYTES)?;
        let pool_key = nic.register(&pool, Access::LocalWrite)?;
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let address = nic.listen(address)?;
        let shape = SegmentShape::new(config.session_slots, config.session_messages);
        let memory = mapped("jet-bench-session", SegmentLayout::new(shape).total_bytes())?;
        // SAFETY: the mapping is zeroed and page-aligned, and the session keeps it for as long as the end.
        let segment = unsafe { daemon_end(memory.base(), memory.bytes(), shape) }?;
        let parts = Parts {
            nic,
            pool: PoolMemory { pool: Arc::clone(&pool), headers, pool_key, headers_key },
            escape: None,
            replies: None,
            workers: Workers::start(0, 1, || ())?,
            congestion: Box::new(|_| ()),
        };
        let mut driver = Driver::new(Receiver::new(config, 1)?, parts);
        driver.start(now_ns);
        let session = NewSession {
            registration: Registration::new(AppName::new(app)?),
            segment,
            memory: Arc::clone(&memory),
            application: Awake,
        };
        driver.open(now_ns, session).map_err(|_| "the receiver has no place for a session")?;
        Ok(Self { driver, address, pool, pool_slabs, segment: memory, far_ends: None })
    }

    /// Returns the application's end of the reactor's session. No control plane stands behind it, and no bell
    /// rings: whoever has it polls.
    ///
    /// # Errors
    /// An error of the system or of the session.
    pub fn session(&mut self) -> Result<Session, Box<dyn Error>> {
        let (bell, far_bell) = Doorbell::pair()?;
        let (near, far) = UnixStream::pair()?;
        self.far_ends = Some((far_bell, far));
        let parts = SessionParts {
            number: 1,
            pool: self.pool.as_fd().try_clone_to_owned()?,
            pool_bytes: self.pool.bytes() as u64,
            pool_slabs: self.pool_slabs,
            segment: self.segment.as_fd().try_clone_to_owned()?,
            doorbell: bell.as_fd().try_clone_to_owned()?,
            escape: None,
        };
        let control = ControlConnection::from_stream(near, ANSWER_TIMEOUT)?;
        Ok(Session::assemble(control, parts, Duration::ZERO)?)
    }
}
