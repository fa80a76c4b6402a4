//! Commands from the control plane to the reactor. The queue of commands is bounded, commands are rare, and
//! the reactor never waits for a command.

use super::application::NewSession;
use super::snapshot::Snapshot;
use crossbeam_queue::ArrayQueue;
use jet_core::OpenError;
use jet_fabric::advice::advised;
use jet_fabric::unix::Doorbell;
use jet_reactor::SessionTicket;
use std::io;
use std::sync::Arc;
use tokio::sync::{Semaphore, TryAcquireError, oneshot};

/// Limit of commands that may wait for the reactor.
const COMMANDS: usize = 256;

/// A command to the reactor.
pub enum Command {
    /// Registers an application.
    Open {
        /// Session that the control plane has prepared.
        new: Box<NewSession>,
        /// Channel for the answer: the session's ticket, or the reason for refusing it.
        reply: oneshot::Sender<Result<SessionTicket, OpenSessionError>>,
    },
    /// Ends a session. The session's application may live on, and read the slabs that it held.
    End {
        /// Ticket of the session.
        ticket: SessionTicket,
    },
    /// Reports to the reactor that an application's connection or process is gone, whether its session was
    /// ended before or not.
    Gone {
        /// Ticket of the session.
        ticket: SessionTicket,
    },
    /// Fills a snapshot with the reactor's counts. One snapshot is filled at a time: a new command replaces
    /// an unfinished snapshot, whose reply channel closes.
    Snapshot {
        /// Snapshot to fill.
        snapshot: Box<Snapshot>,
        /// Channel for the filled snapshot.
        reply: oneshot::Sender<Box<Snapshot>>,
    },
    /// Reports to the reactor how much of escape memory is ready, counted from the memory's beginning.
    EscapeMemory {
        /// Number of slabs that are ready.
        ready_slabs: u32,
        /// Reason why no more slabs will be ready; `None` while more may follow.
        error: Option<String>,
    },
    /// Starts a drain: the reactor takes no new messages, finishes those that it has, and stops. A second
    /// `Drain` command sets another deadline.
    Drain {
        /// Time in milliseconds, from now, after which the reactor stops even if messages are unfinished.
        deadline_ms: u64,
    },
}

impl Command {
    fn is_of_session(&self) -> bool {
        match self {
            Self::Open { .. } | Self::End { .. } | Self::Gone { .. } => true,
            Self::Snapshot { .. } | Self::EscapeMemory { .. } | Self::Drain { .. } => false,
        }
    }
}

/// The commands that the reactor carries out in one turn: those up to the first that opens or ends a session.
///
/// The end of a session visits the record of every message, and many applications may go at once. All others
/// have a turn between two of them.
#[derive(Debug, Default)]
pub(super) struct CommandTurn {
    is_over: bool,
}

impl CommandTurn {
    /// Takes the next command of the turn off the queue; `None` where the turn has no further one.
    pub fn next(&mut self, inbox: &CommandInbox) -> Option<Command> {
        let command = if self.is_over { None } else { inbox.take() }?;
        self.is_over = command.is_of_session();
        Some(command)
    }
}

/// Reason why the reactor does not open a session.
#[derive(Debug, thiserror::Error)]
pub enum OpenSessionError {
    /// The receiver refuses the session.
    #[error(transparent)]
    Receiver(#[from] OpenError),
    /// The system refuses to watch the session's doorbell.
    #[error("the system refuses to watch the session's doorbell: {}", advised(.0))]
    System(io::Error),
}

/// The control plane's end of the queue of commands to the reactor.
pub struct Commands {
    queue: ArrayQueue<Command>,
    /// One permit for each free place in the queue. A task that gets no permit waits until the reactor takes
    /// a command.
    room: Semaphore,
    bell: Doorbell,
}

/// The reactor's end of the queue of commands.
pub struct CommandInbox {
    shared: Arc<Commands>,
    /// The bell that [`Commands`] rings when a command waits.
    pub bell: Doorbell,
}

impl Commands {
    /// Creates the queue, and returns both ends.
    ///
    /// # Errors
    /// Returns the system's error, for example that no descriptors are left.
    pub fn new() -> std::io::Result<(Arc<Self>, CommandInbox)> {
        let (ours, theirs) = Doorbell::pair()?;
        let shared =
            Arc::new(Self { queue: ArrayQueue::new(COMMANDS), room: Semaphore::new(COMMANDS), bell: ours });
        Ok((Arc::clone(&shared), CommandInbox { shared, bell: theirs }))
    }

    /// Queues a command for the reactor, and waits until the queue has room. Once the reactor is gone, the
    /// command and its reply channel are dropped.
    pub async fn send(&self, command: Command) {
        if let Ok(permit) = self.room.acquire().await {
            permit.forget();
            self.put(command);
        }
    }

    /// Queues a command like [`Self::send`], for callers on a thread that may block.
    pub fn send_blocking(&self, command: Command) {
        loop {
            match self.room.try_acquire() {
                Ok(permit) => {
                    permit.forget();
                    return self.put(command);
                }
                Err(TryAcquireError::Closed) => return,
                // The queue is full, which is rare. The reactor empties it on another thread, so try again.
                Err(TryAcquireError::NoPermits) => std::thread::yield_now(),
            }
        }
    }

    fn put(&self, command: Command) {
        let pushed = self.queue.push(command);
        assert!(pushed.is_ok(), "a permit stands for a free place");
        self.bell.ring();
    }

    /// Wakes the reactor for work other than commands.
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
    /// Takes the next command off the queue; `None` where no command waits.
    pub fn take(&self) -> Option<Command> {
        let command = self.shared.queue.pop()?;
        self.shared.room.add_permits(1);
        Some(command)
    }

    /// Whether no command waits.
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_core::SessionId;

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

    #[test]
    fn applications_that_go_at_once_end_one_a_turn() {
        let (commands, inbox) = Commands::new().unwrap();
        let memory = || Command::EscapeMemory { ready_slabs: 1, error: None };
        let gone = || Command::Gone { ticket: SessionTicket { session: SessionId(0), ticket: 1 } };
        for command in [memory(), memory(), gone(), gone(), memory(), gone(), memory()] {
            commands.send_blocking(command);
        }
        let counts = [3, 1, 2, 1, 0].map(|_| {
            let mut turn = CommandTurn::default();
            std::iter::from_fn(|| turn.next(&inbox)).count()
        });
        assert_eq!(counts, [3, 1, 2, 1, 0]);
    }
}
