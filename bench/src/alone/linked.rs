//! A receiver whose application is linked into it: a reactor and an application in one thread, which never
//! sleeps. Jet has no such form. It shows what Jet's code costs without a third process, and without
//! wake-ups.

use super::polite::Polite;
use super::stamps::{At, Stamps, now_ns};
use crate::own_reactor::OwnReactor;
use crate::rig::{APP, read_all};
use jet_client::receive::ReceiveError;
use jet_fabric::Address;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender as Tell;

/// Serves senders until it is told to stop. Tells the address at which it listens.
///
/// # Errors
/// An error of the system, the reactor or the session.
pub(super) fn serve(
    listen: &Address,
    tell: &Tell<Address>,
    stamps: &Stamps,
    stop: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    let mut reactor = OwnReactor::start(listen, 4, APP, now_ns())?;
    let session = reactor.session()?;
    tell.send(reactor.address.clone())?;
    let (mut polite, mut given_back, mut sum) = (Polite::default(), None, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let began_ns = now_ns();
        let worked = reactor.driver.turn(began_ns, |_| false);
        match session.try_receive() {
            Ok(mut message) => {
                let tag = message.tag();
                stamps.note(tag, At::Turn, began_ns);
                stamps.note_now(tag, At::Taken);
                while let Some(slice) = message.try_next()? {
                    sum = sum.wrapping_add(read_all(&slice));
                }
                drop(message);
                // Before the release is shown, so that it is there when the sender hears of the end.
                stamps.note_now(tag, At::GivenBack);
                session.flush();
                given_back = Some(tag);
            }
            Err(ReceiveError::NotYet) if worked => {
                if let Some(tag) = given_back.take() {
                    stamps.note_now(tag, At::Answered);
                }
            }
            Err(ReceiveError::NotYet) => {
                polite.found_nothing();
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        polite.found_something();
    }
    std::hint::black_box(sum);
    Ok(())
}
