//! Measures what the receiver's state machine (`jet-core`) costs for each message, with a driver that does
//! nothing.
//!
//! The work of a real driver (rings, the NIC) is left out. All caches are warm, as they are at full load.

mod instructions;

use crate::allocations;
use crate::report::{Bound, Row};
use crate::tables;
use jet_core::pool::Run;
use jet_core::{
    Arrival, Commands, Config, CopyFailed, CopyRefused, EscapeCopy, PeerId, Questions, ReadId, Receiver,
    Registration, Remote, SessionEnd, SessionId, SourceId, Standstill, Sums,
};
use jet_wire::message::Versions;
use jet_wire::message::hello::{AppName, Hello};
use jet_wire::message::{ByeReason, HeaderBytes, RequestFields, RequestHeader, SmallFields, SmallHeader};
use jet_wire::segment::{Delivery, Release, release_kind};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

pub use instructions::{CountedArgs, run_role};

/// Number of messages between two flushes: as many as one poll of the NIC gives.
const BATCH: usize = 32;
/// Rounds before those that are timed.
const WARM_UP: usize = 2000;

/// Facts about a delivery by which the slabs of the delivery are released again.
#[derive(Clone, Copy)]
struct Held {
    slot: u32,
    generation: u16,
    bytes: u32,
}

/// An effect handler that carries out no command, and remembers just enough to feed the receiver further.
struct IdleEffectHandler {
    entries: Vec<u32>,
    reads: Vec<ReadId>,
    deliveries: Vec<Held>,
    sent: Vec<PeerId>,
    acknowledged: u64,
}

impl Commands for IdleEffectHandler {
    fn post_srq(&mut self, entry: u32, slab: u32) {
        black_box(slab);
        self.entries.push(entry);
    }
    fn post_read(&mut self, _peer: PeerId, read: ReadId, remote: Remote, _bytes: u32, runs: &[Run]) {
        black_box((remote, runs));
        self.reads.push(read);
    }
    fn send_reply(&mut self, _: PeerId, _: &HeaderBytes, _: u32, _: u32) {}
    fn take_reply(&mut self, _: SessionId, _: u32, _: u32, _: u32) -> bool {
        true
    }
    fn send(&mut self, peer: PeerId, header: &HeaderBytes) {
        black_box(header);
        self.acknowledged += 1;
        self.sent.push(peer);
    }
    fn disconnect(&mut self, peer: PeerId, reason: ByeReason, _message: Option<u64>) {
        panic!("peer {} was cut off: {reason:?}", peer.0);
    }
    fn deliver(&mut self, _session: SessionId, delivery: &Delivery, user_header: &[u8]) {
        black_box((delivery, user_header));
        self.deliveries.push(Held {
            slot: delivery.slot,
            generation: delivery.slot_generation(),
            bytes: delivery.bytes,
        });
    }
    fn close_session(&mut self, session: SessionId, end: SessionEnd) {
        panic!("session {} ended: {end:?}", session.0);
    }
    fn begin_copy(&mut self, _copy: &EscapeCopy) -> Result<(), CopyRefused> {
        panic!("nothing is slow here");
    }
    fn copy_slab(&mut self, _from: u32, _to: u32, _bytes: u32) -> Result<(), CopyFailed> {
        panic!("nothing is slow here");
    }
    fn report_standstill(&mut self, _session: SessionId, _standstill: Option<Standstill>) {}
    fn mark(&mut self, _on: bool) {
        panic!("nothing is slow here");
    }
    fn begin_check(&mut self, _read: ReadId, _bytes: u32, _runs: &[Run]) {
        panic!("nothing has a checksum here");
    }
}

impl Questions for IdleEffectHandler {
    fn relocate(&mut self, _copy: &EscapeCopy) -> bool {
        panic!("nothing is slow here");
    }
    fn payload(&self, _slab: u32, _bytes: u32) -> &[u8] {
        panic!("user headers are short here");
    }
}

impl Sums for IdleEffectHandler {
    fn combine_crc32c(_first: u32, _second: u32, _second_bytes: u32) -> u32 {
        panic!("nothing has a checksum here");
    }
    fn crc32c(&mut self, crc: u32, _slab: u32, _bytes: u32) -> Option<u32> {
        Some(crc)
    }
}

struct Machine {
    receiver: Receiver,
    handler: IdleEffectHandler,
    session: SessionId,
    peer: PeerId,
    sequence: u64,
    now_ns: u64,
}

