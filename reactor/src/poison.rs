//! Surviving memory that the hardware lost (a machine check, Jet §4.3).
//!
//! When a thread touches such memory, the system raises SIGBUS, which normally ends the process. The handler
//! of this module does one of two things instead:
//!
//! * Work that runs under [`guarded`] is abandoned, and its caller learns which memory is lost.
//! * Any other access to [watched](watch) memory (by the warmer or a software NIC, say) finds a fresh page of
//!   zeros in its place, in this process alone. [`take_lost`] says which page it is. So neither those zeros
//!   nor what a software NIC writes over them is taken for a message.
//!
//! An application that reads lost memory is still ended by the system; kernels before 5.16 give it zeros,
//! too.
//!
//! The handler either changes where the thread continues (behind the guarded call, with the stack as it was),
//! or maps a page. It takes no lock and allocates nothing. On processors other than x86-64 no work is
//! guarded.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A range of bytes in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Address of the first byte.
    pub start: *const u8,
    /// Number of bytes.
    pub bytes: usize,
}

// SAFETY: it is an address; the code that reads there is responsible for the access.
unsafe impl Send for Piece {}

/// A memory page, of any size, that cannot be touched any more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// Address of the first byte.
    pub start: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// Place where an interrupted thread continues, and the memory that its work may find lost.
#[repr(C)]
struct Guard {
    /// Stack pointer with which the thread continues, written by [`call`].
    stack: usize,
    /// Address of the instruction at which the thread continues, written by [`call`].
    program: usize,
    touched: *const Piece,
    touched_count: usize,
    found: Poisoned,
}

thread_local! {
    /// Guard of the work that this thread carries out now; null where the thread does no guarded work.
    static GUARD: Cell<*mut Guard> = const { Cell::new(ptr::null_mut()) };
}

/// The most memories that can be watched: the pool and escape memory.
const WATCHED_MAX: usize = 2;
/// The most lost pages whose notes may wait to be taken. One more ends the process.
const LOST_MAX: usize = 64;

