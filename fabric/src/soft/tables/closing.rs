//! Closing of files that peers chose, which may wait.
//!
//! A peer may send any file. The close of a socket that lingers, or of a file on a file system for which the
//! peer itself answers, takes as long as the peer likes. Such a file is closed by a thread that nobody waits
//! for, not even at the NIC's end.
//!
//! There are few such threads, and one source has at most a quarter of them. So a peer whose files do not
//! close keeps others' files from being closed only with several processes. Where too many files wait, nobody
//! new is let in ([`Closing::is_full`]), since each newcomer may send one more, and what it has sent is known
//! only when it was accepted. Connections that stand go on.

use crate::soft::source::Source;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that close files at once.
const THREADS_MAX: usize = 8;
/// Threads that close files of one source at once.
const OF_SOURCE_MAX: usize = THREADS_MAX / 4;
/// Files that may wait before nobody new is let in.
const WAITING_MAX: usize = 64;

#[derive(Debug, Default)]
struct State {
    /// Files that no thread closes yet. A connection adds what it has when it ends, so there are at most as
    /// many as [`WAITING_MAX`] and all connections have.
    waiting: VecDeque<(Source, OwnedFd)>,
    /// Sources of the files that are being closed.
    under_way: Vec<Source>,
    threads: usize,
}

impl State {
    /// Returns the place of the next file that may be closed.
    fn next(&self) -> Option<usize> {
        let closes = |source| self.under_way.iter().filter(|other| **other == source).count();
        self.waiting.iter().position(|&(source, _)| closes(source) < OF_SOURCE_MAX)
    }

    /// Takes the next file that may be closed. The thread ends where there is none.
    fn take(&mut self) -> Option<(Source, OwnedFd)> {
        let next = self.next().and_then(|at| self.waiting.remove(at));
        match next {
            Some((source, _)) => self.under_way.push(source),
            None => self.threads -= 1,
        }
        next
    }

    fn is_closed(&mut self, source: Source) {
        let at = self.under_way.iter().position(|other| *other == source).expect("it was under way");
        self.under_way.swap_remove(at);
    }
}

/// Closes files, on threads that exist while there are any.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing(Arc<Mutex<State>>);

impl Closing {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so many files wait that no connection may bring more.
    pub(super) fn is_full(&self) -> bool {
        self.state().waiting.len() >= WAITING_MAX
    }

    /// Lets a thread close a file that came from this source. The thread runs on the caller's processors.
    pub(super) fn close(&self, source: Source, file: OwnedFd) {
        let mut state = self.state();
        state.waiting.push_back((source, file));
        if state.threads == THREADS_MAX || state.next().is_none() {
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = self.clone();
        let started = std::thread::Builder::new().name("jet-close".to_owned()).spawn(move || shared.run());
        if started.is_err() {
            // The file waits for the next one, or for a thread that closes another.
            self.state().threads -= 1;
        }
    }

    fn run(&self) {
        loop {
            let Some((source, file)) = self.state().take() else { return };
            drop(file);
            self.state().is_closed(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::lingering::Lingering;
    use std::time::{Duration, Instant};

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !done() {
            assert!(Instant::now() < deadline, "this did not happen: {what}");
        }
    }

    fn process(number: u32) -> Source {
        Source::of_process(number, 0)
    }

    #[test]
    fn a_source_whose_files_do_not_close_has_a_quarter_of_the_threads() {
        let closing = Closing::default();
        let (stuck, files): (Vec<_>, Vec<_>) = (0..4).map(|_| Lingering::new()).unzip();
        for file in files {
            closing.close(process(1), file);
        }
        until("two are under way", || closing.state().under_way.len() == 2);
        assert_eq!(closing.state().waiting.len(), 2);
        // Others' files are closed, beside and after it.
        let (near, far) = rustix::pipe::pipe().unwrap();
        closing.close(process(2), far);
        until("closed", || rustix::io::read(&near, &mut [0; 1]) == Ok(0));
        assert!(closing.state().under_way.iter().all(|source| *source == process(1)));
        // What waits for its source's turn is closed when one of its files is.
        drop(stuck);
        until("all are closed", || {
            let state = closing.state();
            state.waiting.is_empty() && state.under_way.is_empty() && state.threads == 0
        });
    }

    #[test]
    fn many_sources_fill_all_threads_and_then_nobody_comes() {
        let closing = Closing::default();
        let many = u32::try_from(THREADS_MAX / OF_SOURCE_MAX).unwrap();
        let (stuck, files): (Vec<_>, Vec<_>) = (0..THREADS_MAX).map(|_| Lingering::new()).unzip();
        for (number, file) in (0..).zip(files) {
            closing.close(process(number % many), file);
        }
        until("all are under way", || closing.state().under_way.len() == THREADS_MAX);
        for number in 0..WAITING_MAX {
            assert!(!closing.is_full(), "{number}");
            closing.close(process(1000), rustix::pipe::pipe().unwrap().0);
        }
        assert!(closing.is_full());
        drop(stuck);
        until("all are closed", || closing.state().threads == 0);
        assert!(!closing.is_full());
    }
}
