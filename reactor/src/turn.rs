//! A turn of the driver: everything that waits, a bounded amount of each.

use crate::application::Application;
use crate::driver::Driver;
use crate::posting::slot_of;
use crate::workers::Done;
use jet_core::{Arrival, CopyId, ReadId, ReleaseError, SourceId};
use jet_fabric::nic::{Completion, Event, Nic, PrivateData, Qp, Source, Status, Work};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::hello::{Hello, Refusal};

/// The most completions taken by one poll.
const COMPLETIONS: usize = 64;
/// The most connection events taken in one turn: others' messages go on while a crowd comes or leaves.
const EVENTS: usize = 16;
/// The most release entries of one session taken in one turn.
const RELEASES: usize = 128;

/// Completions of one poll. They lie in the driver, since a new array for each turn would be written each
/// time.
pub(crate) type Polled = Box<[Completion; COMPLETIONS]>;

/// Returns room for the completions of one poll.
pub(crate) fn nothing_polled() -> Polled {
    Box::new([Completion::UNUSED; COMPLETIONS])
}

impl<N: Nic, A: Application> Driver<N, A> {
    /// Runs one turn: takes what the NIC, applications and workers have, calls `others`, and carries out all
    /// that follows from this. Returns `false` where there was nothing to do.
    ///
    /// `others` does whatever else is asked of the driver, and returns whether it did anything. It is called
    /// after the applications' releases were taken, because an application that is gone wrote them before it
    /// went.
    pub fn turn(&mut self, now_ns: u64, others: impl FnOnce(&mut Self) -> bool) -> bool {
        let mut worked = self.poll_nic(now_ns);
        // What waits has its turn before new headers, which might take the room that completions gave back.
        worked |= self.handler.post_waiting_headers();
        worked |= self.report_poisoned();
        worked |= self.poll_releases(now_ns);
        while let Some(done) = self.handler.workers.take_done() {
            // A lost page that was replaced under the job was noted before the job could continue.
            self.report_poisoned();
            match done {
                Done::Copy { id } => self.receiver.handle_copied(now_ns, CopyId(id), true, &mut self.handler),
                Done::Check { id, crc } => {
                    self.receiver.handle_checked(now_ns, ReadId(id), crc, &mut self.handler);
                }
                Done::CopyFailed { id, poisoned } => {
                    self.handler.memory.note_poisoned(poisoned);
                    self.report_poisoned();
                    self.receiver.handle_copied(now_ns, CopyId(id), false, &mut self.handler);
                }
                Done::CheckFailed { id, poisoned } => {
                    self.handler.memory.note_poisoned(poisoned);
                    self.report_poisoned();
                    self.receiver.handle_check_failed(now_ns, ReadId(id), &mut self.handler);
                }
            }
            worked = true;
        }
        worked |= others(self);
        worked |= self.handler.sessions.has_faulted();
        let due = self.receiver.next_tick_due(now_ns);
        if due {
            self.receiver.handle_tick(now_ns, &mut self.handler);
        }
        if worked || due {
            // Before anything is posted, because released slabs may be among the lost ones. And before
            // deliveries are shown to applications.
            self.report_poisoned();
            self.handler.post_waiting_reads();
            self.receiver.flush(now_ns, &mut self.handler);
            self.repair(now_ns);
            self.handler.publish();
        }
        worked || self.handler.sessions.has_faulted()
    }

    /// Reports memory that was lost to the receiver. Returns `false` if there was none.
    #[inline]
    fn report_poisoned(&mut self) -> bool {
        self.handler.memory.note_lost();
        let mut told = false;
        while let Some(run) = self.handler.memory.take_poisoned() {
            self.receiver.handle_poisoned(run, &mut self.handler);
            told = true;
        }
        told
    }

