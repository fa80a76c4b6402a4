//! Tests of reads into memory whose pages were lost, while a handler of SIGBUS puts other pages in their
//! place.
//!
//! Here the mapped file is too short for the page. Where the hardware lost a page, the kernel behaves the
//! same.

use super::super::socket::{IoOutcome, IoVec, read};
use super::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mprotect, munmap};
use std::ffi::{c_int, c_void};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// Addresses of pages that are lost and watched. Each test's pages are its own.
static LOST: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes it for this call.
    let page = unsafe { (*info).si_addr() } as usize / PAGE * PAGE;
    let taken =
        |place: &AtomicUsize| place.compare_exchange(page, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the page that is replaced is one that a test lost; a signal for any other address ends the
    // process.
    unsafe {
        if !LOST.iter().any(taken)
            || libc::mmap(page as *mut c_void, PAGE, protection, flags, -1, 0) == libc::MAP_FAILED
        {
            libc::abort();
        }
    }
}

/// Takes the page at this place away, and watches it. The function that is returned says whether nobody has
/// touched the page yet.
pub(in crate::soft) fn lose(page: *mut u8) -> impl Fn() -> bool {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: all zeros is a value of the structure, whose fields are set below. The handler takes three
        // arguments, as its flag says.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
        }
    });
    let address = page.addr();
    let free =
        |place: &&AtomicUsize| place.compare_exchange(0, address, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    assert!(LOST.iter().any(|place| free(&place)), "few pages are lost at a time");
    let empty = memfd_create("jet-test", MemfdFlags::CLOEXEC).unwrap();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: a page of the test's own memory, of which nobody holds a reference.
    unsafe { mmap(page.cast(), PAGE, protection, flags, &empty, 0) }.unwrap();
    move || LOST.iter().any(|place| place.load(Ordering::SeqCst) == address)
}

/// Pages that belong to one test.
struct Pages {
    start: *mut u8,
    count: usize,
    _file: OwnedFd,
}

impl Pages {
    fn new(count: usize) -> Self {
        let file = memfd_create("jet-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (count * PAGE) as u64).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let start =
            unsafe { mmap(std::ptr::null_mut(), count * PAGE, protection, MapFlags::SHARED, &file, 0) };
        Self { start: start.unwrap().cast(), count, _file: file }
    }

    fn page(&self, page: usize) -> *mut u8 {
        assert!(page < self.count);
        // SAFETY: within the mapping.
        unsafe { self.start.add(page * PAGE) }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the mapping is as long, and nobody writes it now.
        unsafe { std::slice::from_raw_parts(self.start, self.count * PAGE) }.to_vec()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this test's.
        unsafe { munmap(self.start.cast(), self.count * PAGE).unwrap() };
    }
}

/// Makes a stream that has all of these bytes to be read.
fn filled(bytes: &[u8]) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let to = listener.accept().unwrap().0;
    from.write_all(bytes).unwrap();
    to
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at % 251 + 1).unwrap()).collect()
}

#[test]
fn what_is_lost_is_replaced_and_read_into_and_no_byte_is_missed() {
    let pages = Pages::new(5);
    // The stretch begins in the middle of one page and ends in the middle of another. Both are lost, and one
    // between them.
    let (first, bytes) = (100, 4 * PAGE - 60);
    let lost = [0, 2, 4].map(|page| lose(pages.page(page)));
    let expected = pattern(bytes);
    let stream = filled(&expected);
    let mut done = 0;
    while done < bytes {
        // Two stretches, cut within a page.
        let (half, at) = (2 * PAGE + 50, first + done);
        let cut = half.max(at);
        let stretch = |from: usize, to: usize| IoVec {
            // SAFETY: within the mapping.
            iov_base: unsafe { pages.start.add(from) }.cast(),
            iov_len: to - from,
        };
        // SAFETY: the mapping is this test's, and nobody holds a reference into it.
        let outcome = unsafe { read(stream.as_fd(), &[stretch(at, cut), stretch(cut, first + bytes)]) };
        let IoOutcome::Bytes(bytes) = outcome else { panic!("{outcome:?} after {done} bytes") };
        done += bytes;
    }
    assert_eq!(lost.map(|is_lost| is_lost()), [false; 3], "all were touched");
    assert_eq!(pages.bytes()[first..first + bytes], expected);
}

#[test]
fn what_can_be_touched_and_not_written_fails_at_the_second_attempt() {
    let pages = Pages::new(1);
    // SAFETY: the mapping is this test's.
    unsafe { mprotect(pages.start.cast(), PAGE, rustix::mm::MprotectFlags::READ).unwrap() };
    let expected = pattern(PAGE);
    let stream = filled(&expected);
    let stretches = [IoVec { iov_base: pages.start.cast(), iov_len: PAGE }];
    // SAFETY: nobody holds a reference into it; the kernel does not write it either.
    assert_eq!(unsafe { read(stream.as_fd(), &stretches) }, IoOutcome::Failed(libc::EFAULT));
}

#[test]
fn a_read_into_lost_memory_costs_no_connection() {
    const BYTES: u32 = 200 << 10;
    let (mut server, mut client, at_server, _) = pair(SoftOptions::default());
    let region = |nic: &mut SoftNic, access| {
        let memory = Arc::new(SharedMemory::new("jet-test", BYTES as usize, false).unwrap());
        let key = nic.register(&memory, access).unwrap();
        (memory, key)
    };
    let (source, source_key) = region(&mut client.nic, Access::RemoteRead);
    let (target, target_key) = region(&mut server.nic, Access::LocalWrite);
    let expected = pattern(BYTES as usize);
    // SAFETY: the region is as long.
    unsafe { source.base().copy_from_nonoverlapping(expected.as_ptr(), expected.len()) };
    // Far behind what is copied from the staging buffer.
    // SAFETY: within the region.
    let is_lost = lose(unsafe { target.base().add(40 * PAGE) });
    let address = client.nic.remote_address(source_key, 0);
    let scatter = [Sge { key: target_key, offset: 0, bytes: BYTES }];
    server
        .nic
        .post_read(at_server, ReadRequest { id: 1, address, key: source_key.0, scatter: &scatter })
        .unwrap();
    until(&mut [&mut server, &mut client], "read", |ends| !ends[0].completions.is_empty());
    assert_eq!((server.completions[0].status, server.ended(), is_lost()), (Status::Success, None, false));
    // SAFETY: the region is as long, and nobody writes it now.
    assert!(unsafe { std::slice::from_raw_parts(target.base(), BYTES as usize) } == expected);
}
