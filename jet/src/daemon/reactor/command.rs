//! What the control plane asks of the reactor. Bounded, rare, and never waited for by the reactor.

use super::application::NewSession;
use super::snapshot::Snapshot;
use crossbeam_queue::ArrayQueue;
use jet_core::OpenError;
use jet_fabric::unix::Doorbell;
use jet_reactor::SessionTicket;
use std::sync::Arc;
use tokio::sync::{Semaphore, TryAcquireError, oneshot};

/// Commands that may wait for the reactor.
const COMMANDS: usize = 256;

/// One command.
pub enum Command {
    /// Register an application.
    Open {
        /// What was prepared.
        new: Box<NewSession>,
        /// The answer.
        reply: oneshot::Sender<Result<SessionTicket, OpenError>>,
    },
    /// A session is to end. Its application may live on, and read what it held.
    End {
        /// Which.
        ticket: SessionTicket,
    },
    /// The application's connection or process is gone, whether its session was ended before or not.
    Gone {
        /// Which.
        ticket: SessionTicket,
    },
    /// Copy how things stand. One at a time: another that is given meanwhile is dropped, and its asker told
    /// so.
    Snapshot {
        /// What is filled.
        snapshot: Box<Snapshot>,
        /// The answer: the same.
        reply: oneshot::Sender<Box<Snapshot>>,
    },
    /// The first so many slabs of escape memory can be used.
    EscapeMemory {
        /// Slabs.
        ready_slabs: u32,
        /// Why there will be no more, where that is so.
        error: Option<String>,
    },
    /// Take nothing new, finish what there is, stop. Given again: another deadline.
    Drain {
        /// Stop anyway after so long from now on.
        deadline_ms: u64,
    },
}

/// The way from the control plane to the reactor.
pub struct Commands {
    queue: ArrayQueue<Command>,
    /// One permit for each free place in the queue: whoever finds none waits for the reactor.
    room: Semaphore,
    bell: Doorbell,
}

/// The reactor's end.
pub struct CommandInbox {
    shared: Arc<Commands>,
    /// What the other bell rings.
    pub bell: Doorbell,
}

impl Commands {
    /// Both ends.
    ///
    /// # Errors
    /// What the system says; out of file descriptors.
    pub fn new() -> std::io::Result<(Arc<Self>, CommandInbox)> {
        let (ours, theirs) = Doorbell::pair()?;
        let shared =
            Arc::new(Self { queue: ArrayQueue::new(COMMANDS), room: Semaphore::new(COMMANDS), bell: ours });
        Ok((Arc::clone(&shared), CommandInbox { shared, bell: theirs }))
    }

    /// Gives the reactor a command, when its queue has room. Nothing happens once the reactor is gone:
    /// whoever waits for an answer sees the way to it closed.
    pub async fn send(&self, command: Command) {
        if let Ok(permit) = self.room.acquire().await {
            permit.forget();
            self.put(command);
        }
    }

    /// Gives the reactor a command from a thread that may wait; likewise.
    pub fn send_blocking(&self, command: Command) {
        loop {
            match self.room.try_acquire() {
                Ok(permit) => {
                    permit.forget();
                    return self.put(command);
                }
                Err(TryAcquireError::Closed) => return,
                // Behind a full queue, which is rare: the control plane's runtime is another thread's, so
                // look again.
                Err(TryAcquireError::NoPermits) => std::thread::yield_now(),
            }
        }
    }

    fn put(&self, command: Command) {
        let pushed = self.queue.push(command);
        assert!(pushed.is_ok(), "a permit stands for a free place");
        self.bell.ring();
    }

    /// Wakes the reactor: there is something else to take than commands.
    pub fn ring(&self) {
        self.bell.ring();
    }
}

impl Drop for CommandInbox {
    fn drop(&mut self) {
        self.shared.room.close();
    }
}

impl CommandInbox {
    /// The next command.
    pub fn take(&self) -> Option<Command> {
        let command = self.shared.queue.pop()?;
        self.shared.room.add_permits(1);
        Some(command)
    }

    /// Whether any waits.
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_room_is_let_go_when_the_reactor_is_gone() {
        let (commands, inbox) = Commands::new().unwrap();
        for _ in 0..COMMANDS {
            commands.send_blocking(Command::Drain { deadline_ms: 0 });
        }
        let waiting = {
            let commands = Arc::clone(&commands);
            std::thread::spawn(move || commands.send_blocking(Command::Drain { deadline_ms: 1 }))
        };
        assert!(inbox.take().is_some());
        waiting.join().unwrap();
        drop(inbox);
        commands.send_blocking(Command::Drain { deadline_ms: 2 });
        assert_eq!(commands.queue.len(), COMMANDS);
    }
}