    fn poll_nic(&mut self, now_ns: u64) -> bool {
        let count = self.handler.nic.poll(now_ns, &mut *self.polled);
        if count > 0 {
            // A software NIC notes a lost page before it fills the page that took its place.
            self.report_poisoned();
        }
        for at in 0..count {
            let completion = self.polled[at];
            self.complete(now_ns, &completion);
        }
        let mut worked = count > 0;
        // A connection's end must be handled after its last completion was polled.
        for _ in 0..EVENTS {
            let Some(event) = self.handler.nic.poll_event(now_ns) else { break };
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
                let Some(peer) = self.handler.peers.peer(completion.qp).filter(|_| ok) else {
                    self.receiver.handle_receive_failed(entry);
                    return;
                };
                // The header (128 bytes) is copied out, because the receiver borrows the effect handler while
                // it handles the header.
                let header = self.handler.memory.header(entry);
                let payload_bytes = payload_bytes.min(SLAB_BYTES_U32);
                let arrival = Arrival { peer, entry, header: &header, payload_bytes };
                self.receiver.handle_receive(now_ns, arrival, &mut self.handler);
            }
            Work::Read { id } => {
                self.handler.posting.read_completed();
                let refused = completion.status == Status::RemoteAccess;
                let read = ReadId(u32::try_from(id).expect("a READ's id is its index"));
                self.receiver.handle_read_done(now_ns, read, ok, refused, &mut self.handler);
            }
            Work::Send { id } => {
                if let Some(peer) = self.handler.peers.peer(completion.qp) {
                    if let Some(slot) = slot_of(id) {
                        self.receiver.handle_reply_sent(peer, slot);
                    }
                    self.handler.peers.send_completed(peer);
                    self.receiver.handle_sent(peer);
                }
            }
            Work::SrqFlush { entry } => self.receiver.handle_receive_failed(entry),
        }
    }

    fn connection(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::ConnectRequest { qp, source, private_data } => {
                self.answer_connect_request(now_ns, qp, source, &private_data);
            }
            Event::Connected { qp, reads_max, .. } => {
                if let Some(peer) = self.handler.peers.peer(qp) {
                    self.receiver.handle_connected(peer, reads_max);
                }
            }
            Event::Rejected { qp, .. } | Event::Disconnected { qp, .. } => {
                if let Some(peer) = self.handler.peers.unbind(qp) {
                    let application = self.handler.peers.application(peer);
                    tracing::debug!(peer = peer.0, application, "a sender's connection ended");
                    self.handler.posting.give_up(peer);
                    self.fail_unposted_reads(now_ns);
                    self.receiver.handle_peer_lost(peer);
                }
            }
            Event::Gone => self.nic_is_gone = true,
        }
    }

    fn answer_connect_request(&mut self, now_ns: u64, qp: Qp, source: Source, private_data: &PrivateData) {
        let joined = match Hello::decode(private_data.as_slice()) {
            Ok(hello) => {
                let joined =
                    self.receiver.handle_hello(now_ns, &hello, SourceId(source.number()), &mut self.handler);
                let application = hello.app.as_str();
                match &joined {
                    Ok(joined) => tracing::debug!(peer = joined.peer.0, application, "a sender connects"),
                    Err(Refusal::TooManyPeers) => tracing::warn!(
                        application,
                        "a sender is refused: there are as many as limits.peers; one that has been idle for \
                         a second, or one of a host with more of them, is asked to leave"
                    ),
                    Err(refusal) => tracing::debug!(application, "a sender is refused: {refusal}"),
                }
                joined.map(|joined| (joined, hello.app))
            }
            Err(error) => {
                tracing::debug!("a connection is refused: {error}");
                Err(Refusal::Malformed)
            }
        };
        match joined {
            Ok((joined, application)) => {
                self.handler.peers.bind(qp, joined.peer, application);
                let answer = PrivateData::new(&joined.welcome.encode()).expect("a welcome fits private data");
                if self.handler.nic.accept(qp, &answer).is_err() {
                    self.handler.peers.unbind(qp);
                    self.receiver.handle_peer_lost(joined.peer);
                }
            }
            Err(refusal) => {
                let answer = PrivateData::new(&refusal.encode()).expect("a refusal fits private data");
                self.handler.nic.reject(qp, &answer);
            }
        }
    }

    /// Takes what applications gave back, up to the first session that ends for a fault: an end visits the
    /// record of every message, and many applications may break their sessions at once. The others follow in
    /// the next turn.
    fn poll_releases(&mut self, now_ns: u64) -> bool {
        let mut worked = false;
        let mut position = 0;
        while let Some(session) = self.handler.sessions.nth(position) {
            for _ in 0..RELEASES {
                let Some(release) = self.handler.sessions.next_release(session) else { break };
                worked = true;
                let handled = match release {
                    // An error has closed the session already; the receiver counts it, and the application
                    // learns of it.
                    Ok(release) => self.receiver.handle_release(now_ns, session, release, &mut self.handler),
                    Err(error) => {
                        self.receiver.handle_session_fault(now_ns, session, error, &mut self.handler);
                        Err(error)
                    }
                };
                if handled.is_err() {
                    return true;
                }
            }
            self.handler.sessions.took_releases(session);
            position += 1;
        }
        worked
    }

    /// Reports to the receiver what the effect handler could not carry out: all READs, and the first session
    /// whose ring is broken. An end visits the record of every message, and many rings may break at once. The
    /// others follow in the next turns.
    fn repair(&mut self, now_ns: u64) {
        let mut repaired = self.fail_unposted_reads(now_ns);
        if let Some(session) = self.handler.sessions.take_faulted() {
            self.receiver.handle_session_fault(now_ns, session, ReleaseError::Ring, &mut self.handler);
            repaired = true;
        }
        while repaired {
            self.receiver.flush(now_ns, &mut self.handler);
            repaired = self.fail_unposted_reads(now_ns);
        }
    }

    /// Reports READs that could not be posted as failed. Returns `true` if there were some.
    fn fail_unposted_reads(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(read) = self.handler.posting.take_unposted() {
            self.receiver.handle_read_done(now_ns, read, false, false, &mut self.handler);
            any = true;
        }
        any
    }
}
