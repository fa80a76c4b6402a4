//! The simulation: it makes up the time, and lets each actor run when it is due.

use crate::application::{ApplicationProcess, Ran};
use crate::bells::Bells;
use crate::checkers::{self, Failure};
use crate::counts::Counts;
use crate::event::{Event, Fault, Life};
use crate::log::Log;
use crate::observer::Observer;
use crate::receiver::ReceiverProcess;
use crate::scenario::{ApplicationPlan, Scenario};
use crate::sender::SenderProcess;
use fastrand::Rng;
use jet_core::OpenError;
use jet_fabric::sim::{Network, NicId};
use jet_wire::message::hello::AppName;
use std::any::Any;
use std::error::Error;
use std::panic::{self, AssertUnwindSafe};

/// Time of an actor that does not run by itself.
const NEVER: u64 = u64::MAX;
/// Turns of the receiver between two looks at its statistics.
const LOOK_EVERY: u32 = 32;
/// Nanoseconds until an application whose registration was refused tries again, at most.
const REGISTER_NS: u64 = 5_000_000;
/// Nanoseconds until a process that was killed is there again, at most.
const RESTART_NS: u64 = 50_000_000;
/// Nanoseconds for which something stands still, at most.
const STAND_STILL_NS: u64 = 20_000_000;

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

struct ReceiverActor {
    process: Option<ReceiverProcess>,
    /// Time at which it runs next, or is started.
    at_ns: u64,
    is_asleep: bool,
    /// Time at which a job of its workers ends.
    job_ns: u64,
    incarnation: u64,
    turns: u32,
    /// Time for which it is late.
    late_ns: u64,
}

struct ApplicationActor {
    process: ApplicationProcess,
    at_ns: u64,
}

struct SenderActor {
    process: SenderProcess,
    at_ns: u64,
}

/// A simulation.
pub struct Simulation {
    scenario: Scenario,
    network: Network,
    bells: Bells,
    observer: Observer,
    counts: Counts,
    random: Rng,
    now_ns: u64,
    receiver: ReceiverActor,
    applications: Vec<ApplicationActor>,
    senders: Vec<SenderActor>,
    lives: u32,
    sender_ids: u64,
    fault_ns: u64,
    is_calm: bool,
}

/// Which actor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Receiver,
    Application(usize),
    Sender(usize),
    Chaos,
}

