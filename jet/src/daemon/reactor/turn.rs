//! One turn of the reactor: everything that waits, a bounded amount of each.

use super::command::{Command, NewSession, SessionTicket};
use super::{Drain, Reactor};
use crate::daemon::workers::Done;
use jet_core::{Arrival, CopyId, OpenError, ReadId, ReleaseError};
use jet_fabric::nic::{Completion, Event, Nic, PrivateData, Qp, Status, Work};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::hello::{Hello, Refusal};

/// Completions taken in one turn.
const COMPLETIONS: usize = 64;
/// Release entries of one session taken in one turn.
const RELEASES: usize = 128;

const NOTHING: Completion =
    Completion { qp: Qp { index: 0, generation: 0 }, work: Work::Send { id: 0 }, status: Status::Success };

impl<N: Nic> Reactor<N> {
    /// `false`: there was nothing to do.
    pub(super) fn turn(&mut self, now_ns: u64) -> bool {
        // Headers that wait for room in the NIC are work: no sleep before they are gone.
        let mut worked = self.hands.send_rest();
        worked |= self.poll_nic(now_ns);
        worked |= self.tell_poisoned();
        worked |= self.poll_releases(now_ns);
        while let Some(done) = self.hands.take_done() {
            // What was replaced under the job was noted before the job could go on.
            self.tell_poisoned();
            match done {
                Done::Copy { id } => self.receiver.handle_copied(now_ns, CopyId(id), true, &mut self.hands),
                Done::Check { id, crc } => {
                    self.receiver.handle_checked(now_ns, ReadId(id), crc, &mut self.hands);
                }
                Done::CopyFailed { id, poisoned } => {
                    self.hands.note_poisoned(poisoned);
                    self.tell_poisoned();
                    self.receiver.handle_copied(now_ns, CopyId(id), false, &mut self.hands);
                }
                Done::CheckFailed { id, poisoned } => {
                    self.hands.note_poisoned(poisoned);
                    self.tell_poisoned();
                    self.receiver.handle_check_failed(now_ns, ReadId(id), &mut self.hands);
                }
            }
            worked = true;
        }
        while let Some(command) = self.commands.take() {
            self.obey(now_ns, command);
            worked = true;
        }
        let due = self.receiver.next_tick_due(now_ns);
        if due {
            self.receiver.handle_tick(now_ns, &mut self.hands);
        }
        if worked || due {
            // Before anything is posted, for what was given back may be among it; and before what is delivered is shown.
            self.tell_poisoned();
            self.hands.post_waiting_reads();
            self.receiver.flush(now_ns, &mut self.hands);
            self.mend(now_ns);
            self.hands.publish();
        }
        worked
    }

    /// Tells the receiver of memory that was lost. `false`: none was.
    #[inline]
    fn tell_poisoned(&mut self) -> bool {
        self.hands.note_lost();
        let mut told = false;
        while let Some(run) = self.hands.take_poisoned() {
            self.receiver.handle_poisoned(run, &mut self.hands);
            told = true;
        }
        told
    }

    fn poll_nic(&mut self, now_ns: u64) -> bool {
        let mut completions = [NOTHING; COMPLETIONS];
        let count = self.hands.nic.poll(now_ns, &mut completions);
        if count > 0 {
            // What a software NIC found lost, it noted before it filled what took its place.
            self.tell_poisoned();
        }
        for completion in &completions[..count] {
            self.complete(now_ns, completion);
        }
        let mut worked = count > 0;
        // A connection's end comes after its last completion was polled.
        while let Some(event) = self.hands.nic.poll_event(now_ns) {
            self.connection(now_ns, event);
            worked = true;
        }
        worked
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, completion: &Completion) {
        let ok = completion.status == Status::Success;
        match completion.work {
            Work::Receive { entry, payload_bytes } => {
                let Some(peer) = self.hands.peer(completion.qp).filter(|_| ok) else {
                    self.receiver.handle_receive_failed(entry);
                    return;
                };
                // Copied out (128 bytes): the hands are busy with what the receiver says about it.
                let header = *self.hands.header(entry);
                let payload_bytes = payload_bytes.min(SLAB_BYTES_U32);
                let arrival = Arrival { peer, entry, header: &header, payload_bytes };
                self.receiver.handle_receive(now_ns, arrival, &mut self.hands);
            }
            Work::Read { id } => {
                let refused = completion.status == Status::RemoteAccess;
                let read = ReadId(u32::try_from(id).expect("a READ's id is its index"));
                self.receiver.handle_read_done(now_ns, read, ok, refused, &mut self.hands);
            }
            Work::Send { .. } => {
                if let Some(peer) = self.hands.peer(completion.qp) {
                    self.receiver.handle_sent(peer);
                }
            }
            Work::SrqFlush { entry } => self.receiver.handle_receive_failed(entry),
        }
    }