impl Machine {
    fn new(peer_share_percent: u32) -> Self {
        let config = Config { peer_share_percent, ..Config::default() };
        let mut receiver = Receiver::new(config, 1).expect("the defaults are sound");
        let mut handler = IdleEffectHandler {
            entries: Vec::with_capacity(4096),
            reads: Vec::with_capacity(64),
            deliveries: Vec::with_capacity(4096),
            sent: Vec::with_capacity(64),
            acknowledged: 0,
        };
        receiver.start(0, &mut handler);
        let app = AppName::new("bench").expect("a valid name");
        let session = receiver.handle_session_opened(0, Registration::new(app)).expect("the first session");
        let hello =
            Hello { versions: Versions::SUPPORTED, features: 0, sender_id: 1, receive_entries: 64, app };
        let peer = receiver.handle_hello(0, &hello, SourceId(0), &mut handler).expect("the first peer").peer;
        receiver.handle_connected(peer, u32::MAX);
        receiver.flush(0, &mut handler);
        Self { receiver, handler, session, peer, sequence: 0, now_ns: 0 }
    }

    fn arrive(&mut self, header: &HeaderBytes, payload_bytes: u32) {
        let entry = self.handler.entries.pop().expect("entries follow credit");
        let arrival = Arrival { peer: self.peer, entry, header, payload_bytes };
        self.receiver.handle_receive(self.now_ns, arrival, &mut self.handler);
    }

    fn release(&mut self, held: Held, first: u16, count: u16, finish: bool) {
        let release = Release {
            index: held.slot,
            generation: held.generation,
            first,
            count,
            kind: if finish { release_kind::SLICES_AND_FINISH } else { release_kind::SLICES },
            reserved: 0,
            code: 0,
        };
        self.receiver
            .handle_release(self.now_ns, self.session, release, &mut self.handler)
            .expect("the bench releases what it holds");
    }

    fn flush(&mut self) {
        self.receiver.flush(self.now_ns, &mut self.handler);
        while let Some(peer) = self.handler.sent.pop() {
            self.receiver.handle_sent(peer);
        }
    }

    /// Takes a batch of small messages from arrival to release and acknowledgement. The messages' headers are
    /// made beforehand, since that is the sender's work.
    fn small_batch(&mut self, headers: &[HeaderBytes]) {
        for header in headers {
            self.arrive(header, SMALL_BYTES);
        }
        self.flush();
        let mut at = 0;
        while at < self.handler.deliveries.len() {
            let delivery = self.handler.deliveries[at];
            self.release(delivery, 0, 1, true);
            at += 1;
        }
        self.handler.deliveries.clear();
        self.flush();
        self.now_ns += 1000;
    }

    /// Takes a 256 KiB message from arrival to release and acknowledgement. The message's slices are released
    /// one by one if `by_slice`, else as one run.
    fn large(&mut self, header: &HeaderBytes, by_slice: bool) {
        self.arrive(header, 0);
        self.flush();
        while let Some(read) = self.handler.reads.pop() {
            self.receiver.handle_read_done(self.now_ns, read, true, false, &mut self.handler);
        }
        let mut at = 0;
        let mut bytes = 0;
        while at < self.handler.deliveries.len() {
            let delivery = self.handler.deliveries[at];
            bytes += delivery.bytes;
            let slices = u16::try_from(delivery.bytes.div_ceil(4096)).expect("at most 64");
            let last = bytes == LARGE_BYTES;
            if by_slice {
                (0..slices).for_each(|slice| self.release(delivery, slice, 1, last && slice + 1 == slices));
            } else {
                self.release(delivery, 0, slices, last);
            }
            at += 1;
        }
        self.handler.deliveries.clear();
        self.flush();
        self.now_ns += 1000;
    }

    fn tick(&mut self) {
        self.receiver.handle_tick(self.now_ns, &mut self.handler);
        self.flush();
    }
}

const SMALL_BYTES: u32 = 64;
const LARGE_BYTES: u32 = 256 << 10;

fn small_header(sequence: u64) -> HeaderBytes {
    SmallHeader::encode(&SmallFields {
        sequence,
        tag: sequence,
        payload_bytes: SMALL_BYTES,
        crc32c: None,
        redelivered: false,
        wants_reply: false,
        user_header: b"a user header of 32 bytes, all of",
    })
}

fn large_header(sequence: u64) -> HeaderBytes {
    RequestHeader::encode(&RequestFields {
        sequence,
        tag: sequence,
        length: u64::from(LARGE_BYTES),
        address: 0,
        key: 1,
        class: 0,
        pieces: 0,
        crc32c: None,
        redelivered: false,
        wants_reply: false,
        user_header: b"a user header of 32 bytes, all of",
    })
}

/// Makes a machine in which credit has grown until a whole batch fits. It doubles when most of it is used.
fn warm(peer_share_percent: u32, headers: &mut [HeaderBytes], rounds: usize) -> Machine {
    let mut machine = Machine::new(peer_share_percent);
    for n in 0..rounds {
        let fits = BATCH.min(6 << (n / 100).min(8));
        (0..fits).for_each(|at| headers[at] = next_small(&mut machine));
        machine.small_batch(&headers[..fits]);
        let header = next_large(&mut machine);
        machine.large(&header, true);
        machine.tick();
    }
    machine
}

