//! A NIC on verbs and RDMA CM (Jet §4.1): in hardware, or the kernel's own in software.
//!
//! Each object of verbs has a file, and holds the object that it is made in. The life of a connection, which
//! uses all of them, is in [`handshake`] and [`ending`]. [`polling`] turns the device's completions into
//! those of [`crate::Nic`].
//!
//! * All QPs take from one SRQ, whose entries complete to one queue. What QPs post completes to other queues,
//!   each shared by a few QPs ([`send_completions`]). SENDs and READs are gathered, and given to the device
//!   as one chain for each QP. Only READs, probes and the last request of a chain are signalled. Requests
//!   before a signalled one have completed with it.
//! * Nothing is posted that could not complete. The SRQ's queue has a place for every SRQ entry. The other
//!   queues have a place for every SEND, READ and probe that their QPs may have under way.
//! * A QP that ends is taken to the error state, and its work completes. It is destroyed when the device
//!   reports that it takes no SRQ entry any more, or has reported nothing for a while. Destroyed earlier, it
//!   would lose SRQ entries that it took and whose completions nobody saw.

mod addresses;
mod completion_queue;
mod completion_vector;
mod connection_manager;
mod connections;
mod context;
mod device;
mod device_events;
mod ece;
mod ending;
mod error;
mod gather;
mod handshake;
mod interfaces;
mod later;
mod listening;
mod lookup;
mod options;
mod outcomes;
mod outgoing;
mod paths;
mod polling;
mod port;
mod posting;
mod probing;
mod queue_pair;
mod regions;
mod seating;
mod send_completions;
mod set_up;
mod shared_receive_queue;
mod staging;
mod status;
mod surveying;
#[cfg(test)]
mod tests;
mod watch;

pub use addresses::{LocalAddress, local_addresses};
pub use completion_queue::QueueUse;
pub use error::VerbsError;
pub use options::{DeviceChoice, VerbsOptions};
pub use port::PortState;
pub use watch::{ListeningAt, Path, PortStatus, PortWatch};

use crate::address::Address;
use crate::limits::NicLimits;
use crate::memory::{SharedMemory, ThreadPrefers};
use crate::nic::{
    Access, Completion, ConnectError, Counters, Event, Limits, ListenError, MemoryKey, Nic, Payload,
    PostError, PrivateData, Qp, ReadRequest, RegisterError, SendRequest, SrqEntry,
};
use crate::readiness::{Readiness, none_ready};
use completion_queue::{Batch, CompletionChannel, CompletionQueue};
use connection_manager::{ConnectionId, EventChannel};
use connections::Connections;
use device::Device;
use gather::Gathered;
use listening::Listening;
use lookup::Lookup;
use options::PAYLOAD_BYTES_MAX;
use outgoing::Outgoing;
use paths::Paths;
use polling::Expansion;
use probing::Probing;
use regions::{Domain, Regions};
use send_completions::SendCompletions;
use set_up::{SetUp, Survey, ThreadOptions};
use shared_receive_queue::SharedReceiveQueue;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use surveying::Surveying;

/// Polls between two checks of the event channels, each of which is a system call. A sleeping user is woken
/// by events at once.
const CHECK_EVERY: u32 = 4096;
/// Polls between two checks of the event channels while a connection is being made or ended.
const CHECK_EVERY_TIMED: u32 = 16;
/// Events of connections that are taken in one check, at most. Each takes some system calls.
const EVENTS_AT_ONCE: u32 = 8;
/// Number of empty polls that a poll with work counts for. Such a poll takes longer, and its messages share
/// the cost of the check's system calls.
const POLL_WITH_WORK: u32 = 16;

