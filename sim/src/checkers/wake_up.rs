//! Wake-up: nobody sleeps for longer than it takes to wake up while there is something for it. Looks at the
//! simulation itself: who sleeps tells nobody.

use crate::actors::NEVER;
use crate::simulation::Simulation;

/// The checker's name.
const NAME: &str = "wake-up";

impl Simulation {
    /// Looks for parties that sleep though there is something for them. To be called when nobody runs for
    /// longer than it takes to wake up.
    pub(crate) fn check_sleepers(&mut self) {
        let Self { receiver, network, observer, senders, applications, now_ns, scenario, .. } = self;
        let soon_ns = *now_ns + scenario.wake_ns + scenario.turn_ns;
        let receiver_sleeps =
            receiver.is_asleep && receiver.at_ns > soon_ns && receiver.stalled_until_ns <= *now_ns;
        for application in applications.iter_mut() {
            let life = application.process.life();
            if application.at_ns > soon_ns && application.process.oversleeps() {
                observer.fail(NAME, format!("{life:?} sleeps, and there is a delivery for it"));
            }
            if receiver_sleeps && application.process.has_unread_releases() {
                observer.fail(NAME, format!("the receiver sleeps, and {life:?} released something"));
            }
        }
        if let Some(process) = &receiver.process
            && receiver_sleeps
            && (network.has_work(process.nic) || !process.gone.is_empty())
        {
            observer.fail(NAME, "the receiver sleeps, and its NIC has something for it".to_owned());
        }
        if receiver_sleeps && receiver.process.as_ref().is_some_and(|process| process.driver.any_job_done()) {
            observer.fail(NAME, "the receiver sleeps, and its workers have ended a job".to_owned());
        }
        for sender in senders.iter_mut() {
            if sender.has_begun && sender.at_ns > soon_ns && network.has_work(sender.process.nic()) {
                let id = sender.process.id();
                observer.fail(NAME, format!("sender {id:x} sleeps, and its NIC has something for it"));
            }
        }
    }

    /// Reports that nobody runs any more, though not everything has ended.
    pub(crate) fn check_standstill(&mut self, next_ns: u64) -> bool {
        if next_ns < NEVER {
            return false;
        }
        let states = self.states();
        self.observer.fail(NAME, format!("nobody runs any more, and something is left:\n{states}"));
        true
    }
}
