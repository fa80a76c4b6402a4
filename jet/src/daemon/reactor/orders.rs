//! Carrying out commands of the control plane on the driver.

use super::Driver;
use super::application::NewSession;
use super::command::{Command, CommandInbox, CommandTurn, OpenSessionError};
use super::epoll::Epoll;
use super::snapshot::Filling;
use jet_fabric::nic::Nic;
use jet_reactor::SessionTicket;
use std::sync::Arc;

/// The queue of commands to the reactor, and the state that answers need beside the driver's.
pub(super) struct Orders {
    pub inbox: CommandInbox,
    /// Reason why there is no escape memory, or less than the configuration asks for.
    pub escape_error: Option<Arc<str>>,
    /// Snapshot that is being filled for the control plane.
    pub filling: Option<Filling>,
}

impl Orders {
    /// Carries out the commands of one turn, and continues to fill a snapshot that was begun. Returns whether
    /// there was anything to do. Doorbells of new sessions are added to `epoll`. The longest turn is for
    /// snapshots.
    pub fn carry_out<N: Nic>(
        &mut self,
        now_ns: u64,
        longest_turn_ns: u64,
        driver: &mut Driver<N>,
        epoll: &Epoll,
    ) -> bool {
        let mut any = false;
        let mut turn = CommandTurn::default();
        while let Some(command) = turn.next(&self.inbox) {
            self.carry_out_one(now_ns, driver, epoll, command);
            any = true;
        }
        if let Some(filling) = self.filling.take() {
            let error = self.escape_error.as_ref();
            self.filling = filling.continue_filling(now_ns, longest_turn_ns, driver, error);
            any = true;
        }
        any
    }

    fn carry_out_one<N: Nic>(
        &mut self,
        now_ns: u64,
        driver: &mut Driver<N>,
        epoll: &Epoll,
        command: Command,
    ) {
        match command {
            Command::Open { new, reply } => {
                let opened = open(now_ns, driver, epoll, *new);
                if let Err(Ok(ticket)) = reply.send(opened) {
                    // The control plane gave up while the session was opened.
                    driver.application_gone(now_ns, ticket);
                }
            }
            Command::End { ticket } => driver.end_session(now_ns, ticket),
            Command::Gone { ticket } => driver.application_gone(now_ns, ticket),
            Command::Snapshot { snapshot, reply } => self.filling = Some(Filling::new(snapshot, reply)),
            Command::EscapeMemory { ready_slabs, error } => {
                driver.handle_escape_memory(ready_slabs);
                self.escape_error = error.map(Arc::from);
            }
            Command::Drain { deadline_ms } => {
                driver.drain(now_ns.saturating_add(deadline_ms.saturating_mul(1_000_000)));
            }
        }
    }
}

fn open<N: Nic>(
    now_ns: u64,
    driver: &mut Driver<N>,
    epoll: &Epoll,
    new: NewSession,
) -> Result<SessionTicket, OpenSessionError> {
    let ticket = driver.open(now_ns, new)?;
    let application = driver.application(ticket.session).expect("it was opened just now");
    match epoll.add_session(&application.bell, ticket.session.0) {
        Ok(()) => Ok(ticket),
        Err(error) => {
            // Ended first, so that a session that never was keeps no name.
            driver.end_session(now_ns, ticket);
            driver.application_gone(now_ns, ticket);
            Err(OpenSessionError::System(error))
        }
    }
}
