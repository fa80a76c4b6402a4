//! Tests of messages out of memory of the program's own, in one piece or several, between real processes.

use crate::rig::{Rig, random_for};
use crate::traffic::{fill, fits, next, until_received};
use jet_client::receive::{Message, Session};
use jet_client::send::{AckStatus, Envelope, SendBuffer, SendMemory, Sender, SharedSender};
use jet_test_support::random::Random;
use jet_test_support::waiting::WAIT_LIMIT;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::OwnedFd;
use std::time::Duration;

const APP: &str = "store";
const ARENA_BYTES: usize = 4 << 20;
const PAGE: usize = 4096;

/// A memory file as a program has it, with a mapping of its own.
struct ProgramsFile {
    file: OwnedFd,
    base: *mut u8,
}

impl ProgramsFile {
    fn new(flags: MemfdFlags) -> rustix::io::Result<Self> {
        let file = memfd_create("program", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, ARENA_BYTES as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of this file; it stays until the drop.
        let base =
            unsafe { mmap(std::ptr::null_mut(), ARENA_BYTES, protection, MapFlags::SHARED, &file, 0)? };
        Ok(Self { file, base: base.cast() })
    }

    /// Writes the message with that tag through the program's own mapping, as if the message began at
    /// `offset`.
    fn write(&self, tag: u64, offset: usize, bytes: usize) {
        assert!(offset + bytes <= ARENA_BYTES);
        // SAFETY: within the mapping; no buffer has the range yet.
        fill(tag, unsafe { std::slice::from_raw_parts_mut(self.base.add(offset), bytes) });
    }
}

impl Drop for ProgramsFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this file's, and nobody uses it any more.
        unsafe { munmap(self.base.cast(), ARENA_BYTES) }.expect("it was mapped");
    }
}

/// Takes a message whole, and checks its bytes.
fn check(message: &mut Message<'_>, bytes: u64) {
    let (tag, mut taken) = (message.tag(), 0);
    assert_eq!(message.bytes(), bytes);
    while let Some(slice) = message.next_timeout(WAIT_LIMIT).expect("it comes whole") {
        assert!(fits(tag, slice.offset(), &slice), "message {tag} from {} on", slice.offset());
        taken += slice.len() as u64;
    }
    assert_eq!(taken, bytes);
}

/// Lets the application take and consume a message, and the sender hear of it.
fn delivered(session: &Session, sender: &mut Sender, bytes: usize) -> (Option<SendBuffer>, Vec<SendBuffer>) {
    let mut message = next(session, sender);
    check(&mut message, bytes as u64);
    message.consume();
    session.flush();
    let end = sender.wait_timeout(WAIT_LIMIT).expect("in time").expect("something is in flight");
    assert_eq!(end.status, AckStatus::Consumed);
    (end.buffer, end.pieces)
}

#[test]
fn a_programs_memory_file_is_sent_from_where_it_lies_on_every_fabric() {
    let rig = Rig::start(&[]);
    let session = rig.session_again(APP);
    for address in rig.fabrics() {
        // Huge pages where this host has some.
        let huge = ProgramsFile::new(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).ok();
        for program in huge.into_iter().chain([ProgramsFile::new(MemfdFlags::empty()).expect("memory")]) {
            let mut sender = Sender::connect(&Rig::lasting_options(&address, APP).crc(true)).expect("let in");
            program.write(1, 12_345, 300_000);
            // SAFETY: below, the file is written only where no buffer is.
            let memory = unsafe { SendMemory::from_file(program.file.try_clone().expect("a descriptor")) };
            let memory = memory.expect("it is sealed only now");
            sender.register(&memory).expect("room");
            let buffer = memory.take(12_345..312_345).expect("free");
            let place = buffer.as_ptr();
            sender.send(1, buffer).expect("taken");
            let (buffer, _) = delivered(&session, &mut sender, 300_000);
            let buffer = buffer.expect("it comes back");
            assert_eq!(buffer.as_ptr(), place);
            drop(buffer);
            // A mapping from before the file was given stays writable. What is small is sent from there, too.
            program.write(2, 12_344, 4096);
            let buffer = memory.take(12_344..16_440).expect("the range is free again");
            sender.send_small_buffer(2, buffer).expect("taken");
            delivered(&session, &mut sender, 4096);
            sender.deregister(&memory).expect("nothing is in flight");
        }
    }
    assert_eq!(rig.status().faults.sessions, 0);
    rig.wait_whole();
}

/// Returns buffers that are the message with that tag: pieces of the sender's own memory and of the arena.
fn pieces_of(
    tag: u64,
    (sender, memory): (&mut Sender, &SendMemory),
    random: &mut Random,
) -> (Vec<SendBuffer>, usize) {
    let count = 1 + random.size_below(16);
    let mut message = vec![0; 1 + random.size_below(count * 64 * 1024)];
    let slabs = message.len().div_ceil(PAGE);
    let count = count.min(slabs);
    fill(tag, &mut message);
    let mut pieces = Vec::new();
    for at in 0..count {
        let (begin, end) = (at * slabs / count * PAGE, ((at + 1) * slabs / count * PAGE).min(message.len()));
        let mut in_arena = || {
            let from = random.size_below(ARENA_BYTES - (end - begin));
            memory.take(from..from + (end - begin)).ok()
        };
        let own = |sender: &mut Sender| sender.buffer(end - begin).expect("memory");
        let mut piece = if at % 2 == 0 { in_arena() } else { None }.unwrap_or_else(|| own(sender));
        piece.copy_from_slice(&message[begin..end]);
        pieces.push(piece);
    }
    (pieces, message.len())
}

