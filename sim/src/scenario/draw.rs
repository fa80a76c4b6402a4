//! Draws scenarios from their seeds.

use super::{ApplicationPlan, Habit, Kind, Scenario, SenderPlan};
use crate::cheat::CheatPlan;
use crate::event::Fault;
use crate::faults::JUMP_NS;
use fastrand::Rng;
use jet_core::{Checksums, Config};
use jet_escape::EscapeConfig;
use jet_fabric::limits::Profile;
use jet_fabric::sim::Conditions;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Nanoseconds of its clock for which a sender tries things again. Clocks that jump have more.
const PATIENCE_NS: u64 = 60 * SECOND;
/// Nanoseconds without a word of the receiver after which senders give a connection up.
const RECEIVER_TIMEOUT_NS: u64 = 30 * SECOND;

fn one_of<T: Copy>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}

/// More replies than a sender has messages under way.
const MANY_REPLIES: u32 = 1000;

impl Scenario {
    /// Draws a scenario in which anything may happen.
    pub fn of(seed: u64) -> Self {
        let random = &mut Rng::with_seed(seed);
        match random.u8(..8) {
            0 if seed.rotate_left(48).is_multiple_of(3) => Self::contended(seed, random).stopped(random),
            0 => Self::contended(seed, random),
            1 => Self::of_anything(seed, random).pressed(random),
            _ => Self::of_anything(seed, random),
        }
    }

    fn of_anything(seed: u64, random: &mut Rng) -> Self {
        let profile =
            one_of(random, &[Profile::CONNECTX_6, Profile::CONNECTX_6, Profile::RXE, Profile::SMALLEST]);
        // What is drawn apart leaves the rest of a seed's scenario as it is.
        let apart = &mut Rng::with_seed(seed.rotate_left(16));
        let mut config = config(random, &profile);
        config.session_memory_slabs = session_memory(apart, &config);
        config.footprint_follows = config.escape.enabled && apart.u8(..4) == 0;
        let names = random.u32(1..=3);
        let mut applications: Vec<_> = (0..names + random.u32(0..=1))
            .map(|number| application(random, number % names, &config))
            .collect();
        // Drawn for itself, so that the rest of a seed's scenario is as it was before names were shared.
        let shared = &mut Rng::with_seed(seed.rotate_left(4));
        if shared.u8(..3) == 0 {
            let more = shared.u32(1..=3);
            applications.extend((0..more).map(|number| application(shared, number % names, &config)));
            // Sometimes one has a name for itself that others would share.
            let shares = |shared: &mut Rng| shared.u8(..16) > 0;
            applications.iter_mut().for_each(|application| application.shares_name = shares(shared));
        }
        let mut senders: Vec<_> = (0..random.u32(1..=6)).map(|_| sender(random, names, &config)).collect();
        senders.iter_mut().for_each(|sender| sender.leaves = apart.bool());
        // Drawn for itself, so that the rest of a seed's scenario is as it was before there were replies.
        let replies = &mut Rng::with_seed(seed.rotate_left(20));
        config.reply_slots = one_of(replies, &[0, config.messages_max, config.messages_max, 2]);
        config.replies_per_peer = one_of(replies, &[1, MANY_REPLIES, MANY_REPLIES]);
        senders.iter_mut().for_each(|sender| sender.wants_replies = replies.bool());
        // Drawn for itself, so that the rest of a seed's scenario is as it was before any were taken back.
        let taken_back = &mut Rng::with_seed(seed.rotate_left(24));
        senders.iter_mut().for_each(|sender| sender.takes_back = taken_back.u8(..4) == 0);
        // Sometimes there is not a place for everybody.
        config.peers_max = one_of(apart, &[16, 16, 16, 3]);
        let needed = u32::try_from(applications.len()).expect("applications are few");
        config.sessions_max = one_of(apart, &[8, 8, 8, needed]);
        let mut faults = Vec::new();
        if random.u8(..4) > 0 {
            let loses_receiver = Rng::with_seed(seed.rotate_left(8)).u8(..3) == 0;
            faults.extend(Fault::ALL.into_iter().filter(|fault| match fault {
                Fault::LoseReceiver => loses_receiver,
                _ => random.bool(),
            }));
        }
        let conditions = conditions(random, apart, seed);
        // Drawn for itself, so that the rest of a seed's scenario is as it was before applications were late.
        let late = &mut Rng::with_seed(seed.rotate_left(48));
        for application in &mut applications {
            if late.u8(..8) == 0 {
                application.late_ns = one_of(late, &[MS, 400 * MS]);
            }
            if apart.u8(..8) == 0 {
                application.rejects_permille = 300;
            }
            application.breaks = apart.u8(..4) == 0 && faults.contains(&Fault::Scribble);
        }
        // Where nothing fails, who waits hears of the receiver in time.
        if faults.is_empty() && apart.bool() {
            senders.iter_mut().for_each(|sender| sender.receiver_timeout_ns = 0);
        }
        Self {
            seed,
            kind: Kind::Anything,
            conditions,
            profile,
            config,
            turn_ns: one_of(random, &[200, 2_000, 20_000]),
            wake_ns: one_of(random, &[1_000, 30_000, 1_000_000]),
            job_ns: one_of(random, &[5_000, 100_000, 5 * MS]),
            tells_processes: apart.bool(),
            applications,
            senders,
            cheats: CheatPlan::draw(&mut Rng::with_seed(seed.rotate_left(32)), names),
            faults,
            faults_max: one_of(random, &[3, 10, 40]),
            fault_ns: one_of(random, &[MS, 10 * MS, 200 * MS]),
            calm_ns: one_of(random, &[20 * MS, 200 * MS, 3 * SECOND]),
            settle_ns: 300 * SECOND,
        }
        .with_patience()
    }

