//! What the control plane asks of the reactor, carried out on the driver.

use super::command::{Command, CommandInbox, NewSession};
use super::epoll::Epoll;
use super::{Driver, ReactorOptions};
use crate::daemon::status::Rows;
use jet_core::{OpenError, SessionId};
use jet_fabric::nic::Nic;
use jet_fabric::unix::Rung;
use jet_reactor::SessionTicket;

/// Where orders come in, and what they need beside the driver.
pub(super) struct Orders {
    pub inbox: CommandInbox,
    pub epoll: Epoll,
    pub options: ReactorOptions,
    /// Why there is no escape memory, or less than was asked for.
    pub escape_error: Option<String>,
}

impl Orders {
    /// Carries out what waits. `false`: nothing did.
    pub fn obey<N: Nic>(&mut self, now_ns: u64, driver: &mut Driver<N>) -> bool {
        let mut any = false;
        while let Some(command) = self.inbox.take() {
            self.obey_one(now_ns, driver, command);
            any = true;
        }
        any
    }

    fn obey_one<N: Nic>(&mut self, now_ns: u64, driver: &mut Driver<N>, command: Command) {
        match command {
            Command::Open { new, reply } => {
                let opened = self.open(now_ns, driver, *new);
                if let Err(Ok(ticket)) = reply.send(opened) {
                    // The control plane gave up meanwhile.
                    driver.gone(now_ns, ticket);
                }
            }
            Command::End { ticket } => driver.end(now_ns, ticket),
            Command::Gone { ticket } => driver.gone(now_ns, ticket),
            Command::Status { reply } => {
                // Whoever asked may be gone.
                let _ = reply.send(self.status(now_ns, driver));
            }
            Command::StatusRows { from, reply } => {
                // Likewise.
                let _ = reply.send(Rows::new(driver.receiver(), from));
            }
            Command::EscapeMemory { ready_slabs, error } => {
                driver.handle_escape_memory(ready_slabs);
                self.escape_error = error;
            }
            Command::Drain { deadline_ms } => {
                driver.drain(now_ns.saturating_add(deadline_ms.saturating_mul(1_000_000)));
            }
        }
    }

    fn open<N: Nic>(
        &mut self,
        now_ns: u64,
        driver: &mut Driver<N>,
        new: NewSession,
    ) -> Result<SessionTicket, OpenError> {
        let ticket = driver.open(new)?;
        let application = driver.application(ticket.session).expect("it was opened just now");
        match self.epoll.add_session(&application.doorbell, ticket.session.0) {
            Ok(()) => Ok(ticket),
            Err(_) => {
                driver.gone(now_ns, ticket);
                Err(OpenError::TooMany { max: driver.receiver().config().sessions_max })
            }
        }
    }

    /// Takes the rings of a session's doorbell. A closed one is not watched any more: the control plane sees the same application go
    /// and closes the session.
    pub fn silence<N: Nic>(&mut self, driver: &mut Driver<N>, session: SessionId) {
        if let Some(application) = driver.application(session)
            && application.doorbell.clear() == Rung::Closed
        {
            self.epoll.remove(&application.doorbell);
        }
    }
}
