//! Lives of applications: their processes begin, register, are killed, and others take their places. A
//! process whose session was ended for a fault may live on for a while, and read what it held.

use crate::actors::{ApplicationActor, NEVER};
use crate::application::ApplicationProcess;
use crate::event::{Event, Life};
use crate::faults::RESTART_NS;
use crate::ghosts::Holder;
use crate::scenario::ApplicationPlan;
use crate::simulation::{REGISTER_NS, Simulation, app_name, random_of};
use jet_core::{OpenError, ProcessId, Registration, SessionEnd, UserId};
use jet_wire::message::hello::AppName;

/// Quarantines for which a process lives on after its session was ended for a fault, at most.
const HOLDS_QUARANTINES: u64 = 3;

impl Simulation {
    /// Makes a process of an application, by its place.
    pub(crate) fn application(&mut self, index: usize, plan: ApplicationPlan) -> ApplicationActor {
        self.lives += 1;
        let mut random =
            random_of(self.scenario.seed, "application", (index as u64) << 32 | u64::from(self.lives));
        let at_ns = if plan.is_absent { NEVER } else { self.now_ns + random.u64(1..=REGISTER_NS) };
        ApplicationActor { process: ApplicationProcess::new(plan, Life(self.lives), random), at_ns }
    }

    pub(crate) fn register(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let again_ns = now_ns + self.random.u64(1..=REGISTER_NS);
        let application = &mut self.applications[index];
        application.at_ns = again_ns;
        let Some(process) = &mut self.receiver.process else { return };
        let ApplicationPlan { name, class, takes_memory, shares_name, .. } = *application.process.plan();
        let life = application.process.life();
        let app = AppName::new(&app_name(name)).expect("a short name");
        let kept_slabs = process.slabs_for_faults_of(app);
        let registration = Registration {
            name: app,
            class,
            takes_memory,
            process: self.scenario.tells_processes.then_some(ProcessId(life.0)),
            user: Some(UserId(0)),
            shares_name,
        };
        match process.open(now_ns, life, registration) {
            Ok(opened) => {
                application.process.open(opened);
                // It looks at its ring before it sleeps for the first time.
                application.at_ns = now_ns + 1;
                self.check_registration(app, kept_slabs);
                self.observer.note(now_ns, &Event::Opened { life, app: name });
                self.observer.counts().add("session opened");
                let has_it = |other: &&ApplicationActor| {
                    other.process.plan().name == name && other.process.ticket().is_some()
                };
                if self.applications.iter().filter(has_it).count() > 1 {
                    self.observer.counts().add("sessions that share a name");
                }
            }
            Err(OpenError::NameTaken) => self.observer.counts().add("name taken"),
            // What another life held for a fault of its own is not back yet.
            Err(OpenError::Quarantined { .. }) => self.observer.counts().add("held back for a fault"),
            Err(OpenError::TooMany { .. }) => self.observer.counts().add("no session left"),
            Err(OpenError::Draining) => self.observer.counts().add("registered while draining"),
            Err(error) => self.observer.fail("registration", error.to_string()),
        }
        // A command wakes the receiver's thread.
        self.receiver.was_commanded = true;
        self.wake_receiver();
    }

    /// Kills an application's process. Another one takes its place.
    pub(crate) fn kill_application(&mut self, index: usize) {
        self.end_life(index, 0);
    }

    /// Ends an application's session. Its process lives on for so many nanoseconds, and reads what it held.
    /// Another one takes its place.
    fn end_life(&mut self, index: usize, lives_on_ns: u64) {
        let ended = &mut self.applications[index].process;
        let (life, ticket, ghosts) = (ended.life(), ended.ticket(), ended.close());
        self.ghosts.note_end(self.now_ns);
        if let Some(ticket) = ticket {
            let until_ns = self.now_ns + self.scenario.config.quarantine_ns;
            self.ghosts.hold(Holder { gone_ns: self.now_ns + lives_on_ns, ticket, until_ns, ghosts });
            self.end_holders();
        }
        self.observer.note(self.now_ns, &Event::Closed { life });
        self.replace_application(index);
    }

    pub(crate) fn replace_application(&mut self, index: usize) {
        let plan = self.scenario.applications[index];
        let mut actor = self.application(index, plan);
        if self.is_calm {
            actor.process.calm();
        }
        actor.at_ns = actor.at_ns.saturating_add(self.chaos.u64(..RESTART_NS));
        self.applications[index] = actor;
    }

    /// Ends an application whose session was ended for a fault. Its process may live on for a while, and
    /// reads what it held.
    pub(crate) fn end_session(&mut self, life: Life, end: SessionEnd) {
        let index = self.applications.iter().position(|one| one.process.life() == life);
        let Some(index) = index.filter(|_| end.is_fault()) else { return };
        if !self.applications[index].process.has_broken() {
            let what = format!("the session of {life:?} was ended for a fault, and it broke nothing");
            self.observer.fail("faults", what);
        }
        if self.chaos.bool() {
            return self.kill_application(index);
        }
        let lives_on_ns = self.chaos.u64(1..=HOLDS_QUARANTINES * self.scenario.config.quarantine_ns);
        self.observer.counts().add("lives on after its fault");
        self.end_life(index, lives_on_ns);
    }

    /// Ends the processes that lived on until now.
    pub(crate) fn end_holders(&mut self) {
        while let Some(ticket) = self.ghosts.let_go(self.now_ns) {
            if let Some(process) = &mut self.receiver.process {
                process.gone.push(ticket);
                self.wake_receiver();
            }
        }
    }
}
