//! Touching memory that the hardware may have lost (a machine check, Jet §4.3): the system answers with
//! SIGBUS, which ends a process. Work that runs under [`guarded`] is abandoned instead, and its caller hears
//! where. Whatever else touches memory that is [watched](watch) (the warmer, a software NIC) finds a fresh
//! page in its place, in this process alone, and [`take_lost`] says which, so that nothing there is taken for
//! a message: neither those zeros nor what a software NIC writes over them. An application that reads there
//! is still ended by the system; kernels before 5.16 give it zeros, too.
//!
//! The handler changes where the thread goes on, behind the call that [`call`] made, with the stack as it
//! was; or it maps a page. It knows no locks and allocates nothing. On other processors than x86-64 no work
//! is guarded.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A stretch of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// From here.
    pub start: *const u8,
    /// So many bytes.
    pub bytes: usize,
}

// SAFETY: it is an address; whoever reads there answers for that.
unsafe impl Send for Piece {}

/// Memory that cannot be touched any more: a page, of whatever size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// Its first byte's address.
    pub start: usize,
    /// So many bytes.
    pub bytes: usize,
}

/// Where a thread goes on, and what it may lose.
#[repr(C)]
struct Guard {
    /// Its stack pointer, and where its program goes on: written by [`call`].
    stack: usize,
    program: usize,
    touched: *const Piece,
    touched_count: usize,
    found: Poisoned,
}

thread_local! {
    /// The guard of the work that this thread is at.
    static GUARD: Cell<*mut Guard> = const { Cell::new(ptr::null_mut()) };
}

/// Places for watched memory: the pool's, and escape memory's.
const WATCHED_MAX: usize = 2;
/// Lost pages that may wait to be noticed. One more ends the process.
const LOST_MAX: usize = 64;

