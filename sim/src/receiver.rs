//! The receiver's process: the real core and driver, on a simulated NIC.

use crate::bells::Bells;
use crate::event::Life;
use crate::scenario::Scenario;
use jet_core::{
    OpenError, PeerId, PeerStats, Receiver, Registration, SessionEnd, SessionId, SessionStats, Standstill,
    Stats,
};
use jet_fabric::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, Nic};
use jet_fabric::sim::{Network, NicId, SimNic};
use jet_reactor::workers::Workers;
use jet_reactor::{
    Application, Driver, EscapeRegion, NewSession, Parts, PoolMemory, ReplyMemory, SessionTicket,
};
use jet_wire::SLAB_BYTES;
use jet_wire::message::HEADER_BYTES;
use jet_wire::message::hello::AppName;
use jet_wire::segment::{AppEnd, SegmentLayout, SegmentShape, app_end, daemon_end};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Address that the receiver listens on.
pub const ADDRESS: &str = "receiver:7450";

/// The receiver's way to an application, beside the segment.
pub struct Way {
    life: Life,
    bells: Bells,
}

impl Application for Way {
    fn wake(&mut self) {
        self.bells.wake_application(self.life);
    }

    fn stands_still(&mut self, standstill: Option<Standstill>) {
        if standstill.is_some() {
            self.bells.wake_application(self.life);
        }
    }

    fn ended(self, end: SessionEnd) {
        self.bells.end_session(self.life, end);
    }
}

/// What an application gets when its session is opened.
pub struct Opened {
    /// Ticket of the session.
    pub ticket: SessionTicket,
    /// The application's end of the segment.
    pub end: AppEnd,
    /// Memory that the segment lies in.
    pub segment: Arc<SharedMemory>,
    /// The pool.
    pub pool: Arc<SharedMemory>,
    /// Escape memory, where there is some.
    pub escape: Option<Arc<SharedMemory>>,
}

/// A process of the receiver.
pub struct ReceiverProcess {
    /// The driver.
    pub driver: Driver<SimNic, Way>,
    /// Its NIC.
    pub nic: NicId,
    /// Sessions whose applications are gone, and of which the driver was not told.
    pub gone: Vec<SessionTicket>,
    /// Whether its NIC is to mark congestion. Only one thread uses it.
    marks: Arc<AtomicBool>,
    /// Whether its workers rang since that was asked.
    rang: Arc<AtomicBool>,
    /// Nanoseconds by which its clock is ahead of the simulation's.
    ahead_ns: u64,
    pool: Arc<SharedMemory>,
    escape: Option<Arc<SharedMemory>>,
    /// Memory for a session that was refused: applications ask again and again.
    unused: Option<Arc<SharedMemory>>,
    shape: SegmentShape,
    peers_max: u32,
    sessions_max: u32,
    sends_at_rest: u32,
    bells: Bells,
}

impl ReceiverProcess {
    /// Starts a process that listens. `incarnation`: which one of them it is.
    ///
    /// # Errors
    /// An error of the system, or of the scenario's numbers.
    pub fn start(
        scenario: &Scenario,
        network: &Network,
        bells: &Bells,
        incarnation: u64,
        now_ns: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let config = scenario.config;
        let mut nic = network.nic(scenario.receiver_nic())?;
        let id = nic.id();
        let memory = |name: &str, bytes| SharedMemory::lazy(name, bytes).map(Arc::new);
        let pool = memory("sim-pool", config.pool_slabs as usize * SLAB_BYTES)?;
        let headers = memory("sim-headers", config.srq_slabs as usize * HEADER_BYTES)?;
        let shape = config.escape_shape();
        let escape_slabs = shape.replace_slabs + shape.memory_slabs;
        let escape = match escape_slabs {
            0 => None,
            slabs => Some(memory("sim-escape", slabs as usize * SLAB_BYTES)?),
        };
        let pool_key = nic.register(&pool, Access::LocalWrite)?;
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let region = match &escape {
            Some(memory) => {
                let key = nic.register(memory, Access::LocalWrite)?;
                Some(EscapeRegion { memory: Arc::clone(memory), key })
            }
            None => None,
        };
        let replies = match config.reply_slots {
            0 => None,
            slots => {
                let memory = memory("sim-replies", slots as usize * SLAB_BYTES)?;
                let key = nic.register(&memory, Access::LocalWrite)?;
                Some(ReplyMemory { memory, key })
            }
        };
        nic.listen(&Address::Rdma(ADDRESS.to_owned()))?;
        let receiver = Receiver::new(config, incarnation).map_err(|error| error.to_string())?;
        let sends_at_rest = receiver.stats().sends_left;
        let marks = Arc::new(AtomicBool::new(false));
        let marks_now = Arc::clone(&marks);
        let rang = Arc::new(AtomicBool::new(false));
        let rings = Arc::clone(&rang);
        let jobs = (config.copies_max + config.reads_max) as usize;
        let parts = Parts {
            nic,
            pool: PoolMemory { pool: Arc::clone(&pool), headers, pool_key, headers_key },
            escape: region,
            replies,
            workers: Workers::stepped(jobs, move || rings.store(true, Ordering::Relaxed))?,
            congestion: Box::new(move |on| marks_now.store(on, Ordering::Relaxed)),
        };
        let mut driver = Driver::new(receiver, parts);
        driver.start(now_ns);
        driver.handle_escape_memory(escape_slabs);
        let shape = SegmentShape::new(config.session_slots, config.session_messages);
        let (peers_max, sessions_max) = (config.peers_max, config.sessions_max);
        Ok(Self {
            driver,
            nic: id,
            gone: Vec::new(),
            marks,
            rang,
            ahead_ns: 0,
            pool,
            escape,
            unused: None,
            shape,
            peers_max,
            sessions_max,
            sends_at_rest,
            bells: bells.clone(),
        })
    }

