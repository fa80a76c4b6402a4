//! Plan of a sender that breaks the rules.

use fastrand::Rng;
use jet_fabric::limits::{Profile, Requirements};
use jet_fabric::sim::SimOptions;
use std::fmt;

/// What a cheat does now and then, between messages that are as they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cheat {
    /// It makes more SENDs than its credit allows.
    Overspend,
    /// It asks for messages that are empty, longer than anybody may send, or longer than its memory.
    Sizes,
    /// It names memory that it never registered.
    Keys,
    /// It takes its memory back while that is read.
    Deregister,
    /// It sends the same message again, marked as sent before or not.
    Repeat,
    /// It changes bytes of its headers.
    Scramble,
    /// It sends other bytes than its header says.
    Mismatch,
    /// It answers recalls of credit that never came, with any limit.
    ReturnCredit,
    /// It leaves, and comes again.
    Leave,
    /// Its first words are wrong, or name nobody.
    Hello,
}

impl Cheat {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Overspend,
        Self::Sizes,
        Self::Keys,
        Self::Deregister,
        Self::Repeat,
        Self::Scramble,
        Self::Mismatch,
        Self::ReturnCredit,
        Self::Leave,
        Self::Hello,
    ];

    /// Returns the cheat's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overspend => "overspend",
            Self::Sizes => "sizes",
            Self::Keys => "keys",
            Self::Deregister => "deregister",
            Self::Repeat => "repeat",
            Self::Scramble => "scramble",
            Self::Mismatch => "mismatch",
            Self::ReturnCredit => "return-credit",
            Self::Leave => "leave",
            Self::Hello => "hello",
        }
    }
}

/// Plan of a cheat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheatPlan {
    /// Number of the application's name that it sends to.
    pub app: u32,
    /// What it does. Empty: it keeps to the rules, but for what is below.
    pub cheats: Vec<Cheat>,
    /// Things that it does before it is silent.
    pub actions: u32,
    /// Of a thousand things that it does, how many break the rules.
    pub cheats_permille: u32,
    /// Nanoseconds between two of them, at most.
    pub pause_ns: u64,
    /// Whether it has no receive entries, so that nothing that the receiver sends is ever taken.
    pub is_deaf: bool,
    /// Device of its host.
    pub profile: Profile,
    /// Bytes that leave its host in a microsecond, where that is slower than the network.
    pub bytes_per_us: Option<u64>,
}

impl CheatPlan {
    /// Draws the plans of a scenario's cheats; most scenarios have none.
    pub fn draw(random: &mut Rng, names: u32) -> Vec<Self> {
        let count = if random.u8(..5) == 0 { random.usize(1..=3) } else { 0 };
        (0..count).map(|_| Self::one(random, names)).collect()
    }

    fn one(random: &mut Rng, names: u32) -> Self {
        let mut one_of = |choices: &[u64]| choices[random.usize(..choices.len())];
        let actions = u32::try_from(one_of(&[30, 300, 2_000])).expect("it is small");
        let cheats_permille = u32::try_from(one_of(&[20, 200, 1_000])).expect("it is small");
        let pause_ns = one_of(&[20_000, 200_000, 2_000_000]);
        let bytes_per_us = Some(one_of(&[0, 0, 1, 10])).filter(|bytes| *bytes > 0);
        let profiles = [Profile::CONNECTX_6, Profile::RXE, Profile::SMALLEST];
        Self {
            app: random.u32(..names),
            cheats: Cheat::ALL.into_iter().filter(|_| random.u8(..3) == 0).collect(),
            actions,
            cheats_permille,
            pause_ns,
            is_deaf: random.u8(..6) == 0,
            profile: profiles[random.usize(..profiles.len())],
            bytes_per_us,
        }
    }

    /// Returns the options of its NIC.
    pub fn nic(&self) -> SimOptions {
        let requirements = Requirements { probes_per_qp: 0, ..Requirements::VERBS_SENDER };
        SimOptions { bytes_per_us: self.bytes_per_us, ..SimOptions::new(self.profile, requirements) }
    }
}

impl fmt::Display for CheatPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { app, cheats, actions, cheats_permille, pause_ns, is_deaf, profile, bytes_per_us } = self;
        write!(f, "cheat on {profile}: {actions} things to app-{app}, {pause_ns} ns apart at most")?;
        if !cheats.is_empty() {
            let names: Vec<_> = cheats.iter().map(|cheat| cheat.name()).collect();
            write!(f, ", {cheats_permille} of 1000 of them of {}", names.join(" "))?;
        }
        f.write_str(if *is_deaf { ", deaf" } else { "" })?;
        match bytes_per_us {
            Some(bytes) => write!(f, ", slow: {bytes} bytes/us"),
            None => Ok(()),
        }
    }
}
