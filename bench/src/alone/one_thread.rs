//! Sender, receiver and application in one thread, each in its turn. Nobody waits, and no cache line moves to
//! another processor while the scheduler leaves the thread where it is: this is what Jet's code takes.

use super::{BYTES, Case, OneAtATime};
use crate::own_reactor::OwnReactor;
use crate::rig::{APP, read_all};
use jet_client::receive::{ReceiveError, Session};
use jet_client::send::AckStatus;
use jet_fabric::{Address, Clock};
use std::error::Error;
use std::time::Instant;

/// Turns in which a message must have come.
const TURNS_MAX: u32 = 1_000_000;

/// The three parties.
struct OneThread {
    reactor: OwnReactor,
    session: Session,
    sends: OneAtATime,
    clock: Clock,
}

impl OneThread {
    fn start(listen: &Address) -> Result<Self, Box<dyn Error>> {
        let clock = Clock::start();
        let mut reactor = OwnReactor::start(listen, 4, APP, clock.now_ns())?;
        let session = reactor.session()?;
        let address = reactor.address.clone();
        // Connecting waits for the receiver, so it has a thread of its own.
        let connects =
            std::thread::spawn(move || OneAtATime::connect(&address).map_err(|error| error.to_string()));
        while !connects.is_finished() {
            reactor.driver.turn(clock.now_ns(), |_| false);
        }
        let sends = connects.join().map_err(|_| "connecting panicked")??;
        Ok(Self { reactor, session, sends, clock })
    }

    /// Passes a message on from its submission to its end. Returns a sum of its bytes.
    fn pass_on(&mut self) -> Result<u64, Box<dyn Error>> {
        self.sends.0.send_small(0, &[7; BYTES])?;
        self.sends.0.flush();
        let sum = self.turn_until("the message", |parties| match parties.session.try_receive() {
            Ok(mut message) => {
                let mut sum = 0;
                while let Some(slice) = message.try_next()? {
                    sum += read_all(&slice);
                }
                Ok(Some(sum))
            }
            Err(ReceiveError::NotYet) => Ok(None),
            Err(error) => Err(error.into()),
        })?;
        self.session.flush();
        let status =
            self.turn_until("the message's end", |parties| Ok(parties.sends.0.poll().map(|end| end.status)))?;
        match status {
            AckStatus::Consumed => Ok(sum),
            status => Err(format!("a message ended: {status}").into()),
        }
    }

    /// Gives the reactor its turn until there is something. That is one turn, except after a pause: then a
    /// NIC checks the sockets of connections without work once in many polls.
    fn turn_until<T>(
        &mut self,
        what: &str,
        mut find: impl FnMut(&mut Self) -> Result<Option<T>, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        for _ in 0..TURNS_MAX {
            self.reactor.driver.turn(self.clock.now_ns(), |_| false);
            if let Some(found) = find(self)? {
                return Ok(found);
            }
        }
        Err(format!("{what} is not there after {TURNS_MAX} turns").into())
    }

    fn half_round_trip_us(&mut self, rounds: u32) -> Result<f64, Box<dyn Error>> {
        let (began, mut sum) = (Instant::now(), 0u64);
        for _ in 0..rounds {
            sum = sum.wrapping_add(self.pass_on()?);
        }
        std::hint::black_box(sum);
        Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
    }
}

/// Measures half a round trip in microseconds, one value a sample.
///
/// # Errors
/// An error of the system, the reactor, the session or the sender.
pub(super) fn samples(case: &Case<'_>, listen: &Address) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut parties = OneThread::start(listen)?;
    parties.half_round_trip_us(case.rounds() / 8)?;
    (0..case.run_size.samples).map(|_| parties.half_round_trip_us(case.rounds())).collect()
}
