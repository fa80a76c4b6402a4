//! Applications of this host as the driver reaches them: each by a doorbell, and by two channels to the
//! control plane.

use super::bell::Bell;
use jet_core::{SessionEnd, Standstill};
use jet_reactor::Application;
use tokio::sync::{oneshot, watch};

/// Everything that the control plane has prepared for a new session.
pub type NewSession = jet_reactor::NewSession<LocalApplication>;

/// An application on this host, as the driver reaches it.
pub struct LocalApplication {
    /// The daemon's end of the application's doorbell.
    pub bell: Bell,
    /// Channel to which the driver sends the reason when the session ends.
    pub ended: oneshot::Sender<SessionEnd>,
    /// Channel to which the driver sends a value when a standstill of the application begins, lasts or ends.
    pub standstill: watch::Sender<Option<Standstill>>,
}

impl Application for LocalApplication {
    fn wake(&mut self) {
        self.bell.ring();
    }

    fn stands_still(&mut self, standstill: Option<Standstill>) {
        self.standstill.send_replace(standstill);
    }

    fn ended(self, end: SessionEnd) {
        // No task listens any more if the application's connection or process is gone. Closing the doorbell
        // removes it from epoll.
        let _ = self.ended.send(end);
    }
}
