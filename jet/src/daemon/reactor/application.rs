//! Applications of this host, as the driver reaches them: a doorbell, and two words for the control plane.

use jet_core::{SessionEnd, Standstill};
use jet_fabric::unix::Doorbell;
use jet_reactor::Application;
use tokio::sync::{oneshot, watch};

/// A session in the making: all that the control plane prepared.
pub type NewSession = jet_reactor::NewSession<LocalApplication>;

/// An application on this host, as the driver reaches it.
pub struct LocalApplication {
    /// The daemon's end of the doorbell.
    pub doorbell: Doorbell,
    /// Hears why the session ended, unless the control plane ended it.
    pub ended: oneshot::Sender<SessionEnd>,
    /// Hears when the application holds all that it may while more waits for it.
    pub standstill: watch::Sender<Option<Standstill>>,
}

impl Application for LocalApplication {
    fn wake(&mut self) {
        self.doorbell.ring();
    }

    fn stands_still(&mut self, standstill: Option<Standstill>) {
        self.standstill.send_replace(standstill);
    }

    fn ended(self, end: SessionEnd) {
        // Nobody listens where the control plane itself ended the session. The doorbell is watched no longer
        // once it is closed.
        let _ = self.ended.send(end);
    }
}