#[test]
fn a_message_in_pieces_arrives_as_one_on_every_fabric() {
    let mut random = random_for("own_memory", 83);
    let rig = Rig::start(&[]);
    let session = rig.session_again(APP);
    let memory = SendMemory::new(ARENA_BYTES).expect("memory");
    for address in rig.fabrics() {
        for crc in [false, true] {
            let mut sender = Sender::connect(&Rig::lasting_options(&address, APP).crc(crc)).expect("let in");
            sender.register(&memory).expect("room");
            for (tag, user_header_bytes) in (0..40).zip([0, 64, 65, 256].into_iter().cycle()) {
                let (pieces, bytes) = pieces_of(tag, (&mut sender, &memory), &mut random);
                let places: Vec<_> = pieces.iter().map(|piece| piece.as_ptr()).collect();
                // A user header of each kind: beside the request's fields, and behind them.
                let user_header = vec![7; user_header_bytes];
                sender.send_gathered(Envelope::new(tag).user_header(&user_header), pieces).expect("taken");
                let (_, pieces) = delivered(&session, &mut sender, bytes);
                assert_eq!(pieces.iter().map(|piece| piece.as_ptr()).collect::<Vec<_>>(), places);
            }
        }
    }
    assert_eq!(rig.status().faults.sessions, 0);
    rig.wait_whole();
}

#[test]
fn messages_in_pieces_are_sent_again_to_the_next_daemon() {
    const MESSAGES: u64 = 48;
    let mut random = random_for("own_memory", 84);
    for fabric in 0..jet_test_support::device::fabrics().len() {
        let mut rig = Rig::start(&[]);
        let memory = SendMemory::new(ARENA_BYTES).expect("memory");
        let mut sender =
            Sender::connect(&Rig::lasting_options(&rig.addresses()[fabric].clone(), APP)).expect("let in");
        sender.register(&memory).expect("room");
        let mut session = rig.session_again(APP);
        let (mut sent, mut ended, mut redelivered) = (0, 0, 0);
        let mut lengths = Vec::new();
        let mut kills = 0;
        while ended < MESSAGES {
            while sent < MESSAGES && sent - ended < 8 {
                let (pieces, bytes) = pieces_of(sent, (&mut sender, &memory), &mut random);
                sender.send_gathered(Envelope::new(sent), pieces).expect("taken");
                lengths.push(bytes as u64);
                sent += 1;
            }
            if ended >= (kills + 1) * MESSAGES / 4 {
                // Some are at the daemon, and one of them was delivered.
                kills += 1;
                std::mem::forget(next(&session, &mut sender));
                drop(session);
                rig.kill_daemon();
                rig.start_again();
                session = rig.session_again(APP);
            }
            let mut message = next(&session, &mut sender);
            redelivered += u64::from(message.redelivered());
            let bytes = lengths[usize::try_from(message.tag()).expect("few")];
            check(&mut message, bytes);
            message.consume();
            session.flush();
            let end = sender.wait_timeout(WAIT_LIMIT).expect("in time").expect("something is in flight");
            assert_eq!(end.status, AckStatus::Consumed);
            ended += 1;
        }
        assert!(redelivered > 0, "nothing was sent again: nothing was tried");
        rig.wait_whole();
    }
}

/// A page that sends the next message when nobody has its bytes any more.
struct Page {
    buffer: SendBuffer,
    sender: SharedSender,
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Nobody waits for its end.
        drop(self.sender.send_small(2, b"the page is free").expect("there is room"));
    }
}

#[test]
fn the_owner_of_bytes_may_send_when_they_are_dropped() {
    let rig = Rig::start(&[]);
    let session = rig.session_again(APP);
    for address in rig.fabrics() {
        for is_heard in [false, true] {
            let sender = SharedSender::connect(&Rig::lasting_options(&address, APP)).expect("let in");
            let memory = SendMemory::new(1 << 20).expect("memory");
            sender.register(&memory).expect("room");
            let mut buffer = memory.take(0..100_000).expect("free");
            fill(1, &mut buffer);
            let bytes = bytes::Bytes::from_owner(Page { buffer, sender: sender.clone() });
            let mut handle = sender.send_bytes(1, &bytes).expect("taken");
            drop(bytes);
            let mut message =
                until_received(|| session.receive_timeout(Duration::from_millis(1)), || sender.flush());
            check(&mut message, 100_000);
            message.consume();
            session.flush();
            if is_heard {
                let end = handle.wait_timeout(WAIT_LIMIT).expect("in time");
                assert_eq!(end.bytes.expect("they come back").len(), 100_000);
            } else {
                drop(handle);
            }
            let message =
                until_received(|| session.receive_timeout(Duration::from_millis(1)), || sender.flush());
            assert_eq!((message.tag(), message.bytes()), (2, 16));
            message.consume();
            session.flush();
            sender.drain_timeout(WAIT_LIMIT).expect("in time");
        }
    }
    rig.wait_whole();
}