    /// Lets senders whose clocks may jump be patient for all jumps together.
    fn with_patience(mut self) -> Self {
        if self.faults.contains(&Fault::SenderClockJump) {
            let jumps_ns = u64::from(self.faults_max) * JUMP_NS;
            self.senders.iter_mut().for_each(|sender| sender.patience_ns += jumps_ns);
        }
        self
    }

    /// Lets the applications hold what the pool has, and leaves the escape little but to mark congestion.
    fn pressed(mut self, random: &mut Rng) -> Self {
        let config = &mut self.config;
        config.escape.enabled = true;
        config.escape.replace_slabs_max = one_of(random, &[0, 16]);
        config.escape.thresholds.safe_permille = 400;
        config.escape.thresholds.danger_permille = one_of(random, &[50, 300]);
        (config.copies_max, config.signals) = (1, true);
        let fragment_slabs = config.fragment_bytes / SLAB_BYTES_U32;
        config.memory_slabs = one_of(random, &[0, 2 * fragment_slabs]);
        config.session_memory_slabs = config.memory_slabs;
        for application in &mut self.applications {
            application.habit = one_of(random, &[Habit::Slow, Habit::Stalling, Habit::Pinning]);
            (application.run_ns, application.parallel) = (one_of(random, &[2 * MS, 20 * MS]), 64);
            application.takes_memory &= config.memory_slabs > 0;
        }
        if random.bool() { self.copied() } else { self }
    }

    /// Lets copies take so long that sessions end meanwhile, and quarantines are over.
    fn copied(mut self) -> Self {
        let config = &mut self.config;
        (config.escape.replace_slabs_max, config.copies_max) = (0, 64);
        (config.memory_slabs, config.session_memory_slabs) = (1024, 1024);
        (config.quarantine_ns, config.tick_ns) = (MS, MS);
        self.job_ns = 5 * MS;
        if !self.faults.contains(&Fault::KillApplication) {
            self.faults.push(Fault::KillApplication);
        }
        self
    }