/// First byte and end of each watched memory.
static WATCHED: [(AtomicUsize, AtomicUsize); WATCHED_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; WATCHED_MAX];
/// Addresses of pages that were lost and replaced. The lowest bits, which are zero in such an address, hold
/// the logarithm of the page's size.
static LOST: [AtomicUsize; LOST_MAX] = [const { AtomicUsize::new(0) }; LOST_MAX];
/// Whether there may be a note of a lost page to take.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// Watches memory: lost pages of it are replaced from now on. To be called before anybody touches the memory.
///
/// # Safety
/// The bytes are a mapping that stays until the process ends, and that is used as bytes alone: pages of it
/// may become zeros, in this process only.
///
/// # Panics
/// Where more than two memories are watched.
pub unsafe fn watch(start: *const u8, bytes: usize) {
    let place = WATCHED.iter().find(|place| {
        place.0.compare_exchange(0, start as usize, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    let place = place.expect("the pool and escape memory are all that is watched");
    place.1.store(start as usize + bytes, Ordering::Release);
}

/// Takes the note of a page of watched memory that was lost, and was replaced or is about to be. To be called
/// after work that may have touched the page, and before the work's result is used: what was read in the
/// page's place is zeros.
#[inline]
pub fn take_lost() -> Option<Poisoned> {
    if ANY_LOST.load(Ordering::Relaxed) { take_one_lost() } else { None }
}

#[cold]
fn take_one_lost() -> Option<Poisoned> {
    // A page that is lost after this store sets the flag again.
    ANY_LOST.store(false, Ordering::SeqCst);
    let lost =
        LOST.iter().find_map(|place| Some(place.swap(0, Ordering::SeqCst)).filter(|&lost| lost != 0))?;
    ANY_LOST.store(true, Ordering::SeqCst);
    let bytes = 1 << (lost & (SMALL_PAGE_BYTES - 1));
    Some(Poisoned { start: lost & !(SMALL_PAGE_BYTES - 1), bytes })
}

const SMALL_PAGE_BYTES: usize = 4096;

/// Puts a fresh page in the place of one that is lost. Returns whether the page is there.
fn replace_lost(page: Poisoned) -> bool {
    note_and_replace(page, |page| {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the page that is replaced cannot be touched by anybody, and was only used as bytes.
        let mapped = unsafe { libc::mmap(page.start as *mut c_void, page.bytes, protection, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    })
}

/// Notes a lost page. Returns the place of the note, or `None` if all places are taken.
pub(crate) fn note(page: Poisoned) -> Option<&'static AtomicUsize> {
    let lost = page.start | page.bytes.trailing_zeros() as usize;
    let is_free =
        |place: &&AtomicUsize| place.compare_exchange(0, lost, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let place = LOST.iter().find(is_free)?;
    ANY_LOST.store(true, Ordering::SeqCst);
    Some(place)
}

/// Notes a lost page of watched memory, and calls `replace` for it. Returns whether the page was replaced.
fn note_and_replace(page: Poisoned, replace: impl FnOnce(Poisoned) -> bool) -> bool {
    let end = page.start.saturating_add(page.bytes);
    let is_watched = WATCHED
        .iter()
        .any(|(from, to)| page.start >= from.load(Ordering::Relaxed) && end <= to.load(Ordering::Acquire));
    if !is_watched {
        return false;
    }
    // The note comes before there are zeros to be read. So a thread that reads the zeros and reports a result
    // has its note in place before that.
    let Some(place) = note(page) else { return false };
    if !replace(page) {
        place.store(0, Ordering::SeqCst);
        return false;
    }
    true
}

/// Handler of SIGBUS that the process had before this module installed its own.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler of SIGBUS for the process: guards work from now on.
///
/// # Errors
/// The system's error.
pub fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call writes to its third argument, which may be written, and changes no handler.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded. Two threads that come here at once read the same value.
    let _ = BEFORE.set(unsafe { before.assume_init() });
    // SAFETY: a structure of zeros is a valid `sigaction`; its fields follow.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler takes three arguments, as its flag says.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Does work that touches these pieces. A page of the pieces that cannot be touched ends the work in the
/// middle.
///
/// # Errors
/// [`Poisoned`]: the work was abandoned because of this page.
///
/// # Safety
/// The work may be abandoned wherever it touches a piece: it takes no lock, and leaves nothing half done that
/// anybody relies on.
pub unsafe fn guarded<T: Copy, F: Fn() -> T + Copy>(touched: &[Piece], work: F) -> Result<T, Poisoned> {
    struct Call<T, F> {
        work: F,
        result: MaybeUninit<T>,
    }
    extern "C" fn run<T, F: Fn() -> T>(this: *mut c_void) {
        // SAFETY: `guarded` passes its own value, which it does not use meanwhile.
        let this = unsafe { &mut *this.cast::<Call<T, F>>() };
        this.result.write((this.work)());
    }
    let mut this = Call { work, result: MaybeUninit::uninit() };
    let mut guard = Guard {
        stack: 0,
        program: 0,
        touched: touched.as_ptr(),
        touched_count: touched.len(),
        found: Poisoned { start: 0, bytes: 0 },
    };
    let before = GUARD.replace(&raw mut guard);
    // SAFETY: `run` gets the argument that it expects. The caller of `guarded` answers for abandoning the
    // work, and neither `T` nor `F` needs to be dropped.
    let abandoned = unsafe { call(&raw mut guard, run::<T, F>, (&raw mut this).cast()) };
    GUARD.set(before);
    if abandoned {
        // SAFETY: the guard is this function's; the handler wrote it in between.
        return Err(unsafe { ptr::read_volatile(&raw const guard.found) });
    }
    // SAFETY: the function ran to its end.
    Ok(unsafe { this.result.assume_init() })
}

#[cfg(target_arch = "x86_64")]
unsafe extern "sysv64" {
    /// Calls a function. Returns whether the call was abandoned.
    ///
    /// All registers that a function must preserve are saved on the stack, so the handler needs to restore
    /// only the stack pointer.
    #[link_name = "jet_reactor_guarded_call"]
    fn call(guard: *mut Guard, run: extern "C" fn(*mut c_void), argument: *mut c_void) -> bool;
}

// Not a naked function: those are newer than the toolchain that checks the stated minimum (`.ci/older-rust`).
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.jet_reactor_guarded_call,\"ax\",@progbits",
    ".globl jet_reactor_guarded_call",
    ".hidden jet_reactor_guarded_call",
    ".type jet_reactor_guarded_call,@function",
    "jet_reactor_guarded_call:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    // Six registers and the return address: one more word aligns the stack for a call.
    "sub rsp, 8",
    "mov [rdi], rsp",
    "lea rax, [rip + 2f]",
    "mov [rdi + 8], rax",
    "mov rdi, rdx",
    "call rsi",
    "xor eax, eax",
    "jmp 3f",
    // The handler continues the thread here.
    "2:",
    "mov eax, 1",
    "3:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size jet_reactor_guarded_call, . - jet_reactor_guarded_call",
    ".popsection",
);

/// Calls a function without a guard, because this processor has no implementation. Returns `false`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn call(_guard: *mut Guard, run: extern "C" fn(*mut c_void), argument: *mut c_void) -> bool {
    run(argument);
    false
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both for this call.
    let (code, page) = unsafe { ((*info).si_code, page_of(info)) };
    let guard = GUARD.get();
    if code > 0 && code != libc::BUS_MCEERR_AO && !guard.is_null() {
        // SAFETY: it is the guard of the work that this thread carries out now, so `guarded` keeps it, and
        // the pieces; nobody else uses it.
        unsafe {
            let pieces = std::slice::from_raw_parts((*guard).touched, (*guard).touched_count);
            let end = page.start.saturating_add(page.bytes);
            let is_touched = |piece: &Piece| {
                let start = piece.start as usize;
                start < end && page.start < start.saturating_add(piece.bytes)
            };
            if pieces.iter().any(is_touched) {
                (*guard).found = page;
                resume(context, &*guard);
                return;
            }
        }
    }
    if code == libc::BUS_MCEERR_AO {
        // Memory was lost that no thread touches now. A thread that touches it later gets a signal then.
        return;
    }
    if code == libc::BUS_MCEERR_AR && replace_lost(page) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: this is what the kernel gave. Where this handler returns to, the same signal is raised again,
    // and is then handled as before.
    unsafe {
        libc::sigaction(libc::SIGBUS, before, ptr::null_mut());
        if code <= 0 {
            // The signal was sent by a process, so it is not raised again on its own.
            libc::raise(signal);
        }
    }
}

/// Returns the page that a SIGBUS is about.
///
/// # Safety
/// `info` is what the kernel passed to the handler.
unsafe fn page_of(info: *const libc::siginfo_t) -> Poisoned {
    /// Offset of `si_addr_lsb`, which follows the address: how many low bits of the address are meaningless,
    /// for memory that was lost.
    const ADDRESS_BITS_AT: usize = 24;
    // SAFETY: the caller's promise.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let bits = if code == libc::BUS_MCEERR_AR {
        // SAFETY: a `siginfo_t` is 128 bytes.
        let bits = unsafe { info.cast::<u8>().add(ADDRESS_BITS_AT).cast::<u16>().read_unaligned() };
        u32::from(bits).clamp(12, 30)
    } else {
        // A page of a file that became shorter: the smallest page size.
        12
    };
    let bytes = 1usize << bits;
    Poisoned { start: address & !(bytes - 1), bytes }
}

/// Makes the interrupted thread continue where its guard says.
///
/// # Safety
/// `context` is what the kernel passed to the handler, and the guard is that of the work that was
/// interrupted.
#[cfg(target_arch = "x86_64")]
unsafe fn resume(context: *mut c_void, guard: &Guard) {
    /// Direction flag of x86-64. Every function may rely on it being clear, so that strings are copied
    /// upwards.
    const DIRECTION: i64 = 1 << 10;
    // SAFETY: the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |name: c_int| usize::try_from(name).expect("an index");
    registers[register(libc::REG_RSP)] = guard.stack.cast_signed() as i64;
    registers[register(libc::REG_RIP)] = guard.program.cast_signed() as i64;
    registers[register(libc::REG_EFL)] &= !DIRECTION;
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn resume(_context: *mut c_void, _guard: &Guard) {}

/// Lock for tests that take notes of lost pages, or leave some: the notes are one set for the process.
#[cfg(test)]
pub static TAKES_NOTES: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::os::fd::OwnedFd;

    const PAGE: usize = 4096;
    const PAGES: usize = 4;

    /// A mapping whose first page exists, and whose others are lost: its file became shorter.
    struct Lost {
        start: *mut u8,
        _file: OwnedFd,
    }

    impl Lost {
        fn new() -> Self {
            let file = memfd_create("jet-test", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, (PAGES * PAGE) as u64).unwrap();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, wherever there is room.
            let start =
                unsafe { mmap(ptr::null_mut(), PAGES * PAGE, protection, MapFlags::SHARED, &file, 0) };
            let start = start.unwrap().cast::<u8>();
            // SAFETY: the mapping is as long, and belongs to this test.
            unsafe { start.write_bytes(7, PAGES * PAGE) };
            ftruncate(&file, PAGE as u64).unwrap();
            Self { start, _file: file }
        }

        fn piece(&self) -> Piece {
            Piece { start: self.start, bytes: PAGES * PAGE }
        }

        fn second_page(&self) -> Poisoned {
            Poisoned { start: self.start as usize + PAGE, bytes: PAGE }
        }
    }

    impl Drop for Lost {
        fn drop(&mut self) {
            // SAFETY: the mapping belongs to this test.
            unsafe { munmap(self.start.cast(), PAGES * PAGE).unwrap() };
        }
    }

    #[test]
    fn work_that_touches_lost_memory_is_abandoned_and_says_where() {
        install().unwrap();
        let lost = Lost::new();
        let (piece, mut target) = (lost.piece(), vec![0u8; PAGES * PAGE]);
        let to = target.as_mut_ptr();
        let source = [7u8; PAGES * PAGE];
        for _ in 0..1000 {
            let kept = std::hint::black_box([1.5f64, 2.5, 3.5]);
            // SAFETY: both places are as long, and nothing relies on the result of the work.
            let copied =
                unsafe { guarded(&[piece], || ptr::copy_nonoverlapping(piece.start, to, piece.bytes)) };
            assert_eq!(copied, Err(lost.second_page()));
            assert_eq!(std::hint::black_box(kept), [1.5, 2.5, 3.5]);
            // SAFETY: as above; the bytes are read only.
            let checked = unsafe {
                guarded(&[piece], || crc32c::crc32c(std::slice::from_raw_parts(piece.start, PAGES * PAGE)))
            };
            assert_eq!(checked, Err(lost.second_page()));
            // SAFETY: as above.
            let written = unsafe {
                guarded(&[piece], || ptr::copy_nonoverlapping(source.as_ptr(), lost.start, piece.bytes))
            };
            assert_eq!(written, Err(lost.second_page()));
            // SAFETY: as above; that page is there.
            let read = unsafe { guarded(&[piece], || piece.start.add(9).read_volatile()) };
            assert_eq!(read, Ok(7));
        }
    }

    #[test]
    fn every_thread_has_its_own_guard_and_guards_nest() {
        install().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let lost = Lost::new();
                    let piece = lost.piece();
                    for _ in 0..1000 {
                        // SAFETY: nothing relies on the result of the work.
                        let outer = unsafe {
                            guarded(&[piece], || {
                                let inner = guarded(&[piece], || piece.start.add(PAGE).read_volatile());
                                (inner, piece.start.read_volatile())
                            })
                        };
                        assert_eq!(outer, Ok((Err(lost.second_page()), 7)));
                    }
                });
            }
        });
    }

    #[test]
    fn a_page_of_watched_memory_is_replaced_once_and_told() {
        let _turn = TAKES_NOTES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        install().unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever there is room. It stays mapped.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), PAGES * PAGE, protection, MapFlags::SHARED)
        };
        let start = start.unwrap().cast::<u8>();
        // SAFETY: the mapping is as long, and belongs to this test.
        unsafe { start.write_bytes(7, PAGES * PAGE) };
        // SAFETY: mapped above, for as long as the process lives, and used as bytes.
        unsafe { watch(start, PAGES * PAGE) };
        assert_eq!(take_lost(), None);
        // Send the signal as the kernel does; a process may do so to itself.
        // SAFETY: a structure of zeros is a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        (info.si_signo, info.si_code) = (libc::SIGBUS, libc::BUS_MCEERR_AR);
        // SAFETY: the address and its meaningless bits lie at these offsets, within the 128 bytes of a
        // `siginfo_t`.
        unsafe {
            (&raw mut info).cast::<usize>().add(2).write(start as usize + 2 * PAGE + 77);
            (&raw mut info).cast::<u16>().add(12).write(12);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: the call reads one `siginfo_t`.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                std::process::id(),
                thread,
                libc::SIGBUS,
                &raw const info,
            )
        };
        assert_eq!(sent, 0, "{}", io::Error::last_os_error());
        // SAFETY: the mapping belongs to this test.
        let read = |page: usize| unsafe { start.add(page * PAGE).read_volatile() };
        assert_eq!([0, 1, 2, 3].map(read), [7, 7, 0, 7]);
        assert_eq!(take_lost(), Some(Poisoned { start: start as usize + 2 * PAGE, bytes: PAGE }));
        assert_eq!(take_lost(), None);
        // The note is there before the zeros are: a thread that finds zeros can also find the note.
        let first = Poisoned { start: start as usize, bytes: PAGE };
        let mut told = None;
        let replaced = note_and_replace(first, |_| {
            told = take_lost();
            true
        });
        assert_eq!((replaced, told, take_lost()), (true, Some(first), None));
        // A page that cannot be replaced leaves no note.
        assert!(!note_and_replace(first, |_| false));
        assert_eq!(take_lost(), None);
        let beyond = Poisoned { start: start as usize + (PAGES - 1) * PAGE, bytes: 2 * PAGE };
        assert!(!note_and_replace(beyond, |_| panic!("it is not watched")));
    }

    /// Touches lost memory without a guard, and dies. Run by the next test in a process of its own.
    #[test]
    #[ignore = "it ends its process"]
    fn dies_of_lost_memory() {
        install().unwrap();
        let lost = Lost::new();
        let other = [0u8; 8];
        let elsewhere = Piece { start: other.as_ptr(), bytes: other.len() };
        // SAFETY: nothing relies on the result of the work.
        let read = unsafe { guarded(&[elsewhere], || lost.start.add(PAGE).read_volatile()) };
        panic!("{read:?} was read");
    }

    #[test]
    fn memory_that_nobody_said_is_touched_ends_the_process_as_ever() {
        use std::os::unix::process::ExitStatusExt;
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "poison::tests::dies_of_lost_memory";
        let status = command.args(["--exact", name, "--ignored", "--nocapture"]).output().unwrap().status;
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
    }
}