fn app_name(number: u32) -> String {
    format!("app-{number}")
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
        let mut random = Rng::with_seed(scenario.seed ^ 0x5eed);
        let network = Network::new(scenario.conditions);
        let observer = Observer::new(checkers::all(&scenario));
        let receiver = ReceiverActor {
            process: None,
            at_ns: 0,
            is_asleep: false,
            job_ns: NEVER,
            incarnation: 0,
            turns: 0,
            late_ns: 0,
        };
        let fault_ns = if scenario.faults.is_empty() { NEVER } else { random.u64(..=scenario.fault_ns * 2) };
        let mut simulation = Self {
            network,
            bells: Bells::default(),
            observer,
            counts: Counts::default(),
            random,
            now_ns: 0,
            receiver,
            applications: Vec::new(),
            senders: Vec::new(),
            lives: 0,
            sender_ids: 0,
            fault_ns,
            is_calm: false,
            scenario,
        };
        for plan in simulation.scenario.applications.clone() {
            let actor = simulation.application(plan);
            simulation.applications.push(actor);
        }
        for plan in simulation.scenario.senders.clone() {
            let actor = simulation.sender(plan)?;
            simulation.senders.push(actor);
        }
        Ok(simulation)
    }

    fn application(&mut self, plan: ApplicationPlan) -> ApplicationActor {
        self.lives += 1;
        let random = self.random.fork();
        let process = ApplicationProcess::new(plan, Life(self.lives), random);
        let at_ns = self.now_ns + self.random.u64(1..=REGISTER_NS);
        ApplicationActor { process, at_ns }
    }

    fn sender(&mut self, plan: crate::scenario::SenderPlan) -> Result<SenderActor, Box<dyn Error>> {
        self.sender_ids += 1;
        // Identities are random numbers that are not 0.
        let id = self.random.u64(1..=u64::MAX >> 16) << 16 | self.sender_ids;
        let random = self.random.fork();
        let process = SenderProcess::start(plan, id, &self.network, random, &app_name(plan.app))?;
        let at_ns = self.now_ns + self.random.u64(1..=REGISTER_NS);
        self.observer.note(self.now_ns, &Event::SenderBegan { sender: id });
        Ok(SenderActor { process, at_ns })
    }

    /// Runs the simulation to its end.
    ///
    /// # Errors
    /// An error of the system.
    pub fn run(mut self) -> Result<Outcome, Box<dyn Error>> {
        while self.observer.failure().is_none() && !self.is_settled() {
            // What panicked is not called any more: only what was seen of it is read.
            match panic::catch_unwind(AssertUnwindSafe(|| self.step())) {
                Ok(stepped) => stepped?,
                Err(panicked) => self.observer.fail("panic", panic_text(&*panicked)),
            }
        }
        if self.observer.failure().is_none() {
            if let Some(process) = &self.receiver.process {
                self.observer.look(self.now_ns, &process.stats(), true);
            }
            self.observer.end(self.now_ns);
        }
        self.count_receiver();
        let Self { observer, counts, now_ns, .. } = self;
        Ok(Outcome { log: observer.log().clone(), counts, now_ns, failure: observer.failure().cloned() })
    }

    /// Returns whether everything has ended: all senders are done, and the receiver has nothing left.
    fn is_settled(&mut self) -> bool {
        if !self.senders.iter().all(|sender| sender.process.is_done()) || !self.is_calm {
            return false;
        }
        let Some(process) = &self.receiver.process else { return false };
        let stats = process.stats();
        let is_empty = stats.messages == 0
            && stats.free_slabs + stats.posted_slabs == stats.pool_slabs
            && stats.quarantined_slabs == 0
            && stats.escape.memory_used == 0
            && stats.escape.copies_in_flight == 0
            && stats.in_flight_bytes == 0;
        is_empty && stats.pressure == jet_escape::Pressure::Ok
    }

    /// Lets the next thing happen.
    fn step(&mut self) -> Result<(), Box<dyn Error>> {
        let (mut actor, mut at_ns) = self.next_actor();
        let network_ns = self.network.next_ns().unwrap_or(NEVER);
        let next_ns = at_ns.min(network_ns);
        let limit_ns = self.scenario.calm_ns.saturating_add(self.scenario.settle_ns);
        if next_ns > limit_ns {
            let states = self.states();
            self.observer.fail("liveness", format!("not everything ended in time:\n{states}"));
            return Ok(());
        }
        if !self.is_calm && next_ns >= self.scenario.calm_ns {
            // Others may be next then.
            self.now_ns = self.now_ns.max(self.scenario.calm_ns);
            self.calm();
            (actor, at_ns) = self.next_actor();
        }
        self.now_ns = self.now_ns.max(at_ns.min(network_ns));
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
        consider(Actor::Chaos, self.fault_ns);
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
                let again_ns = sender.process.run(now_ns, &mut self.observer);
                sender.at_ns = again_ns.map_or(NEVER, |again_ns| again_ns.max(now_ns + turn_ns));
            }
            Actor::Chaos => self.cause_fault()?,
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
            self.counts.add(if end.is_fault() { "session ended for a fault" } else { "session ended" });
            // Its process ends with its session.
            if let Some(index) = self.applications.iter().position(|one| one.process.life() == life)
                && end.is_fault()
            {
                self.kill_application(index);
            }
        }
    }

    fn find(&mut self, life: Life) -> Option<&mut ApplicationActor> {
        self.applications.iter_mut().find(|application| application.process.life() == life)
    }

    fn wake_receiver(&mut self) {
        if self.receiver.is_asleep && self.receiver.process.is_some() {
            let at_ns = self.wake_ns();
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
            receiver.is_asleep = false;
            return Ok(());
        };
        if receiver.job_ns <= now_ns {
            receiver.job_ns = if process.driver.step_workers() { now_ns + job_ns } else { NEVER };
        }
        let late_ns = std::mem::take(&mut receiver.late_ns);
        if late_ns > 0 {
            process.driver.handle_stall(late_ns);
        }
        if std::mem::take(&mut receiver.is_asleep) {
            process.driver.wake_up();
        }
        let worked = process.driver.turn(now_ns, |_| false);
        receiver.turns += 1;
        if receiver.turns.is_multiple_of(LOOK_EVERY) {
            observer.look(now_ns, &process.stats(), false);
        }
        if worked {
            receiver.job_ns = receiver.job_ns.min(now_ns + job_ns);
            receiver.at_ns = now_ns + turn_ns;
        } else if process.driver.prepare_sleep(now_ns) {
            receiver.is_asleep = true;
            receiver.at_ns = process.driver.idle_span_ns(now_ns).map_or(NEVER, |span_ns| now_ns + span_ns);
        } else {
            receiver.at_ns = now_ns + turn_ns;
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

    fn register(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let again_ns = now_ns + self.random.u64(1..=REGISTER_NS);
        let application = &mut self.applications[index];
        application.at_ns = again_ns;
        let Some(process) = &mut self.receiver.process else { return };
        let ApplicationPlan { name, class, takes_memory, .. } = *application.process.plan();
        let life = application.process.life();
        let app = AppName::new(&app_name(name)).expect("a short name");
        match process.open(life, app, (class, takes_memory)) {
            Ok(opened) => {
                application.process.open(opened);
                self.observer.note(now_ns, &Event::Opened { life, app: name });
                self.counts.add("session opened");
            }
            Err(OpenError::NameTaken) => self.counts.add("name taken"),
            Err(OpenError::TooMany { .. }) => self.counts.add("no session left"),
            Err(error) => self.observer.fail("registration", error.to_string()),
        }
        // A command wakes the receiver's thread.
        self.wake_receiver();
    }

    fn calm(&mut self) {
        self.is_calm = true;
        self.fault_ns = NEVER;
        self.observer.note(self.now_ns, &Event::Calm);
        for index in 0..self.applications.len() {
            if self.applications[index].process.is_wild() {
                self.kill_application(index);
            }
            let application = &mut self.applications[index];
            application.process.calm();
            application.at_ns = application.at_ns.min(self.now_ns + 1);
        }
    }

    fn cause_fault(&mut self) -> Result<(), Box<dyn Error>> {
        let mean_ns = self.scenario.fault_ns;
        self.fault_ns = self.now_ns + self.random.u64(1..=mean_ns * 2);
        let fault = self.scenario.faults[self.random.usize(..self.scenario.faults.len())];
        self.observer.note(self.now_ns, &Event::Fault(fault));
        self.counts.add(fault.name());
        let span_ns = self.random.u64(1..=STAND_STILL_NS);
        let application = self.random.usize(..self.applications.len());
        let sender = self.random.usize(..self.senders.len());
        match fault {
            Fault::Cut => self.cut(sender),
            Fault::Freeze => {
                let nic = match &self.receiver.process {
                    Some(process) if self.random.bool() => process.nic,
                    _ => self.senders[sender].process.nic(),
                };
                self.network.freeze(nic, self.now_ns + span_ns);
            }
            Fault::Stall => {
                if self.receiver.process.is_some() && self.receiver.at_ns < NEVER {
                    self.receiver.at_ns = self.receiver.at_ns.max(self.now_ns) + span_ns;
                    self.receiver.late_ns += span_ns;
                }
            }
            Fault::KillApplication => self.kill_application(application),
            Fault::Scribble => {
                let life = self.applications[application].process.life();
                if self.applications[application].process.ticket().is_some() {
                    self.observer.note(self.now_ns, &Event::Scribbled { life });
                    self.applications[application].process.scribble();
                    // It reads nothing any more, and dies when the receiver ends its session, or later.
                    self.applications[application].at_ns = NEVER;
                    self.wake_receiver();
                }
            }
            Fault::RestartReceiver => self.restart_receiver(),
            Fault::RemoveDevice => self.network.remove(self.senders[sender].process.nic()),
            Fault::LoseSender => {
                let plan = self.scenario.senders[sender];
                let lost = &self.senders[sender].process;
                let (nic, id) = (lost.nic(), lost.id());
                self.network.lose(nic);
                self.observer.note(self.now_ns, &Event::SenderLost { sender: id });
                self.senders[sender] = self.sender(plan)?;
            }
        }
        Ok(())
    }

    fn cut(&mut self, sender: usize) {
        let nic: NicId = self.senders[sender].process.nic();
        let connections = self.network.connections(nic);
        if let Some(qp) = connections.first() {
            self.network.cut(nic, *qp);
        }
    }

    /// Kills an application's process. Another one takes its place.
    fn kill_application(&mut self, index: usize) {
        let killed = &mut self.applications[index].process;
        let (life, ticket) = (killed.life(), killed.ticket());
        killed.close();
        if let (Some(ticket), Some(process)) = (ticket, &mut self.receiver.process) {
            process.driver.application_gone(self.now_ns, ticket);
            self.wake_receiver();
        }
        self.observer.note(self.now_ns, &Event::Closed { life });
        self.replace_application(index);
    }

    fn replace_application(&mut self, index: usize) {
        let plan = self.scenario.applications[index];
        let mut actor = self.application(plan);
        if self.is_calm {
            actor.process.calm();
        }
        actor.at_ns += self.random.u64(..RESTART_NS);
        self.applications[index] = actor;
    }

    fn restart_receiver(&mut self) {
        if self.receiver.process.is_none() {
            return;
        }
        self.count_receiver();
        self.receiver.process = None;
        // Its sockets are closed: the applications' processes hear of it, and register with the next one.
        while self.bells.take_woken().is_some() || self.bells.take_ended().is_some() {}
        for index in 0..self.applications.len() {
            if self.applications[index].process.ticket().is_some() {
                let life = self.applications[index].process.life();
                self.observer.note(self.now_ns, &Event::Closed { life });
                self.replace_application(index);
            }
        }
        self.receiver.at_ns = self.now_ns + self.random.u64(1..=RESTART_NS);
        self.receiver.job_ns = NEVER;
        self.receiver.is_asleep = false;
        self.receiver.late_ns = 0;
    }

    /// Counts what the receiver's process has counted.
    fn count_receiver(&mut self) {
        if let Some(process) = &self.receiver.process {
            self.counts.add_stats(&process.stats(), &process.driver.counters());
        }
    }

    fn states(&self) -> String {
        let mut lines: Vec<String> = self.senders.iter().map(|sender| sender.process.state()).collect();
        lines.extend(self.applications.iter().map(|application| application.process.state()));
        match &self.receiver.process {
            Some(process) => {
                let (asleep, at_ns) = (self.receiver.is_asleep, self.receiver.at_ns);
                lines.push(format!("receiver: asleep {asleep}, runs at {at_ns}: {:?}", process.stats()));
            }
            None => lines.push("receiver: not running".to_owned()),
        }
        lines.join("\n")
    }
}
