//! The simulation: it makes up the time, and lets each actor run when it is due.

use crate::actors::{Actor, ApplicationActor, CheatActor, NEVER, ReceiverActor, SenderActor};
use crate::application::Ran;
use crate::bells::Bells;
use crate::cheat::CheatProcess;
use crate::checkers::{Checkers, Failure};
use crate::counts::Counts;
use crate::event::{Event, Life};
use crate::ghosts::Ghosts;
use crate::log::Log;
use crate::observer::Observer;
use crate::receiver::ReceiverProcess;
use crate::scenario::{Scenario, SenderPlan};
use crate::sender::{RepliesPlan, SenderProcess};
use crate::watch::Collected;
use fastrand::Rng;
use jet_fabric::sim::Network;
use std::any::Any;
use std::error::Error;
use std::panic::{self, AssertUnwindSafe};

/// Turns of the receiver between two looks at its statistics.
const LOOK_EVERY: u32 = 32;
/// Nanoseconds until an application whose registration was refused tries again, at most.
pub(crate) const REGISTER_NS: u64 = 5_000_000;

/// What a simulation came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Log of all events.
    pub log: Log,
    /// What happened how often.
    pub counts: Counts,
    /// Time at its end, in nanoseconds.
    pub now_ns: u64,
    /// The first promise that was broken.
    pub failure: Option<Failure>,
}

/// A simulation.
pub struct Simulation {
    pub(crate) scenario: Scenario,
    pub(crate) network: Network,
    pub(crate) bells: Bells,
    pub(crate) observer: Observer,
    /// What actors' times are drawn from.
    pub(crate) random: Rng,
    /// What faults are drawn from.
    pub(crate) chaos: Rng,
    pub(crate) now_ns: u64,
    pub(crate) receiver: ReceiverActor,
    pub(crate) applications: Vec<ApplicationActor>,
    pub(crate) senders: Vec<SenderActor>,
    cheats: Vec<CheatActor>,
    pub(crate) ghosts: Ghosts,
    pub(crate) collected: Collected,
    pub(crate) lives: u32,
    sender_ids: u64,
    /// Faults so far.
    pub(crate) faults: u32,
    /// Time of the next fault.
    pub(crate) fault_ns: u64,
    pub(crate) is_calm: bool,
    /// Whether the cheats were sent away.
    cheats_go: bool,
}

pub(crate) fn app_name(number: u32) -> String {
    format!("app-{number}")
}

/// Returns the number of the application that has a name.
pub fn app_number(name: &str) -> Option<u32> {
    name.strip_prefix("app-")?.parse().ok()
}

/// Returns what one party's chances are drawn from. They are the same whatever other parties there are.
pub(crate) fn random_of(seed: u64, party: &str, number: u64) -> Rng {
    let mut random = Rng::with_seed(seed);
    for byte in party.bytes() {
        random = Rng::with_seed(random.u64(..) ^ u64::from(byte));
    }
    Rng::with_seed(random.u64(..) ^ number)
}