/// First byte and end of what is watched.
static WATCHED: [(AtomicUsize, AtomicUsize); WATCHED_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; WATCHED_MAX];
/// Addresses of pages that were lost and replaced; in the lowest bits, which are zero in them, their sizes'
/// logarithms.
static LOST: [AtomicUsize; LOST_MAX] = [const { AtomicUsize::new(0) }; LOST_MAX];
/// There is something to take.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// Has pages of this memory replaced where they are lost. Said before anybody touches it; it stays mapped
/// until the process ends.
///
/// # Safety
/// The bytes are a mapping that stays until the process ends, and that is used as bytes alone: pages of it
/// may become zeros, in this process only.
///
/// # Panics
/// Where more is watched than there are places for.
pub unsafe fn watch(start: *const u8, bytes: usize) {
    let place = WATCHED.iter().find(|place| {
        place.0.compare_exchange(0, start as usize, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    let place = place.expect("the pool and escape memory are all that is watched");
    place.1.store(start as usize + bytes, Ordering::Release);
}

/// A page of watched memory that was lost, and replaced or about to be. To be asked after hearing of work
/// that may have met it, and before its outcome is relied on: what was read in its place is zeros.
#[inline]
pub fn take_lost() -> Option<Poisoned> {
    if ANY_LOST.load(Ordering::Relaxed) { take_one_lost() } else { None }
}

#[cold]
fn take_one_lost() -> Option<Poisoned> {
    // What is lost after this look sets it again.
    ANY_LOST.store(false, Ordering::SeqCst);
    let lost =
        LOST.iter().find_map(|place| Some(place.swap(0, Ordering::SeqCst)).filter(|&lost| lost != 0))?;
    ANY_LOST.store(true, Ordering::SeqCst);
    let bytes = 1 << (lost & (SMALL_PAGE_BYTES - 1));
    Some(Poisoned { start: lost & !(SMALL_PAGE_BYTES - 1), bytes })
}

const SMALL_PAGE_BYTES: usize = 4096;

/// Puts a fresh page in the place of one that is lost; whether it is there.
fn replace_lost(page: Poisoned) -> bool {
    note_and_replace(page, |page| {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: what is replaced is memory that nobody can touch, and that is only touched as bytes.
        let mapped = unsafe { libc::mmap(page.start as *mut c_void, page.bytes, protection, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    })
}

/// Takes note of a lost page; where, or nowhere: there is no place left.
pub(crate) fn note(page: Poisoned) -> Option<&'static AtomicUsize> {
    let lost = page.start | page.bytes.trailing_zeros() as usize;
    let is_free =
        |place: &&AtomicUsize| place.compare_exchange(0, lost, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let place = LOST.iter().find(is_free)?;
    ANY_LOST.store(true, Ordering::SeqCst);
    Some(place)
}

/// Takes note of a page of watched memory, and has it replaced.
fn note_and_replace(page: Poisoned, replace: impl FnOnce(Poisoned) -> bool) -> bool {
    let end = page.start.saturating_add(page.bytes);
    let is_watched = WATCHED
        .iter()
        .any(|(from, to)| page.start >= from.load(Ordering::Relaxed) && end <= to.load(Ordering::Acquire));
    if !is_watched {
        return false;
    }
    // Before there are zeros to be found: whoever reads them, and says so to somebody, said this first.
    let Some(place) = note(page) else { return false };
    if !replace(page) {
        place.store(0, Ordering::SeqCst);
        return false;
    }
    true
}

/// What was done about SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes guards work, in this process from now on.
///
/// # Errors
/// What the system says.
pub fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the second place is one to write to, and nothing is changed.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded. Two threads that come here at once read the same.
    let _ = BEFORE.set(unsafe { before.assume_init() });
    // SAFETY: of all zeroes it is one; its fields follow.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is one of three arguments, as its flag says.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Does work that touches these pieces. A page of theirs that cannot be touched ends it in the middle.
///
/// # Errors
/// [`Poisoned`]: the work was abandoned.
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
        // SAFETY: `guarded` passes its own, which it does not use meanwhile.
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
    // SAFETY: the function gets what it takes; what it may lose is the caller's answer, and neither `T` nor
    // `F` is to be dropped.
    let abandoned = unsafe { call(&raw mut guard, run::<T, F>, (&raw mut this).cast()) };
    GUARD.set(before);
    if abandoned {
        // SAFETY: the guard is this function's; the handler wrote it in between.
        return Err(unsafe { ptr::read_volatile(&raw const guard.found) });
    }
    // SAFETY: the function ran to its end.
    Ok(unsafe { this.result.assume_init() })
}

/// Calls a function; whether it was abandoned.
///
/// All that a function has to leave as it was lies on the stack, so that the stack pointer is all that the
/// handler sets.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "sysv64" fn call(
    guard: *mut Guard,
    run: extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> bool {
    core::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // Six registers and the return address: one more word makes the stack even for a call.
        "sub rsp, 8",
        "mov [rdi], rsp",
        "lea rax, [rip + 2f]",
        "mov [rdi + 8], rax",
        "mov rdi, rdx",
        "call rsi",
        "xor eax, eax",
        "jmp 3f",
        // The handler comes here.
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
    )
}

/// Calls a function, unguarded.
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
        // SAFETY: it is the guard of work that this thread is at, so `guarded` keeps it, and the pieces;
        // nobody uses it.
        unsafe {
            let pieces = std::slice::from_raw_parts((*guard).touched, (*guard).touched_count);
            let end = page.start.saturating_add(page.bytes);
            let is_touched = |piece: &Piece| {
                let start = piece.start as usize;
                start < end && page.start < start.saturating_add(piece.bytes)
            };
            if pieces.iter().any(is_touched) {
                (*guard).found = page;
                go_on(context, &*guard);
                return;
            }
        }
    }
    if code == libc::BUS_MCEERR_AO {
        // Memory was lost that nobody is at. Whoever comes to it hears of it then.
        return;
    }
    if code == libc::BUS_MCEERR_AR && replace_lost(page) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: it is what the kernel gave. Where this returns to, the same comes again, and is dealt with as
    // before.
    unsafe {
        libc::sigaction(libc::SIGBUS, before, ptr::null_mut());
        if code <= 0 {
            // Sent by somebody, so it does not come again by itself.
            libc::raise(signal);
        }
    }
}

/// The page that a SIGBUS is about.
///
/// # Safety
/// `info` is what the kernel passed to the handler.
unsafe fn page_of(info: *const libc::siginfo_t) -> Poisoned {
    /// Behind the address: how many bits of it say nothing (`si_addr_lsb`), for memory that was lost.
    const ADDRESS_BITS_AT: usize = 24;
    // SAFETY: as the caller says.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let bits = if code == libc::BUS_MCEERR_AR {
        // SAFETY: a `siginfo_t` is 128 bytes.
        let bits = unsafe { info.cast::<u8>().add(ADDRESS_BITS_AT).cast::<u16>().read_unaligned() };
        u32::from(bits).clamp(12, 30)
    } else {
        // A page of a file that is shorter now: the smallest there is.
        12
    };
    let bytes = 1usize << bits;
    Poisoned { start: address & !(bytes - 1), bytes }
}