    /// Draws a scenario in which many want READs, and nobody fails. One sender may be slow.
    fn contended(seed: u64, random: &mut Rng) -> Self {
        let profile = one_of(random, &[Profile::CONNECTX_6, Profile::RXE]);
        let drawn = config(random, &profile);
        // Nobody waits because the receiver was busy once: the sender then decides when it asks again.
        let config = Config {
            aging_ns: one_of(random, &[MS, 5 * MS]),
            requests_per_peer: 64,
            messages_max: drawn.messages_max + 1024,
            ..drawn
        };
        let names = random.u32(1..=2);
        let applications = (0..names)
            .map(|name| ApplicationPlan {
                name,
                habit: Habit::Fast,
                run_ns: one_of(random, &[0, 1_000]),
                parallel: 64,
                late_ns: 0,
                rejects_permille: 0,
                takes_memory: false,
                shares_name: false,
                class: random.u8(..config.classes),
                breaks: false,
                is_absent: false,
            })
            .collect();
        let mut senders: Vec<_> = (0..random.u32(3..=6))
            .map(|_| SenderPlan {
                messages: 60,
                depth: one_of(random, &[4, 16]),
                large_permille: 1000,
                large_bytes: one_of(random, &[200 << 10, 1 << 20]),
                ..sender(random, names, &config)
            })
            .collect();
        if random.bool() {
            let slow = &mut senders[0];
            (slow.bytes_per_us, slow.messages, slow.large_bytes) = (Some(2), 4, 64 << 10);
        }
        Self {
            seed,
            kind: Kind::Contended,
            conditions: Conditions {
                bytes_per_us: one_of(random, &[125, 1_250]),
                ..Conditions::quiet(!seed)
            },
            profile,
            config,
            turn_ns: one_of(random, &[200, 2_000]),
            wake_ns: one_of(random, &[1_000, 30_000]),
            job_ns: 5_000,
            tells_processes: true,
            applications,
            senders,
            cheats: Vec::new(),
            faults: Vec::new(),
            faults_max: 0,
            fault_ns: SECOND,
            calm_ns: 0,
            settle_ns: 300 * SECOND,
        }
    }

    /// Lets one more application stop, beside those there are. Only the escape keeps the others going.
    fn stopped(mut self, random: &mut Rng) -> Self {
        (self.kind, self.calm_ns) = (Kind::Stopped, 3 * SECOND);
        self.config.escape.enabled = true;
        let first = self.applications[0];
        let name = u32::try_from(self.applications.len()).expect("applications are few");
        let class = random.u8(..self.config.classes);
        self.applications.push(ApplicationPlan { name, class, parallel: 0, ..first });
        for sender in &mut self.senders {
            (sender.bytes_per_us, sender.messages) = (None, 200);
            sender.large_permille = one_of(random, &[10, 500, 1000]);
        }
        for sender in 0..random.usize(1..=3) {
            let class = random.u8(..self.config.classes);
            self.senders.push(SenderPlan { app: name, class, ..self.senders[sender] });
        }
        self
    }