    fn connection(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::ConnectRequest { qp, private_data } => self.welcome(qp, &private_data),
            Event::Connected { qp, reads_max, .. } => {
                if let Some(peer) = self.hands.peer(qp) {
                    self.receiver.handle_connected(peer, reads_max);
                }
            }
            Event::Rejected { qp, .. } | Event::Disconnected { qp, .. } => {
                if let Some(peer) = self.hands.unbind(qp) {
                    self.hands.give_up_reads(peer);
                    self.fail_unposted_reads(now_ns);
                    self.receiver.handle_peer_lost(peer, &mut self.hands);
                }
            }
            Event::Gone => self.nic_is_gone = true,
        }
    }

    fn welcome(&mut self, qp: Qp, private_data: &PrivateData) {
        let joined = match Hello::decode(private_data.as_slice()) {
            Ok(hello) => self.receiver.handle_hello(&hello),
            Err(_) => Err(Refusal::Malformed),
        };
        match joined {
            Ok(joined) => {
                self.hands.bind(qp, joined.peer);
                let answer = PrivateData::new(&joined.welcome.encode()).expect("a welcome fits private data");
                if self.hands.nic.accept(qp, &answer).is_err() {
                    self.hands.unbind(qp);
                    self.receiver.handle_peer_lost(joined.peer, &mut self.hands);
                }
            }
            Err(refusal) => {
                let answer = PrivateData::new(&refusal.encode()).expect("a refusal fits private data");
                self.hands.nic.reject(qp, &answer);
            }
        }
    }

    fn poll_releases(&mut self, now_ns: u64) -> bool {
        let mut worked = false;
        let mut position = 0;
        while let Some(session) = self.hands.open_session(position) {
            for _ in 0..RELEASES {
                let Some(app) = self.hands.session(session) else { break };
                match app.segment.releases.pop() {
                    Ok(Some(release)) => {
                        worked = true;
                        // An error has closed the session; it is counted, and the application is told.
                        let _ = self.receiver.handle_release(now_ns, session, release, &mut self.hands);
                    }
                    Ok(None) => break,
                    Err(_) => {
                        worked = true;
                        self.receiver.handle_session_fault(
                            now_ns,
                            session,
                            ReleaseError::Ring,
                            &mut self.hands,
                        );
                    }
                }
            }
            if let Some(app) = self.hands.session(session) {
                app.segment.releases.advance();
            }
            // A session that was closed made room for the next at the same position.
            if self.hands.open_session(position) == Some(session) {
                position += 1;
            }
        }
        worked
    }

    /// What the hands could not carry out comes back to the receiver.
    fn mend(&mut self, now_ns: u64) {
        loop {
            let mut mended = self.fail_unposted_reads(now_ns);
            while let Some(session) = self.hands.take_faulted() {
                self.receiver.handle_session_fault(now_ns, session, ReleaseError::Ring, &mut self.hands);
                mended = true;
            }
            if !mended {
                return;
            }
            self.receiver.flush(now_ns, &mut self.hands);
        }
    }

    /// READs that could not be posted have failed; `true`: there were some.
    fn fail_unposted_reads(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(read) = self.hands.take_unposted_read() {
            self.receiver.handle_read_done(now_ns, read, false, false, &mut self.hands);
            any = true;
        }
        any
    }

    fn obey(&mut self, now_ns: u64, command: Command) {
        match command {
            Command::Open { new, reply } => {
                let opened = self.open(now_ns, *new);
                if let Err(Ok(ticket)) = reply.send(opened) {
                    // The control plane gave up meanwhile.
                    self.gone(now_ns, ticket);
                }
            }
            Command::End { ticket } => self.end(now_ns, ticket),
            Command::Gone { ticket } => self.gone(now_ns, ticket),
            Command::Status { reply } => {
                // Whoever asked may be gone.
                let _ = reply.send(self.status());
            }
            Command::StatusRows { from, reply } => {
                // Likewise.
                let _ = reply.send(self.rows(from));
            }
            Command::EscapeMemory { ready_slabs, error } => {
                self.receiver.handle_escape_memory(ready_slabs);
                self.escape_error = error;
            }
            Command::Drain { deadline_ms } => {
                let deadline_ns = now_ns.saturating_add(deadline_ms.saturating_mul(1_000_000));
                match &mut self.drain {
                    Drain::Not => {
                        self.receiver.drain();
                        self.hands.nic.stop_listening();
                        self.drain = Drain::Finishing { deadline_ns };
                    }
                    Drain::Finishing { deadline_ns: before } => *before = deadline_ns,
                    // What was to be finished is over.
                    Drain::Leaving { .. } => {}
                }
            }
        }
    }

    fn open(&mut self, now_ns: u64, new: NewSession) -> Result<SessionTicket, OpenError> {
        let session =
            self.receiver.handle_session_opened(new.app, new.class, new.takes_memory, new.process)?;
        match self.hands.attach(session, new) {
            Ok(ticket) => Ok(SessionTicket { session, ticket }),
            Err(_) => {
                self.receiver.handle_session_gone(now_ns, session, &mut self.hands);
                Err(OpenError::TooMany { max: self.receiver.config().sessions_max })
            }
        }
    }

    fn end(&mut self, now_ns: u64, ticket: SessionTicket) {
        if self.hands.has_had(ticket) {
            self.receiver.handle_session_ended(now_ns, ticket.session, &mut self.hands);
        }
    }

    fn gone(&mut self, now_ns: u64, ticket: SessionTicket) {
        // Until it is gone its number is nobody else's.
        if self.hands.has_had(ticket) {
            self.receiver.handle_session_gone(now_ns, ticket.session, &mut self.hands);
        }
    }
}