/// NIC on verbs; see the module's documentation.
pub struct VerbsNic {
    // In the order in which they must be dropped: first the thread that works on connections, then the
    // connections, then the queues that they use, then the domain.
    set_up: SetUp,
    listening: Vec<Listening>,
    connections: Connections,
    receives: SharedReceiveQueue,
    receive_completions: CompletionQueue,
    send_completions: SendCompletions,
    completion_channel: Arc<CompletionChannel>,
    regions: Regions,
    outgoing: Outgoing,
    channel: Arc<EventChannel>,
    domain: Arc<Domain>,
    /// Identifier bound to an address of the device, so that the device's removal is reported even without
    /// connections.
    _sentry: Option<ConnectionId>,
    device: Device,
    options: VerbsOptions,
    limits: Limits,
    /// Limits that the device allows, of what was asked for.
    device_limits: NicLimits,
    by_qp_number: Lookup,
    gathered: Gathered,
    events: VecDeque<Event>,
    watch: Arc<PortWatch>,
    surveying: Surveying,
    paths: Paths,
    readiness: Readiness,
    expanding: Option<Expansion>,
    /// SRQ entries that completed and were not shown yet.
    arrivals: Batch,
    /// Completion queue that is polled next: 0 is the queue of SRQ entries, and the queues of posted work
    /// follow.
    turn: usize,
    probing: Probing,
    /// Indices of connections that wait for something with a deadline.
    timed: Vec<u32>,
    receives_posted: u32,
    sends: u32,
    reads: u32,
    counters: Counters,
    polls_since_check: u32,
    check_first: bool,
    polled: bool,
}

// SAFETY: the library's objects may be used by any thread, by one at a time, which `&mut self` guarantees.
unsafe impl Send for VerbsNic {}

impl VerbsNic {
    /// Makes a NIC with nothing registered and no connections.
    ///
    /// # Errors
    /// [`VerbsError`] names the verb, what the system said, and what to change.
    pub fn new(options: VerbsOptions) -> Result<Self, VerbsError> {
        if let Some(problem) = options.problem() {
            return Err(VerbsError::Options(problem));
        }
        if options.set_up_thread && std::env::var_os("MLX5_SINGLE_THREADED").is_some_and(|value| value == "1")
        {
            return Err(VerbsError::Options(
                "MLX5_SINGLE_THREADED=1 in the environment says that one thread uses the device, and libmlx5 \
                 ends the process where there are two; unset it",
            ));
        }
        let device = Device::open(&options.device, options.cpu)?;
        // Memory that the library and the kernel allocate for the queues comes from the device's node.
        let _near = near(options.numa_node, &device)?;
        // Made before everything that lives in the device: where this function fails, what was made last is
        // dropped first.
        let channel = Arc::new(EventChannel::new()?);
        let port = device.port();
        let survey = Survey::of(port);
        let addresses = survey.addresses.iter();
        let sentry = addresses
            .filter_map(|found| ConnectionId::bound_to(&channel, found.address).ok())
            .find(|id| port.is_of(id.device()));
        let watch = Arc::new(PortWatch::new(PortStatus::new(&port.device, port.number, &survey)));
        let says = device.attributes();
        let attributes = options.profile.map_or(says, |profile| says.at_most(profile.attributes()));
        let device_limits = NicLimits::derive(&attributes, &options.requirements())?;
        let limits = Limits { numa_node: device.numa_node(), ..device_limits.reported };
        let options = VerbsOptions { sends_max: device_limits.sends, ..options };
        let domain = Arc::new(Domain::new(&device)?);
        let node = options.numa_node.or(limits.numa_node);
        let completion_channel = Arc::new(CompletionChannel::new(&device, node)?);
        let entries = limits.srq_entries_max;
        let receive_completions = CompletionQueue::new(&completion_channel, entries)
            .map_err(|source| VerbsError::SrqEntries { verb: "ibv_create_cq", entries, source })?;
        let send_completions = SendCompletions::new(&completion_channel, device_limits.shape);
        let receives = SharedReceiveQueue::new(&domain, entries)?;
        let further = if device_limits.send_sges == 1 { options.one_stretch_places } else { 0 };
        let payload_places = options.inline_places.saturating_add(further);
        let outgoing = Outgoing::new(&domain, options.sends_max, payload_places, device_limits.send_sges)?;
        let readiness = Readiness::new()?;
        readiness.watch(completion_channel.fd())?;
        readiness.watch(channel.fd())?;
        readiness.watch(device.context().async_fd())?;
        let thread = ThreadOptions { connections: limits.qps_max, numa_node: node, not_on: options.cpu };
        let set_up = SetUp::new(options.set_up_thread.then_some(thread))?;
        if let Some(fd) = set_up.fd() {
            readiness.watch(fd)?;
        }
        Ok(Self {
            set_up,
            listening: Vec::new(),
            connections: Connections::new(limits.qps_max),
            receives,
            receive_completions,
            send_completions,
            completion_channel,
            regions: Regions::new(&domain, options.regions_max),
            outgoing,
            channel,
            domain,
            _sentry: sentry,
            device,
            limits,
            device_limits,
            by_qp_number: Lookup::new(limits.qps_max as usize),
            gathered: Gathered::new(limits.scatter_max.max(device_limits.send_sges) as usize),
            events: VecDeque::with_capacity(3 * limits.qps_max as usize),
            watch,
            surveying: Surveying::after(&survey, options.survey_every),
            paths: Paths::default(),
            readiness,
            expanding: None,
            arrivals: Batch::new(),
            turn: 0,
            probing: Probing::new(options.keep_alive, options.sent_again_for(), Instant::now()),
            timed: Vec::with_capacity(limits.qps_max as usize),
            receives_posted: 0,
            sends: 0,
            reads: 0,
            counters: Counters::default(),
            polls_since_check: 0,
            check_first: false,
            polled: false,
            options,
        })
    }

