//! Faults: what the simulation does to its actors, and how they come back.

use crate::actors::NEVER;
use crate::event::{Event, Fault};
use crate::simulation::Simulation;
use jet_fabric::sim::NicId;
use std::error::Error;

/// Nanoseconds until a process that was killed is there again, at most.
pub(crate) const RESTART_NS: u64 = 50_000_000;
/// Nanoseconds for which something stands still, at most.
const STAND_STILL_NS: u64 = 20_000_000;
/// Nanoseconds that a drain may take, at most.
const DRAIN_NS: u64 = 200_000_000;
/// Nanoseconds by which a clock jumps ahead, at most.
pub const JUMP_NS: u64 = 10_000_000_000;

impl Simulation {
    pub(crate) fn cause_fault(&mut self) -> Result<(), Box<dyn Error>> {
        let mean_ns = self.scenario.fault_ns;
        if self.faults == self.scenario.faults_max {
            // No further one comes, and so there is nothing to wait for.
            self.fault_ns = NEVER;
            self.scenario.calm_ns = self.scenario.calm_ns.min(self.now_ns);
            return Ok(());
        }
        self.faults += 1;
        self.fault_ns = self.now_ns + self.chaos.u64(1..=mean_ns * 2);
        let fault = self.scenario.faults[self.chaos.usize(..self.scenario.faults.len())];
        self.observer.note(self.now_ns, &Event::Fault(fault));
        let span_ns = self.chaos.u64(1..=STAND_STILL_NS);
        let application = self.chaos.usize(..self.applications.len());
        let sender = self.chaos.usize(..self.senders.len());
        match fault {
            Fault::Cut => self.cut(sender),
            Fault::Freeze => {
                let nic = match &self.receiver.process {
                    Some(process) if self.chaos.bool() => process.nic,
                    _ => self.senders[sender].process.nic(),
                };
                self.network.freeze(nic, self.now_ns + span_ns);
            }
            Fault::Stall => {
                if self.receiver.process.is_some() && self.receiver.at_ns < NEVER {
                    let until_ns = self.receiver.at_ns.max(self.now_ns) + span_ns;
                    (self.receiver.at_ns, self.receiver.stalled_until_ns) = (until_ns, until_ns);
                    self.receiver.late_ns += span_ns;
                }
            }
            Fault::KillApplication => self.kill_application(application),
            Fault::Scribble => {
                // It does so as soon as it holds something: then there is more to break.
                let breaking = &mut self.applications[application];
                breaking.process.will_break();
                if breaking.process.ticket().is_some() {
                    breaking.at_ns = breaking.at_ns.min(self.now_ns + 1);
                }
            }
            Fault::RestartReceiver => self.restart_receiver(),
            Fault::LoseReceiver => {
                if let Some(process) = &self.receiver.process {
                    self.network.lose(process.nic);
                    self.observer.counts().add("receiver lost its power");
                    self.restart_receiver();
                }
            }
            Fault::Drain => {
                if let Some(process) = &mut self.receiver.process {
                    let deadline_ns = process.clock_ns(self.now_ns) + self.chaos.u64(1..=DRAIN_NS);
                    process.driver.drain(deadline_ns);
                    self.receiver.was_commanded = true;
                    self.wake_receiver();
                }
            }
            Fault::RemoveReceiverDevice => {
                if let Some(process) = &self.receiver.process {
                    self.network.remove(process.nic);
                }
            }
            Fault::ClockJump => {
                let span_ns = self.chaos.u64(1..=JUMP_NS);
                if let Some(process) = &mut self.receiver.process {
                    process.jump(&self.network, span_ns);
                    self.ghosts.hurry(span_ns);
                    self.receiver.was_commanded = true;
                    self.wake_receiver();
                }
            }
            Fault::HalfOpen => {
                self.cut(sender);
                self.network.halve_next(true);
            }
            Fault::SenderClockJump => {
                let span_ns = self.chaos.u64(1..=JUMP_NS);
                let jumping = &mut self.senders[sender];
                jumping.process.jump(span_ns);
                // Its timers are due earlier, where it has any.
                if jumping.at_ns < NEVER {
                    jumping.at_ns = jumping.at_ns.min(self.now_ns + 1);
                }
            }
            Fault::RemoveDevice => self.network.remove(self.senders[sender].process.nic()),
            Fault::LoseSender => {
                let plan = self.scenario.senders[sender];
                let lost = &self.senders[sender].process;
                let (nic, id) = (lost.nic(), lost.id());
                self.network.lose(nic);
                self.count_sender(sender);
                self.observer.note(self.now_ns, &Event::SenderLost { sender: id });
                self.senders[sender] = self.sender(sender, plan)?;
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

    /// Ends the receiver's process. Another one begins later.
    pub(crate) fn restart_receiver(&mut self) {
        if self.receiver.process.is_none() {
            return;
        }
        self.count_receiver();
        self.receiver.process = None;
        self.ghosts.forget_holders();
        // Its sockets are closed: the applications' processes hear of it, and register with the next one.
        while self.bells.take_woken().is_some() || self.bells.take_ended().is_some() {}
        for index in 0..self.applications.len() {
            if self.applications[index].process.ticket().is_some() {
                let life = self.applications[index].process.life();
                self.observer.note(self.now_ns, &Event::Closed { life });
                self.replace_application(index);
            }
        }
        self.receiver.at_ns = self.now_ns + self.chaos.u64(1..=RESTART_NS);
        self.receiver.job_ns = NEVER;
        self.receiver.is_asleep = false;
        (self.receiver.stalled_until_ns, self.receiver.late_ns) = (0, 0);
    }
}