    /// Opens a session for an application.
    ///
    /// # Errors
    /// [`OpenError`]: the receiver refuses it.
    pub fn open(&mut self, now_ns: u64, life: Life, registration: Registration) -> Result<Opened, OpenError> {
        let bytes = SegmentLayout::new(self.shape).total_bytes();
        let new = || SharedMemory::lazy("sim-session", bytes).expect("memory for a session");
        let segment = self.unused.take().unwrap_or_else(|| Arc::new(new()));
        // SAFETY: the mapping is zeroed and page-aligned, and both ends keep it. These are the only ends:
        // those of a session that was refused are gone, and they wrote only the header.
        let daemon =
            unsafe { daemon_end(segment.base(), segment.bytes(), self.shape) }.expect("large enough");
        // SAFETY: as above.
        let end = unsafe { app_end(segment.base(), segment.bytes()) }.expect("a segment");
        let now_ns = self.clock_ns(now_ns);
        let new = NewSession {
            registration,
            segment: daemon,
            memory: Arc::clone(&segment),
            application: Way { life, bells: self.bells.clone() },
        };
        let ticket = match self.driver.open(now_ns, new) {
            Ok(ticket) => ticket,
            Err(refused) => {
                self.unused = Some(segment);
                return Err(refused);
            }
        };
        let (pool, escape) = (Arc::clone(&self.pool), self.escape.clone());
        Ok(Opened { ticket, end, segment, pool, escape })
    }

    /// Returns the time by the process's clock, in nanoseconds.
    pub fn clock_ns(&self, now_ns: u64) -> u64 {
        now_ns + self.ahead_ns
    }

    /// Lets the process's clock jump ahead.
    pub fn jump(&mut self, network: &Network, span_ns: u64) {
        self.ahead_ns += span_ns;
        network.set_clock_ahead(self.nic, self.ahead_ns);
        // The process measures for how long it was not called by the same clock.
        self.driver.handle_stall(span_ns);
    }

    /// Runs one turn. `was_commanded`: something was asked of the driver since the last one.
    pub fn turn(&mut self, now_ns: u64, was_commanded: bool) -> bool {
        let now_ns = self.clock_ns(now_ns);
        let Self { driver, gone, .. } = self;
        driver.turn(now_ns, |driver| {
            let any_gone = !gone.is_empty();
            for ticket in gone.drain(..) {
                driver.application_gone(now_ns, ticket);
            }
            any_gone || was_commanded
        })
    }

    /// Returns whether the process ends after a turn: its device is gone, or a drain is over.
    pub fn ends(&mut self, now_ns: u64, worked: bool) -> bool {
        let now_ns = self.clock_ns(now_ns);
        if worked && !self.driver.deadline_is_over(now_ns) {
            return false;
        }
        self.driver.nic_is_gone() || self.driver.continue_drain(now_ns)
    }

    /// Prepares to sleep. Returns for how many nanoseconds, where nothing happens; `None`: there is something
    /// to do.
    pub fn sleep(&mut self, now_ns: u64) -> Option<Option<u64>> {
        let now_ns = self.clock_ns(now_ns);
        self.driver.prepare_sleep(now_ns).then(|| self.driver.idle_span_ns(now_ns))
    }

    /// Returns the pool's memory.
    pub fn pool(&self) -> &Arc<SharedMemory> {
        &self.pool
    }

    /// Returns the statistics of each connected sender.
    pub fn peers(&self, now_ns: u64) -> impl Iterator<Item = PeerStats> {
        let clock_ns = self.clock_ns(now_ns);
        let receiver = self.driver.receiver();
        (0..self.peers_max).filter_map(move |peer| receiver.peer_stats(clock_ns, PeerId(peer)))
    }

    /// Returns the statistics of each open session.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStats> {
        let receiver = self.driver.receiver();
        (0..self.sessions_max).filter_map(|session| receiver.session_stats(SessionId(session)))
    }

    /// Returns the slabs in quarantine for faults of those who had a name.
    pub fn slabs_for_faults_of(&self, app: AppName) -> u32 {
        let receiver = self.driver.receiver();
        let all = (0..self.sessions_max).filter_map(|session| receiver.quarantine_stats(SessionId(session)));
        all.filter(|kept| kept.faulted && kept.app == app).map(|kept| kept.held_slabs).sum()
    }

    /// Carries out a job of its workers. Returns whether there was one, and whether they rang.
    pub fn step_workers(&mut self) -> (bool, bool) {
        let any = self.driver.step_workers();
        (any, self.rang.swap(false, Ordering::Relaxed))
    }

    /// Returns whether its NIC is to mark congestion.
    pub fn marks_congestion(&self) -> bool {
        self.marks.load(Ordering::Relaxed)
    }

    /// Returns the SENDs that were left when the process began: so many are left when none is under way.
    pub fn sends_at_rest(&self) -> u32 {
        self.sends_at_rest
    }

    /// Returns the receiver's statistics.
    pub fn stats(&self) -> Stats {
        self.driver.receiver().stats()
    }
}
