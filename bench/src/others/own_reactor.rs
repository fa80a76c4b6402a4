//! The loss of a crowd at a reactor in this process. Its turns are timed by the thread's processor time: so a
//! row is what the reactor itself does in its longest turn, whatever else has the core meanwhile.
//!
//! Processor time includes what the kernel does for the reactor, as closing its sockets. It does not include
//! the end of the crowd's process.

use super::crowd::{Crowd, How};
use super::{LIMIT, PartRows, Plan, milliseconds};
use crate::own_reactor::OwnReactor;
use crate::processor_time;
use crate::report::Bound;
use jet_fabric::Address;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// Name of the application that the crowd sends to. It reads nothing.
const APPLICATION: &str = "crowd";

/// Least span in which the longest turn is looked for.
const SPAN: Duration = Duration::from_millis(300);

/// A reactor of this thread, and its clock.
struct Timed {
    reactor: OwnReactor,
    began: Instant,
}

impl Timed {
    /// Starts a reactor for `peers` senders over `tcp:`.
    fn start(peers: usize) -> Result<Self, Box<dyn Error>> {
        let reactor = OwnReactor::start(&"tcp:127.0.0.1:0".parse()?, peers, APPLICATION, 0)?;
        Ok(Self { reactor, began: Instant::now() })
    }

    /// Returns the host:port at which the NIC listens.
    fn host_and_port(&self) -> Result<&str, Box<dyn Error>> {
        match &self.reactor.address {
            Address::Tcp(address) => Ok(address),
            _ => Err("not a tcp: address".into()),
        }
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
            self.reactor.driver.turn(now_ns, |_| false);
            longest = longest.max(processor_time::own_thread().saturating_sub(before));
        }
        Ok(longest)
    }

    fn peers(&self) -> u32 {
        self.reactor.driver.receiver().stats().peers
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
        let mut reactor = Timed::start(peers)?;
        let mut crowd = Crowd::begin(reactor.host_and_port()?, APPLICATION, peers, How::Requested)?;
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
