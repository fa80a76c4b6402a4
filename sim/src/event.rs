//! What happens in a simulation, as its checkers see it and its log keeps it.

use jet_fabric::sim::NicId;
use jet_wire::message::AckStatus;
use std::fmt;

/// Bit that the identities of cheats have, and of no other sender: the low 16 bits of an identity count.
pub const CHEAT: u64 = 1 << 15;

/// Upper half of the numbers of those messages of cheats whose checksums are wrong.
pub const WRONG_CHECKSUM: u64 = 0x5a5a_5a5a << 32;

/// Name of a message: its sender's identity, and the number that the sender gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageName {
    /// Identity of the sender.
    pub sender: u64,
    /// Number that the sender gave the message, which is its tag, too.
    pub sequence: u64,
}

impl MessageName {
    /// Returns whether its sender is a cheat. Then its numbers may be wrong.
    pub fn is_of_cheat(self) -> bool {
        self.sender & CHEAT != 0
    }
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of sender {:x}", self.sequence, self.sender)
    }
}

/// One life of an application's process. No two lives have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life(pub u32);

/// What an application broke of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Broke {
    /// It gave one thing back that it must not. The receiver is to end its session for that.
    Release,
    /// It wrote what it likes into what it shares. The receiver may never notice.
    Anything,
}

/// A fault that the simulation caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A connection is cut, and its ends notice it at different times.
    Cut,
    /// Nothing happens at a NIC for a while.
    Freeze,
    /// The receiver's thread does not run for a while.
    Stall,
    /// An application's process is killed, and begins anew later.
    KillApplication,
    /// The receiver's process is killed, and begins anew later.
    RestartReceiver,
    /// A sender's device is removed.
    RemoveDevice,
    /// A sender's host loses its power.
    LoseSender,
    /// An application writes what it likes into what it shares with the receiver.
    Scribble,
    /// The receiver drains, and its process begins anew when it is over.
    Drain,
    /// The receiver's device is removed. Its process ends, and begins anew with another device.
    RemoveReceiverDevice,
    /// The clock of the receiver's host jumps ahead, as after a pause of a virtual machine.
    ClockJump,
    /// A connection is cut, and the next one is cut when only one end knows that it stands.
    HalfOpen,
    /// The clock of a sender's host jumps ahead.
    SenderClockJump,
    /// The receiver's host loses its power: nothing says so to its senders.
    LoseReceiver,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 14] = [
        Self::Cut,
        Self::Freeze,
        Self::Stall,
        Self::KillApplication,
        Self::RestartReceiver,
        Self::RemoveDevice,
        Self::LoseSender,
        Self::Scribble,
        Self::Drain,
        Self::RemoveReceiverDevice,
        Self::ClockJump,
        Self::HalfOpen,
        Self::SenderClockJump,
        Self::LoseReceiver,
    ];

    /// Returns the fault's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Freeze => "freeze",
            Self::Stall => "stall",
            Self::KillApplication => "kill-application",
            Self::RestartReceiver => "restart-receiver",
            Self::RemoveDevice => "remove-device",
            Self::LoseSender => "lose-sender",
            Self::Scribble => "scribble",
            Self::Drain => "drain",
            Self::RemoveReceiverDevice => "remove-receiver-device",
            Self::ClockJump => "clock-jump",
            Self::HalfOpen => "half-open",
            Self::SenderClockJump => "sender-clock-jump",
            Self::LoseReceiver => "lose-receiver",
        }
    }
}

/// Something that happened. Times are in the log beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A sender took a message from its user.
    Submitted {
        /// The message.
        message: MessageName,
        /// Number of the application's name.
        app: u32,
        /// Bytes of its payload.
        bytes: u64,
        /// Whether it was sent as a large message.
        large: bool,
    },
    /// A sender posted the SEND of a message: the message itself where it is small, otherwise its request.
    Sent {
        /// The message.
        message: MessageName,
        /// Whether it was sent before: without a mark that is so after an end that passed.
        redelivered: bool,
    },
    /// A sender was told to take a message back, or by when it is to.
    TakenBack {
        /// The message.
        message: MessageName,
    },
    /// A sender reported the end of a message.
    Ended {
        /// The message.
        message: MessageName,
        /// Its end.
        status: AckStatus,
        /// Whether its sender tries ends that may pass again, for longer than faults last.
        retries: bool,
    },
    /// A run was delivered to an application.
    Delivered {
        /// The application's life.
        life: Life,
        /// Number of the application's name.
        app: u32,
        /// The message.
        message: MessageName,
        /// Number of this delivery of it. Each life counts its own.
        delivery: u32,
        /// Offset of the run in the message, in bytes.
        offset: u64,
        /// Bytes of the run.
        bytes: u32,
        /// Bytes of the message.
        whole_bytes: u64,
        /// Whether it is the message's first run.
        first: bool,
        /// Whether it is the message's last run.
        last: bool,
        /// Whether the message was marked as one that may have come before.
        redelivered: bool,
    },
    /// An application has read a run's bytes, every one of which was right.
    Read {
        /// The application's life.
        life: Life,
        /// The message.
        message: MessageName,
        /// Number of the delivery.
        delivery: u32,
        /// Bytes of the run.
        bytes: u32,
        /// Whether the run lay in escape memory.
        escaped: bool,
    },
    /// An application told the receiver that it is done with a message.
    Finished {
        /// The application's life.
        life: Life,
        /// The message.
        message: MessageName,
        /// Number of the delivery.
        delivery: u32,
        /// 0: consumed. Otherwise the code with which it was rejected.
        code: u32,
    },
    /// An application heard that the rest of a message will not come.
    Withdrawn {
        /// The application's life.
        life: Life,
        /// The message.
        message: MessageName,
    },
    /// An application's session was opened.
    Opened {
        /// The application's life.
        life: Life,
        /// Number of the application's name.
        app: u32,
    },
    /// An application's session ended.
    Closed {
        /// The application's life.
        life: Life,
    },
    /// An application broke its session.
    Broke {
        /// The application's life.
        life: Life,
        /// What it broke.
        what: Broke,
    },
    /// A sender began.
    SenderBegan {
        /// Identity of the sender.
        sender: u64,
    },
    /// A cheat asked for a connection, under an identity that it had never had.
    CheatBegan {
        /// The identity.
        sender: u64,
        /// Number of the application's name that it sends to; `None`: it names none that there may be.
        app: Option<u32>,
    },
    /// A sender's process ended, and its messages have no ends any more.
    SenderLost {
        /// Identity of the sender.
        sender: u64,
    },
    /// A receiver's process began.
    ReceiverBegan {
        /// Its NIC.
        nic: NicId,
    },
    /// A fault was caused.
    Fault(Fault),
    /// No further fault is caused, and all applications are fast from now on.
    Calm,
}
