//! The loss of a crowd at a reactor in this process. Its turns are timed by the thread's processor time: so a
//! row is what the reactor itself does in its longest turn, whatever else has the core meanwhile.
//!
//! Processor time includes what the kernel does for the reactor, as closing its sockets. It does not include
//! the end of the crowd's process.

use super::crowd::{Crowd, How};
use super::{LIMIT, PartRows, Plan, milliseconds};
use crate::processor_time;
use crate::report::Bound;
use jet_core::{Config, Receiver, Registration, SessionEnd, Standstill};
use jet_fabric::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, Nic};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_reactor::workers::Workers;
use jet_reactor::{Application, Driver, NewSession, Parts, PoolMemory};
use jet_wire::SLAB_BYTES;
use jet_wire::message::HEADER_BYTES;
use jet_wire::message::hello::AppName;
use jet_wire::segment::{SegmentLayout, SegmentShape, daemon_end};
use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Name of the application that the crowd sends to. It reads nothing.
const APPLICATION: &str = "crowd";

/// Least span in which the longest turn is looked for.
const SPAN: Duration = Duration::from_millis(300);

/// An application that is never woken, because nothing is delivered to it.
struct Idle;

impl Application for Idle {
    fn wake(&mut self) {}

    fn stands_still(&mut self, _standstill: Option<Standstill>) {}

    fn ended(self, _end: SessionEnd) {}
}

/// A reactor of this thread.
struct Reactor {
    driver: Driver<SoftNic, Idle>,
    /// The host:port at which the NIC listens.
    address: String,
    began: Instant,
}

impl Reactor {
    /// Starts a reactor for `peers` senders over `tcp:`, with the daemon's defaults else.
    fn start(peers: usize) -> Result<Self, Box<dyn Error>> {
        let peers_max = u32::try_from(peers)? + 1;
        let config = Config { peers_max, ..Config::default() };
        let mut nic = SoftNic::new(SoftOptions {
            qps_max: 2 * peers_max,
            strangers_max: peers_max,
            ..SoftOptions::default()
        })?;
        let mapped = |name, bytes| SharedMemory::new(name, bytes, false).map(Arc::new);
        let pool = mapped("jet-bench-pool", config.pool_slabs as usize * SLAB_BYTES)?;
        let headers = mapped("jet-bench-headers", config.srq_slabs as usize * HEADER_BYTES)?;
        let pool_key = nic.register(&pool, Access::LocalWrite)?;
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let Address::Tcp(address) = nic.listen(&"tcp:127.0.0.1:0".parse()?)? else {
            return Err("not a tcp: address".into());
        };
        let shape = SegmentShape::new(config.session_slots, config.session_messages);
        let memory = mapped("jet-bench-session", SegmentLayout::new(shape).total_bytes())?;
        // SAFETY: the mapping is zeroed and page-aligned, and the session keeps it for as long as the end.
        let segment = unsafe { daemon_end(memory.base(), memory.bytes(), shape) }?;
        let parts = Parts {
            nic,
            pool: PoolMemory { pool, headers, pool_key, headers_key },
            escape: None,
            replies: None,
            workers: Workers::start(0, 1, || ())?,
            congestion: Box::new(|_| ()),
        };
        let mut driver = Driver::new(Receiver::new(config, 1)?, parts);
        driver.start(0);
        let session = NewSession {
            registration: Registration::new(AppName::new(APPLICATION)?),
            segment,
            memory,
            application: Idle,
        };
        driver.open(session).map_err(|_| "the receiver has no place for a session")?;
        Ok(Self { driver, address, began: Instant::now() })
    }

    /// Makes turns until the condition holds. Returns the longest turn among them.
    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) -> Result<Duration, Box<dyn Error>> {
        let mut longest = Duration::ZERO;
        let deadline = Instant::now() + LIMIT;
        while !is_so(self) {
            if Instant::now() > deadline {
                return Err("the crowd neither comes nor goes".into());
            }
            let now_ns = u64::try_from(self.began.elapsed().as_nanos())?;
            let before = processor_time::own_thread();
            self.driver.turn(now_ns, |_| false);
            longest = longest.max(processor_time::own_thread().saturating_sub(before));
        }
        Ok(longest)
    }

    fn peers(&self) -> u32 {
        self.driver.receiver().stats().peers
    }
}

/// Adds the rows: the longest turn while a crowd of `peers` senders stays, and while it is lost.
pub(super) fn rows(
    plan: &Plan<'_>,
    peers: usize,
    bound: Bound,
    part: &mut PartRows<'_>,
) -> Result<(), Box<dyn Error>> {
    let (mut stays_ms, mut lost_ms) = (Vec::new(), Vec::new());
    for _ in plan.turns("loss, at a reactor of this process") {
        let mut reactor = Reactor::start(peers)?;
        let mut crowd = Crowd::begin(&reactor.address, APPLICATION, peers, How::Requested)?;
        thread::scope(|threads| {
            let done = threads.spawn(|| crowd.wait_until_done());
            reactor.until(|_| done.is_finished())?;
            done.join().expect("it does not panic").map_err(Box::<dyn Error>::from)
        })?;
        let until = Instant::now() + SPAN;
        stays_ms.push(milliseconds(reactor.until(|_| Instant::now() > until)?));
        // All of them are lost before the reactor's next turn.
        crowd.end()?;
        let until = Instant::now() + SPAN;
        lost_ms.push(milliseconds(reactor.until(|reactor| Instant::now() > until && reactor.peers() == 0)?));
    }
    part.timed(
        "a reactor's longest turn, processor time, while 1000 peers stay",
        "ms",
        stays_ms,
        Bound::None,
    );
    part.timed("a reactor's longest turn, processor time, while 1000 peers are lost", "ms", lost_ms, bound);
    Ok(())
}
