//! The stage of a part: a daemon that listens over `shm:` and `tcp:`, an application for good senders, one
//! for bad ones, and what must hold when everybody has left.

use super::bad_sender::Ends;
use super::good_sender::{GoodSender, Messages};
use super::{LIMIT, PartRows, Plan};
use crate::consumer::{Order, Reading, Taken};
use crate::report::Bound;
use crate::rig::{BOTH_FABRICS, ConsumerProcess, Rig};
use jet_control::status::Status;
use std::error::Error;
use std::time::{Duration, Instant};

/// The application that good senders send to.
const GOOD: &str = "good";
/// The application that bad senders send to.
pub const BAD: &str = "bad";
/// Time between two looks at the daemon.
const LOOK: Duration = Duration::from_millis(2);

/// A daemon and its two applications. Their processes end when this is dropped.
pub struct Stage {
    good_app: ConsumerProcess,
    bad_app: ConsumerProcess,
    /// The daemon.
    pub rig: Rig,
    /// The daemon's open descriptors before any sender connected.
    descriptors: usize,
    good: Ends,
    bad: Ends,
}

/// What is left at the daemon when every sender has gone.
#[derive(Clone, Copy, Debug)]
struct Left {
    senders: u32,
    slabs: u32,
    reads: u32,
    messages: u32,
    /// Open descriptors beyond those before the first sender.
    descriptors: usize,
}

impl Left {
    fn is_nothing(&self) -> bool {
        matches!(self, Self { senders: 0, slabs: 0, reads: 0, messages: 0, descriptors: 0 })
    }
}

impl Stage {
    /// Starts the processes.
    ///
    /// # Errors
    /// An error of the rig.
    pub fn start(plan: &Plan<'_>) -> Result<Self, Box<dyn Error>> {
        let rig = Rig::start_daemon(BOTH_FABRICS, plan.settings)?;
        let good_app = ConsumerProcess::start(&rig, GOOD, Reading::FirstOfSlab)?;
        let bad_app = ConsumerProcess::start(&rig, BAD, Reading::Every)?;
        let (good, bad) = (Ends::default(), Ends::default());
        let mut stage = Self { good_app, bad_app, rig, descriptors: 0, good, bad };
        stage.descriptors = stage.settled_descriptors()?;
        Ok(stage)
    }

    /// Connects a good sender over a fabric.
    ///
    /// # Errors
    /// An error of the rig or the sender.
    pub fn good_sender(&self, fabric: &str, messages: Messages) -> Result<GoodSender, Box<dyn Error>> {
        GoodSender::connect(self.rig.address_over(fabric)?, GOOD, messages)
    }

    /// Takes the ends of a good sender that has sent its last message, and disconnects it.
    ///
    /// # Errors
    /// The sender's error, or that its messages do not end.
    pub fn dismiss(&mut self, mut sender: GoodSender) -> Result<(), Box<dyn Error>> {
        sender.drain()?;
        self.good.add(&sender.ends());
        Ok(())
    }

    /// Takes note of the ends of a bad sender's messages.
    pub fn note_bad(&mut self, ends: &Ends) {
        self.bad.add(ends);
    }

    /// Waits until so many senders are connected.
    ///
    /// # Errors
    /// The daemon does not answer, or it takes too long.
    pub fn until_senders(&self, senders: u32) -> Result<(), Box<dyn Error>> {
        self.until(&format!("{senders} senders to be connected"), |status| status.peer_count == senders)
    }

    fn until(&self, what: &str, done: impl Fn(&Status) -> bool) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let status = self.rig.status()?;
            if done(&status) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let senders = status.peer_count;
                return Err(format!("waited {LIMIT:?} for {what}; the daemon has {senders}").into());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn open_descriptors(&self) -> std::io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.rig.daemon_pid()))?.count())
    }

    /// Returns the number of the daemon's open descriptors once the control connections of this process are
    /// closed at both ends: the least of some looks.
    fn settled_descriptors(&self) -> std::io::Result<usize> {
        let mut least = usize::MAX;
        for _ in 0..10 {
            least = least.min(self.open_descriptors()?);
            std::thread::sleep(LOOK);
        }
        Ok(least)
    }

    /// Waits until the daemon's open descriptors are as many as before the first sender.
    ///
    /// # Errors
    /// An error of `/proc`, or it takes too long.
    pub fn until_forgotten(&self) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        while self.open_descriptors()? > self.descriptors {
            if Instant::now() > deadline {
                return Err(format!("waited {LIMIT:?} for the daemon to close connections that ended").into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn left(&self) -> Result<Left, Box<dyn Error>> {
        let Status { pool, reads, messages, peer_count, .. } = self.rig.status()?;
        Ok(Left {
            senders: peer_count,
            slabs: pool.slabs - pool.retired - pool.free - pool.posted,
            reads: reads.in_flight,
            messages: messages.known,
            descriptors: self.settled_descriptors()?.saturating_sub(self.descriptors),
        })
    }

    /// Adds the rows that hold on any machine. Everybody has left; `bad_least`: messages that bad senders
    /// sent at least.
    ///
    /// # Errors
    /// The daemon or an application does not answer, as where it died.
    pub fn finish(mut self, part: &mut PartRows<'_>, bad_least: u64) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        let mut left = self.left()?;
        while !left.is_nothing() && Instant::now() < deadline {
            left = self.left()?;
        }
        let good = self.good_app.order(Order::Report)?.taken;
        let bad = self.bad_app.order(Order::Report)?.taken;
        #[allow(clippy::cast_precision_loss)] // millions
        let number = |count: u64| count as f64;
        let Ends { sent, consumed, otherwise, .. } = self.good;
        part.exact("good messages sent", "messages", number(sent), Bound::AtLeast(1.0));
        let unacknowledged = number((sent - consumed).max(otherwise));
        let nothing = Bound::AtMost(0.0);
        part.exact("good messages not acknowledged", "messages", unacknowledged, nothing);
        let lost = number(lost_or_damaged(&self.good, &good));
        part.exact("good messages lost or damaged", "messages", lost, nothing);
        if bad_least > 0 {
            let (came, least) = (number(self.bad.consumed), Bound::AtLeast(number(bad_least)));
            part.exact("bad senders' messages, acknowledged once they may", "messages", came, least);
            let lost = number(lost_or_damaged(&self.bad, &bad) + self.bad.sent - self.bad.consumed);
            let metric = "bad senders' messages lost or damaged, every word checked";
            part.exact(metric, "messages", lost, nothing);
        }
        let Left { senders, slabs, reads, messages, descriptors } = left;
        part.exact("left at the end: senders", "senders", f64::from(senders), nothing);
        part.exact("left at the end: slabs in use", "slabs", f64::from(slabs), nothing);
        part.exact("left at the end: READs", "READs", f64::from(reads), nothing);
        part.exact("left at the end: messages", "messages", f64::from(messages), nothing);
        part.exact("left at the end: descriptors", "descriptors", number(descriptors as u64), nothing);
        Ok(())
    }
}

/// Returns how many messages that senders know as consumed were not taken whole and intact by the
/// application, or were taken and are not known as consumed.
fn lost_or_damaged(ends: &Ends, taken: &Taken) -> u64 {
    let same = (ends.bytes, ends.fingerprint) == (taken.bytes, taken.fingerprint);
    ends.consumed.abs_diff(taken.messages).max(u64::from(!same)) + taken.damaged + taken.withdrawn
}