    /// Returns the device's name.
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// Returns the limits that the device allows, of what was asked for.
    pub fn device_limits(&self) -> &NicLimits {
        &self.device_limits
    }

    /// Returns the use of the NIC's completion queues, that of SRQ entries first.
    pub fn completion_queues(&self) -> impl Iterator<Item = QueueUse> + '_ {
        let arrivals = self.receive_completions.in_use(self.limits.srq_entries_max);
        std::iter::once(arrivals).chain(self.send_completions.queues())
    }

    /// Returns a watch on the port's status, which stays up to date.
    pub fn watch(&self) -> Arc<PortWatch> {
        Arc::clone(&self.watch)
    }

    /// Checks the event channels now and then, gives the device the gathered requests, and ends waits that
    /// took too long.
    fn progress(&mut self) {
        self.polled = true;
        self.send_completions.awake();
        self.polls_since_check = self.polls_since_check.saturating_add(1);
        self.take_outcomes();
        let every = if self.timed.is_empty() { CHECK_EVERY } else { CHECK_EVERY_TIMED };
        if self.check_first || self.polls_since_check >= every {
            self.check_events();
        }
        self.flush();
    }

    /// Takes what the event channels have, and returns how many descriptors were ready.
    fn check_events(&mut self) -> usize {
        (self.check_first, self.polls_since_check) = (false, 0);
        let ready = self.readiness.poll(&mut none_ready());
        if ready > 0 {
            self.readiness.set_timer(None);
            self.set_up.clear();
            self.take_outcomes();
            self.take_completion_events();
            while let Some(event) = device_events::next(self.device.context()) {
                self.handle_device_event(event);
            }
            for taken in 1..=EVENTS_AT_ONCE {
                let Some((context, event)) = connection_manager::next_event(&self.channel) else { break };
                self.handle(context, event);
                // Further events wait for the next poll, so that existing connections do not wait for all of
                // them.
                self.check_first = taken == EVENTS_AT_ONCE;
            }
        }
        let now = Instant::now();
        if !self.timed.is_empty() {
            self.check_deadlines(now);
        }
        if self.surveying.next().is_some_and(|next| now >= next) {
            self.begin_survey(false);
        }
        self.probe_silent(now);
        ready
    }

    fn take_completion_events(&mut self) {
        while let Some(cq) = self.completion_channel.next_event() {
            if cq == self.receive_completions.as_ptr() {
                self.receive_completions.event_came();
            } else {
                self.send_completions.event_came(cq);
            }
        }
    }

    fn has_news(&mut self) -> bool {
        !self.events.is_empty()
            || self.expanding.is_some()
            || self.set_up.has_outcomes()
            || !self.arrivals.is_empty()
            || self.receive_completions.poll(&mut self.arrivals)
            || self.send_completions.has_news()
            || self.may_settle()
    }
}