    /// A scenario without faults, in which everybody is fast. It measures the simulator.
    pub fn plain(seed: u64, large_permille: u32) -> Self {
        let config =
            Config { checksums: Checksums::Off, sessions_max: 8, peers_max: 64, ..Config::default() };
        let application = ApplicationPlan {
            name: 0,
            habit: Habit::Fast,
            run_ns: 0,
            parallel: 64,
            late_ns: 0,
            rejects_permille: 0,
            takes_memory: false,
            shares_name: false,
            class: 0,
            breaks: false,
            is_absent: false,
        };
        let sender = SenderPlan {
            app: 0,
            messages: 200_000,
            depth: 64,
            large_permille,
            large_bytes: 4 << 20,
            small_bytes: SLAB_BYTES_U32,
            class: 0,
            checksums: false,
            retries: true,
            patience_ns: PATIENCE_NS,
            receiver_timeout_ns: RECEIVER_TIMEOUT_NS,
            profile: Profile::CONNECTX_6,
            bytes_per_us: None,
            leaves: false,
            wants_replies: false,
            takes_back: false,
        };
        Self {
            seed,
            kind: Kind::Anything,
            conditions: Conditions::quiet(seed),
            profile: Profile::CONNECTX_6,
            config,
            turn_ns: 2_000,
            wake_ns: 30_000,
            job_ns: 10_000,
            tells_processes: true,
            applications: vec![application],
            senders: vec![sender; 4],
            cheats: Vec::new(),
            faults: Vec::new(),
            faults_max: 0,
            fault_ns: SECOND,
            calm_ns: 0,
            settle_ns: 3_600 * SECOND,
        }
    }
}

fn conditions(random: &mut Rng, apart: &mut Rng, seed: u64) -> Conditions {
    Conditions {
        seed: !seed,
        latency_ns: one_of(random, &[500, 2_000, 50_000]),
        jitter_ns: one_of(random, &[0, 500, 20_000, MS]),
        bytes_per_us: one_of(random, &[1_250, 12_500, 25_000]),
        rnr_ns: one_of(random, &[10_000, 640_000]),
        kernel_ns: one_of(random, &[10_000, MS]),
        flush_ns: one_of(random, &[1_000, MS, 50 * MS]),
        last_wqe_ns: one_of(random, &[1_000, MS, 200 * MS]),
        last_wqe_missing_permille: if seed.rotate_left(24).is_multiple_of(5) { 200 } else { 0 },
        silence_ns: one_of(random, &[10 * MS, 2 * SECOND]),
        refusals_permille: one_of(random, &[0, 0, 50, 500]),
        entries_taken_max: one_of(apart, &[0, 1, 4]),
    }
}

fn config(random: &mut Rng, profile: &Profile) -> Config {
    let defaults = Config::default();
    let pool_slabs: u32 = one_of(random, &[192, 512, 1024, 3072]);
    let entries = u32::try_from(profile.attributes().max_srq_wr).expect("the device has an SRQ");
    let srq_slabs = (pool_slabs / one_of(random, &[3, 4])).min(entries);
    let srq_floor_slabs = (srq_slabs / one_of(random, &[2, 8])).max(8);
    let fragment_bytes: u32 = one_of(random, &[16 << 10, 64 << 10, 256 << 10]);
    let fragment_slabs = fragment_bytes / 4096;
    let memory_slabs = one_of(random, &[0, 2 * fragment_slabs, 1024]);
    let replace_slabs_max = one_of(random, &[0, pool_slabs / 12, 256]);
    let reads_max = one_of(random, &[2, 8, 32]);
    let pool_bytes = u64::from(pool_slabs) * SLAB_BYTES as u64;
    let in_flight_bytes = (pool_bytes / one_of(random, &[2, 4])).max(u64::from(fragment_bytes));
    Config {
        pool_slabs,
        srq_slabs,
        srq_floor_slabs,
        srq_reserve_entries: one_of(random, &[1, (srq_floor_slabs / 2).max(1)]),
        fragment_bytes,
        reads_max,
        in_flight_bytes,
        peer_share_percent: one_of(random, &[25, 75, 100]),
        footprint_follows: false,
        checksums: one_of(random, &[Checksums::Inline, Checksums::Workers, Checksums::Off]),
        scatter_max: u32::try_from(profile.attributes().max_sge_rd).unwrap_or(1).clamp(1, 64),
        message_bytes_max: 8 << 20,
        peers_max: 16,
        sessions_max: 8,
        messages_max: (srq_slabs + reads_max).max(one_of(random, &[0, 1024])) + 64,
        requests_per_peer: one_of(random, &[2, 64]),
        credit_max: one_of(random, &[4, 64, 256]).min(srq_slabs),
        session_slots: one_of(random, &[128, 1024]),
        session_messages: one_of(random, &[16, 1024]),
        control_sends_max: one_of(random, &[1, 12]),
        sends_max: one_of(random, &[16, 1024]),
        heartbeat_ns: one_of(random, &[20 * MS, 5 * SECOND]),
        quarantine_ns: one_of(random, &[MS, SECOND]),
        tick_ns: one_of(random, &[MS, 10 * MS]),
        escape: EscapeConfig {
            enabled: random.u8(..4) > 0,
            replace_slabs_max,
            straggler_ns: one_of(random, &[200_000, 2 * MS]),
            ..EscapeConfig::default()
        },
        memory_slabs,
        session_memory_slabs: if memory_slabs == 0 { 0 } else { memory_slabs.max(fragment_slabs) },
        copies_max: one_of(random, &[1, 64]),
        signals: random.bool(),
        ..defaults
    }
}