fn panic_text(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<&str>().copied();
    text.or_else(|| panicked.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text").to_owned()
}

impl Simulation {
    /// Makes the simulation of a scenario.
    ///
    /// # Errors
    /// An error of the system, or of the scenario's numbers.
    pub fn new(scenario: Scenario) -> Result<Self, Box<dyn Error>> {
        let seed = scenario.seed;
        let mut chaos = random_of(seed, "faults", 0);
        let fault_ns = if scenario.faults.is_empty() { NEVER } else { chaos.u64(..=scenario.fault_ns * 2) };
        let mut simulation = Self {
            network: Network::new(scenario.conditions),
            bells: Bells::default(),
            observer: Observer::new(Checkers::new(&scenario)),
            random: random_of(seed, "times", 0),
            chaos,
            now_ns: 0,
            receiver: ReceiverActor::NEW,
            applications: Vec::new(),
            senders: Vec::new(),
            cheats: Vec::new(),
            ghosts: Ghosts::default(),
            collected: Collected::default(),
            lives: 0,
            sender_ids: 0,
            faults: 0,
            fault_ns,
            is_calm: false,
            cheats_go: false,
            scenario,
        };
        for (index, plan) in simulation.scenario.applications.clone().into_iter().enumerate() {
            let actor = simulation.application(index, plan);
            simulation.applications.push(actor);
        }
        for (index, plan) in simulation.scenario.senders.clone().into_iter().enumerate() {
            let actor = simulation.sender(index, plan)?;
            simulation.senders.push(actor);
        }
        for (index, plan) in simulation.scenario.cheats.clone().into_iter().enumerate() {
            let number = index as u64;
            let mut random = random_of(seed, "cheat", number);
            let at_ns = random.u64(1..=REGISTER_NS);
            let name = app_name(plan.app);
            let process = CheatProcess::start(plan, number, &simulation.network, random, name)?;
            simulation.cheats.push(CheatActor { process, at_ns });
        }
        Ok(simulation)
    }

    /// Makes a process of a sender, by its place.
    pub(crate) fn sender(&mut self, index: usize, plan: SenderPlan) -> Result<SenderActor, Box<dyn Error>> {
        self.sender_ids += 1;
        let mut random = random_of(self.scenario.seed, "sender", (index as u64) << 32 | self.sender_ids);
        // Identities are random numbers that are not 0.
        let id = random.u64(1..=u64::MAX >> 16) << 16 | self.sender_ids;
        let at_ns = if plan.messages == 0 { NEVER } else { self.now_ns + random.u64(1..=REGISTER_NS) };
        let scenario = &self.scenario;
        let replies = RepliesPlan {
            passes: scenario.config.reply_slots > 0,
            may_be_broken: scenario.applications.iter().any(|application| application.breaks),
        };
        let process = SenderProcess::start(plan, id, &self.network, random, &app_name(plan.app), replies)?;
        self.observer.note(self.now_ns, &Event::SenderBegan { sender: id });
        Ok(SenderActor { process, has_begun: false, at_ns })
    }

    /// Keeps so many of the last events in the log.
    #[must_use]
    pub fn keeping(mut self, events: usize) -> Self {
        self.observer.keep(events);
        self
    }

    /// Runs the simulation to its end.
    ///
    /// # Errors
    /// An error of the system.
    pub fn run(mut self) -> Result<Outcome, Box<dyn Error>> {
        while self.observer.failure().is_none() && !self.is_settled() {
            self.send_cheats_away();
            // What panicked is not called any more: only what was seen of it is read.
            match panic::catch_unwind(AssertUnwindSafe(|| self.step())) {
                Ok(stepped) => stepped?,
                Err(panicked) => self.observer.fail("panic", panic_text(&*panicked)),
            }
        }
        if self.observer.failure().is_none() {
            self.look(true);
            self.observer.end(self.now_ns);
        }
        self.count_receiver();
        for index in 0..self.senders.len() {
            self.count_sender(index);
        }
        let Self { mut observer, network, now_ns, .. } = self;
        let happened = network.happened();
        observer.counts().add_many("connections half open", happened.half_open);
        observer.counts().add_many("requests refused by a queue", happened.refusals);
        let counts = observer.counts().clone();
        Ok(Outcome { log: observer.log().clone(), counts, now_ns, failure: observer.failure().cloned() })
    }

    /// Sends the cheats away once the others have all their ends: these must not depend on it.
    fn send_cheats_away(&mut self) {
        let is_over = self.is_calm && self.senders.iter().all(|sender| sender.process.is_done());
        if is_over && !std::mem::replace(&mut self.cheats_go, true) {
            for cheat in &mut self.cheats {
                cheat.process.calm();
                cheat.at_ns = cheat.at_ns.min(self.now_ns + 1);
            }
        }
    }

    /// Lets the next thing happen.
    fn step(&mut self) -> Result<(), Box<dyn Error>> {
        let (mut actor, mut at_ns) = self.next_actor();
        let network_ns = self.network.next_ns().unwrap_or(NEVER);
        let next_ns = at_ns.min(network_ns);
        if self.check_standstill(next_ns) || self.check_time(next_ns) {
            return Ok(());
        }
        if !self.is_calm && next_ns >= self.scenario.calm_ns {
            // Others may be next then.
            self.now_ns = self.now_ns.max(self.scenario.calm_ns);
            self.calm();
            (actor, at_ns) = self.next_actor();
        }
        if next_ns.saturating_sub(self.now_ns) > self.scenario.wake_ns + self.scenario.turn_ns {
            self.check_sleepers();
        }
        self.now_ns = self.now_ns.max(at_ns.min(network_ns));
        self.check_ghosts();
        if network_ns <= at_ns {
            self.network.advance(self.now_ns);
        } else {
            self.run_actor(actor)?;
        }
        self.ring();
        Ok(())
    }

    fn next_actor(&self) -> (Actor, u64) {
        let mut next = (Actor::Receiver, self.receiver.at_ns.min(self.receiver.job_ns));
        let mut consider = |actor, at_ns| {
            if at_ns < next.1 {
                next = (actor, at_ns);
            }
        };
        for (index, application) in self.applications.iter().enumerate() {
            consider(Actor::Application(index), application.at_ns);
        }
        for (index, sender) in self.senders.iter().enumerate() {
            consider(Actor::Sender(index), sender.at_ns);
        }
        for (index, cheat) in self.cheats.iter().enumerate() {
            consider(Actor::Cheat(index), cheat.at_ns);
        }
        consider(Actor::Chaos, self.fault_ns);
        consider(Actor::Holder, self.ghosts.holder_ns().unwrap_or(NEVER));
        next
    }

    fn run_actor(&mut self, actor: Actor) -> Result<(), Box<dyn Error>> {
        match actor {
            Actor::Receiver => self.run_receiver()?,
            Actor::Application(index) => self.run_application(index),
            Actor::Sender(index) => {
                let turn_ns = self.turn_ns();
                let now_ns = self.now_ns;
                let sender = &mut self.senders[index];
                sender.has_begun = true;
                let again_ns = sender.process.run(now_ns, &mut self.observer);
                sender.at_ns = again_ns.map_or(NEVER, |again_ns| again_ns.max(now_ns + turn_ns));
            }
            Actor::Cheat(index) => {
                let cheat = &mut self.cheats[index];
                cheat.at_ns = cheat.process.run(self.now_ns, &mut self.observer).unwrap_or(NEVER);
            }
            Actor::Chaos => self.cause_fault()?,
            Actor::Holder => self.end_holders(),
        }
        Ok(())
    }

    fn turn_ns(&mut self) -> u64 {
        self.random.u64(1..=self.scenario.turn_ns)
    }

    fn wake_ns(&mut self) -> u64 {
        self.now_ns + self.random.u64(1..=self.scenario.wake_ns)
    }

    /// Wakes those for whom a bell rang.
    fn ring(&mut self) {
        while let Some(nic) = self.network.take_woken() {
            if self.receiver.process.as_ref().is_some_and(|process| process.nic == nic) {
                self.wake_receiver();
            } else if let Some(index) = self.senders.iter().position(|sender| sender.process.nic() == nic) {
                let at_ns = self.wake_ns();
                let sender = &mut self.senders[index];
                sender.at_ns = sender.at_ns.min(at_ns);
            }
        }
        while let Some(life) = self.bells.take_woken() {
            let at_ns = self.wake_ns();
            if let Some(application) = self.find(life) {
                application.at_ns = application.at_ns.min(at_ns);
            }
        }
        while let Some((life, end)) = self.bells.take_ended() {
            self.observer.counts().add(if end.is_fault() {
                "session ended for a fault"
            } else {
                "session ended"
            });
            self.end_session(life, end);
        }
    }

    fn find(&mut self, life: Life) -> Option<&mut ApplicationActor> {
        self.applications.iter_mut().find(|application| application.process.life() == life)
    }

    /// Wakes the receiver, where it sleeps.
    pub(crate) fn wake_receiver(&mut self) {
        if self.receiver.is_asleep && self.receiver.process.is_some() {
            let at_ns = self.wake_ns().max(self.receiver.stalled_until_ns);
            self.receiver.at_ns = self.receiver.at_ns.min(at_ns);
        }
    }

    fn run_receiver(&mut self) -> Result<(), Box<dyn Error>> {
        let now_ns = self.now_ns;
        let turn_ns = self.turn_ns();
        let job_ns = self.random.u64(1..=self.scenario.job_ns);
        let Self { receiver, observer, scenario, network, bells, .. } = self;
        let Some(process) = &mut receiver.process else {
            receiver.incarnation += 1;
            let started = ReceiverProcess::start(scenario, network, bells, receiver.incarnation, now_ns)?;
            observer.note(now_ns, &Event::ReceiverBegan { nic: started.nic });
            receiver.process = Some(started);
            receiver.at_ns = now_ns + turn_ns;
            (receiver.is_tired, receiver.is_asleep) = (false, false);
            return Ok(());
        };
        if receiver.job_ns <= now_ns {
            let (any, rang) = process.step_workers();
            receiver.job_ns = if any { now_ns + job_ns } else { NEVER };
            if receiver.at_ns > now_ns {
                if rang {
                    self.wake_receiver();
                }
                return Ok(());
            }
        }
        // Others may have done something since it found nothing: then it must not sleep.
        if std::mem::take(&mut receiver.is_tired)
            && !receiver.was_commanded
            && process.gone.is_empty()
            && let Some(span_ns) = process.sleep(now_ns)
        {
            receiver.is_asleep = true;
            receiver.at_ns = span_ns.map_or(NEVER, |span_ns| now_ns + span_ns);
            return Ok(());
        }
        let late_ns = std::mem::take(&mut receiver.late_ns);
        if late_ns > 0 {
            process.driver.handle_stall(late_ns);
        }
        if std::mem::take(&mut receiver.is_asleep) {
            process.driver.wake_up();
        }
        let worked = process.turn(now_ns, std::mem::take(&mut receiver.was_commanded));
        receiver.turns += 1;
        let looks = receiver.turns.is_multiple_of(LOOK_EVERY);
        receiver.at_ns = now_ns + turn_ns;
        if process.ends(now_ns, worked) {
            self.restart_receiver();
            return Ok(());
        }
        if worked {
            receiver.job_ns = receiver.job_ns.min(now_ns + job_ns);
        } else {
            receiver.is_tired = true;
        }
        if looks {
            // Those whose sessions the receiver has ended hear of it first.
            self.ring();
            self.look(false);
        }
        Ok(())
    }

    fn run_application(&mut self, index: usize) {
        let (now_ns, turn_ns) = (self.now_ns, self.turn_ns());
        let Self { applications, receiver, observer, .. } = self;
        let application = &mut applications[index];
        if application.process.ticket().is_none() {
            return self.register(index);
        }
        let Ran { again_ns, wakes_receiver } = application.process.run(now_ns, observer);
        application.at_ns = again_ns.map_or(NEVER, |again_ns| again_ns.max(now_ns + turn_ns));
        if wakes_receiver && receiver.process.is_some() {
            self.wake_receiver();
        }
    }

    fn calm(&mut self) {
        self.is_calm = true;
        self.fault_ns = NEVER;
        self.network.halve_next(false);
        self.observer.note(self.now_ns, &Event::Calm);
        for index in 0..self.applications.len() {
            // Who only gave back what it must not is to lose its session for that.
            if self.applications[index].process.has_scribbled() {
                self.kill_application(index);
            }
            let application = &mut self.applications[index];
            if application.process.plan().is_absent {
                continue;
            }
            if application.process.plan().stops() {
                self.observer.counts().add("stopped until the calm");
            }
            application.process.calm();
            application.at_ns = application.at_ns.min(self.now_ns + 1);
        }
    }

    /// Counts what the receiver's process has counted.
    pub(crate) fn count_receiver(&mut self) {
        if let Some(process) = &self.receiver.process {
            self.observer.counts().add_stats(&process.stats(), &process.driver.counters());
        }
    }

    /// Counts what a sender's process has counted.
    pub(crate) fn count_sender(&mut self, index: usize) {
        self.observer.counts().add_sender(&self.senders[index].process.stats());
    }

    pub(crate) fn states(&self) -> String {
        let mut lines: Vec<String> = self.senders.iter().map(|sender| sender.process.state()).collect();
        lines.extend(self.applications.iter().map(|application| application.process.state()));
        match &self.receiver.process {
            Some(process) => {
                let (asleep, at_ns) = (self.receiver.is_asleep, self.receiver.at_ns);
                lines.push(format!("receiver: asleep {asleep}, runs at {at_ns}: {:?}", process.stats()));
                lines.extend(process.peers(self.now_ns).map(|peer| format!("{peer:?}")));
                lines.extend(process.sessions().map(|session| format!("{session:?}")));
            }
            None => lines.push("receiver: not running".to_owned()),
        }
        lines.join("\n")
    }
}