/// Has the thread go on where its guard says.
///
/// # Safety
/// `context` is what the kernel passed to the handler, and the guard is that of the work that was
/// interrupted.
#[cfg(target_arch = "x86_64")]
unsafe fn go_on(context: *mut c_void, guard: &Guard) {
    /// Strings are copied upwards, as every function may rely on.
    const DIRECTION: i64 = 1 << 10;
    // SAFETY: as the caller says.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |name: c_int| usize::try_from(name).expect("an index");
    registers[register(libc::REG_RSP)] = guard.stack.cast_signed() as i64;
    registers[register(libc::REG_RIP)] = guard.program.cast_signed() as i64;
    registers[register(libc::REG_EFL)] &= !DIRECTION;
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn go_on(_context: *mut c_void, _guard: &Guard) {}

/// Notes are the process's: tests that take them, or leave some, take turns.
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

    /// Pages of which those from the second on are lost: their file is shorter by now.
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
            // SAFETY: the mapping is as long, and this test's.
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
            // SAFETY: the mapping is this test's.
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
            // SAFETY: the places are as long; of the work nothing is relied on.
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
                        // SAFETY: of the work nothing is relied on.
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
        // SAFETY: a new mapping, wherever there is room. It stays.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), PAGES * PAGE, protection, MapFlags::SHARED)
        };
        let start = start.unwrap().cast::<u8>();
        // SAFETY: the mapping is as long, and this test's.
        unsafe { start.write_bytes(7, PAGES * PAGE) };
        // SAFETY: mapped above, for as long as the process lives, and used as bytes.
        unsafe { watch(start, PAGES * PAGE) };
        assert_eq!(take_lost(), None);
        // As the kernel says it; to oneself that is allowed.
        // SAFETY: of all zeroes it is one.
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        (info.si_signo, info.si_code) = (libc::SIGBUS, libc::BUS_MCEERR_AR);
        // SAFETY: the address and its meaningless bits lie there, within its 128 bytes.
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
        // SAFETY: the mapping is this test's.
        let read = |page: usize| unsafe { start.add(page * PAGE).read_volatile() };
        assert_eq!([0, 1, 2, 3].map(read), [7, 7, 0, 7]);
        assert_eq!(take_lost(), Some(Poisoned { start: start as usize + 2 * PAGE, bytes: PAGE }));
        assert_eq!(take_lost(), None);
        // It is told before there are zeros to be found: whoever finds them was told.
        let first = Poisoned { start: start as usize, bytes: PAGE };
        let mut told = None;
        let replaced = note_and_replace(first, |_| {
            told = take_lost();
            true
        });
        assert_eq!((replaced, told, take_lost()), (true, Some(first), None));
        // Where it cannot be replaced there is nothing to tell.
        assert!(!note_and_replace(first, |_| false));
        assert_eq!(take_lost(), None);
        let beyond = Poisoned { start: start as usize + (PAGES - 1) * PAGE, bytes: 2 * PAGE };
        assert!(!note_and_replace(beyond, |_| panic!("it is not watched")));
    }

    /// Run by the next test in a process of its own.
    #[test]
    #[ignore = "it ends its process"]
    fn dies_of_lost_memory() {
        install().unwrap();
        let lost = Lost::new();
        let other = [0u8; 8];
        let elsewhere = Piece { start: other.as_ptr(), bytes: other.len() };
        // SAFETY: of the work nothing is relied on.
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