/// Draws the escape memory that one session may have, in slabs.
fn session_memory(apart: &mut Rng, config: &Config) -> u32 {
    let all = config.session_memory_slabs;
    let fragment_slabs = config.fragment_bytes / SLAB_BYTES_U32;
    let share = one_of(apart, &[fragment_slabs, (all / 4).max(fragment_slabs), all]);
    share.min(all)
}

fn application(random: &mut Rng, name: u32, config: &Config) -> ApplicationPlan {
    let habits = [
        Habit::Fast,
        Habit::Fast,
        Habit::Slow,
        Habit::Stalling,
        Habit::OneByOne,
        Habit::Collecting,
        Habit::Pinning,
        Habit::Choosy,
        Habit::Choosy,
        Habit::Disk,
    ];
    let habit = one_of(random, &habits);
    ApplicationPlan {
        name,
        habit,
        run_ns: one_of(random, &[0, 1_000, 50_000, 2 * MS]),
        parallel: if habit == Habit::Choosy { 1024 } else { one_of(random, &[1, 4, 64]) },
        late_ns: 0,
        rejects_permille: one_of(random, &[0, 0, 20]),
        takes_memory: random.bool() && config.memory_slabs > 0,
        shares_name: false,
        class: random.u8(..config.classes),
        breaks: false,
        is_absent: false,
    }
}

fn sender(random: &mut Rng, names: u32, config: &Config) -> SenderPlan {
    let large_permille = one_of(random, &[0, 10, 100, 1000]);
    let messages = if large_permille == 1000 { 60 } else { one_of(random, &[50, 500, 3000]) };
    SenderPlan {
        app: random.u32(..names),
        messages,
        depth: one_of(random, &[1, 8, 64, 200]),
        large_permille,
        large_bytes: one_of(random, &[8 << 10, 200 << 10, 1 << 20, 4 << 20]),
        small_bytes: one_of(random, &[0, 64, SLAB_BYTES_U32]),
        class: random.u8(..config.classes),
        checksums: random.bool(),
        retries: random.u8(..4) > 0,
        patience_ns: PATIENCE_NS,
        receiver_timeout_ns: RECEIVER_TIMEOUT_NS,
        profile: one_of(random, &[Profile::CONNECTX_6, Profile::RXE, Profile::SMALLEST]),
        bytes_per_us: None,
        leaves: false,
        wants_replies: false,
        takes_back: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_a_scenario_that_the_receiver_and_its_device_take() {
        for seed in 0..2_000 {
            let scenario = Scenario::of(seed);
            scenario.config.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let network = jet_fabric::sim::Network::new(scenario.conditions);
            network.nic(scenario.receiver_nic()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for sender in &scenario.senders {
                network.nic(Scenario::sender_nic(sender)).unwrap();
            }
            for cheat in &scenario.cheats {
                network.nic(cheat.nic()).unwrap();
            }
            assert_eq!(scenario, Scenario::of(seed));
        }
    }
}