/// Makes this thread's memory come from a NUMA node while the result lives: the node that was asked for, or
/// else the device's.
fn near(asked: Option<u32>, device: &Device) -> Result<Option<ThreadPrefers>, VerbsError> {
    let Some(node) = asked.or(device.numa_node()) else { return Ok(None) };
    match ThreadPrefers::node(node) {
        Ok(prefers) => Ok(Some(prefers)),
        Err(source) if asked.is_some() => Err(VerbsError::Node { node, source }),
        // A process that may not choose a node (in some containers) gets memory where it runs.
        Err(_) => Ok(None),
    }
}

impl Nic for VerbsNic {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn counters(&self) -> Counters {
        Counters { rnr: self.device.rnr(), ..self.counters }
    }

    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError> {
        self.regions.register(memory, access)
    }

    fn deregister(&mut self, key: MemoryKey) {
        // Gathered requests may name the key.
        self.flush();
        self.regions.deregister(key);
    }

    fn remote_address(&self, _key: MemoryKey, offset: u64) -> u64 {
        // Addresses count from the region's start; see `regions`.
        offset
    }

    fn listen(&mut self, address: &Address) -> Result<Address, ListenError> {
        self.begin_listening(address)
    }

    fn stop_listening(&mut self) {
        self.end_listening();
    }

    fn connect(&mut self, address: &Address, private_data: &PrivateData) -> Result<Qp, ConnectError> {
        self.begin_connecting(address, private_data)
    }

    fn accept(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        self.accept_request(qp, private_data)
    }

    fn reject(&mut self, qp: Qp, private_data: &PrivateData) {
        self.reject_request(qp, private_data);
    }

    fn disconnect(&mut self, qp: Qp) {
        self.begin_farewell(qp);
    }

    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        self.post_receive(entry)
    }

    fn post_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        match request.payload {
            Payload::Inline(bytes) if bytes.len() > PAYLOAD_BYTES_MAX as usize => Err(PostError::Limit),
            Payload::Registered(sge) if sge.bytes > PAYLOAD_BYTES_MAX => Err(PostError::Limit),
            _ => self.gather_send(qp, request),
        }
    }

    fn post_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError> {
        self.gather_read(qp, request)
    }

    fn flush(&mut self) {
        self.give_gathered();
    }

    fn poll(&mut self, _now_ns: u64, completions: &mut [Completion]) -> usize {
        self.progress();
        let polled = self.take_completions(completions);
        if polled > 0 {
            self.polls_since_check = self.polls_since_check.saturating_add(POLL_WITH_WORK - 1);
        }
        polled
    }

    fn poll_event(&mut self, _now_ns: u64) -> Option<Event> {
        if !std::mem::take(&mut self.polled) {
            self.progress();
            self.polled = false;
        }
        self.take_event()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.readiness.fd()
    }

    fn arm(&mut self, _now_ns: u64) -> bool {
        self.flush();
        if self.has_news() || self.check_events() > 0 {
            return false;
        }
        // The check may have gathered probes.
        self.flush();
        self.receives.arm_limit(self.receives_posted, Instant::now());
        self.receive_completions.request_event();
        self.send_completions.watch();
        // Completions from before the request raise no event.
        if self.has_news() {
            return false;
        }
        let probe = self.probing.next();
        let next = self.next_deadline().into_iter().chain(probe).chain(self.surveying.next()).min();
        self.readiness.set_timer(next.map(|at| at.saturating_duration_since(Instant::now())));
        self.check_first = true;
        true
    }
}

impl Drop for VerbsNic {
    fn drop(&mut self) {
        self.stop_listening();
        self.gathered.clear();
        // Work that is with the set-up thread ends with that thread.
        self.set_up = SetUp::Here;
        for index in self.connections.indices() {
            // First the QP is destroyed, then its identifier; the kernel tells the peer.
            let (_, connection) = self.connections.at(index);
            (connection.pair, connection.id) = (None, None);
        }
    }
}