/// Measures what the shares of peers cost: a message with them, less one without, in turns. Returns a sample
/// for small messages, and one for large ones.
fn shares_cost(machines: &mut [Machine; 2], headers: &mut [HeaderBytes], rounds: usize) -> [f64; 2] {
    const TURNS: usize = 20;
    let mut spans = [[0u128; 2]; 2];
    for _ in 0..TURNS {
        for (machine, [small, large]) in machines.iter_mut().zip(&mut spans) {
            for _ in 0..rounds / TURNS {
                headers.iter_mut().for_each(|header| *header = next_small(machine));
                let start = Instant::now();
                machine.small_batch(headers);
                *small += start.elapsed().as_nanos();
                let header = next_large(machine);
                let start = Instant::now();
                machine.large(&header, false);
                *large += start.elapsed().as_nanos();
            }
        }
    }
    let [with, without] = spans;
    let messages = rounds / TURNS * TURNS;
    [(0, BATCH), (1, 1)].map(|(which, at_once)| {
        per(with[which], messages * at_once) - per(without[which], messages * at_once)
    })
}

/// What the benchmark `core` is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Only count the instructions of a message, by valgrind: the same on any machine, and on a busy one
    #[arg(long)]
    instructions: bool,
}

/// Runs the benchmark `core`, or its count of instructions.
///
/// # Errors
/// Valgrind is missing, or fails.
pub fn run(samples: u32, asked: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    if asked.instructions { instructions::run() } else { Ok([timed(samples), tables::run(samples)].concat()) }
}

fn timed(samples: u32) -> Vec<Row> {
    let rounds = 4000usize;
    let mut headers = vec![HeaderBytes::ZERO; BATCH];
    let (mut small_ns, mut by_slice_ns, mut by_run_ns) = (Vec::new(), Vec::new(), Vec::new());
    let shares_percent = Config::default().peer_share_percent;
    let mut machine = warm(shares_percent, &mut headers, WARM_UP);
    // A share of 100 % is none.
    let mut machines = [warm(shares_percent, &mut headers, WARM_UP), warm(100, &mut headers, WARM_UP)];
    let (mut small_shares_ns, mut large_shares_ns) = (Vec::new(), Vec::new());
    let mut worst = 0u64;
    let mut spans = vec![0u128; samples as usize * 3];
    let before = allocations::count();
    for sample in 0..samples as usize {
        let mut small = 0;
        for _ in 0..rounds {
            (0..BATCH).for_each(|at| headers[at] = next_small(&mut machine));
            let start = Instant::now();
            machine.small_batch(&headers);
            small += start.elapsed().as_nanos();
        }
        let mut large = [0; 2];
        for (which, span) in large.iter_mut().enumerate() {
            for _ in 0..rounds {
                let header = next_large(&mut machine);
                let start = Instant::now();
                machine.large(&header, which == 0);
                *span += start.elapsed().as_nanos();
            }
        }
        spans[sample * 3..sample * 3 + 3].copy_from_slice(&[small, large[0], large[1]]);
        worst = worst.max(allocations::count() - before);
    }
    for _ in 0..samples {
        let [small, large] = shares_cost(&mut machines, &mut headers, rounds);
        small_shares_ns.push(small);
        large_shares_ns.push(large);
    }
    for span in spans.chunks_exact(3) {
        small_ns.push(per(span[0], rounds * BATCH));
        by_slice_ns.push(per(span[1], rounds * 64));
        by_run_ns.push(per(span[2], rounds * 64));
    }
    vec![
        Row::new("core", "small message, whole life", "ns", small_ns, Bound::AtMost(60.0)),
        Row::new("core", "256 KiB message, a slice, released singly", "ns", by_slice_ns, Bound::AtMost(15.0)),
        Row::new("core", "256 KiB message, a slice, released as a run", "ns", by_run_ns, Bound::AtMost(15.0)),
        Row::new("core", "shares of peers, a small message", "ns", small_shares_ns, Bound::AtMost(5.0)),
        Row::new("core", "shares of peers, a 256 KiB message", "ns", large_shares_ns, Bound::AtMost(5.0)),
        Row::exact("core", "allocations, all samples", "count", vec![as_f64(worst)], Bound::AtMost(0.0)),
    ]
}

fn next_small(machine: &mut Machine) -> HeaderBytes {
    machine.sequence += 1;
    small_header(machine.sequence)
}

fn next_large(machine: &mut Machine) -> HeaderBytes {
    machine.sequence += 1;
    large_header(machine.sequence)
}

#[allow(clippy::cast_precision_loss)] // spans of seconds have 2^30 ns
fn per(span_ns: u128, count: usize) -> f64 {
    span_ns as f64 / count as f64
}

#[allow(clippy::cast_precision_loss)] // counts are small
fn as_f64(count: u64) -> f64 {
    count as f64
}
