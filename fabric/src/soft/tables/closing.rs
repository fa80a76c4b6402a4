//! Closing of files that peers chose, which may wait.
//!
//! A peer may send any file. The close of a socket that lingers, or of a file on a file system for which the
//! peer itself answers, takes as long as the peer likes. Such a file is closed by a thread that nobody waits
//! for, not even at the NIC's end.
//!
//! There are few such threads, and one source has at most a quarter of them. So a peer whose files do not
//! close keeps others' files from being closed only with several processes. Where too many files wait, nobody
//! new is let in ([`super::disposal`]), since each newcomer may send one more, and what it has sent is known
//! only when it was accepted. Connections that stand go on.

use crate::source::Source;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that close files at once.
const THREADS_MAX: usize = 8;
/// Threads that close files of one source at once.
const OF_SOURCE_MAX: usize = THREADS_MAX / 4;

/// Files of one source.
#[derive(Debug)]
struct OfSource {
    source: Source,
    /// Files that no thread closes yet.
    waiting: VecDeque<OwnedFd>,
    /// Files that threads are closing.
    under_way: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Sources that have files here. Who had a turn goes to the end. Newcomers are held up before many files
    /// wait, and who is in may add its socket and a few files when its connection ends: that bounds them.
    sources: Vec<OfSource>,
    threads: usize,
}

impl State {
    fn of(&mut self, source: Source) -> &mut OfSource {
        let at = self.sources.iter().position(|other| other.source == source).unwrap_or_else(|| {
            self.sources.push(OfSource { source, waiting: VecDeque::new(), under_way: 0 });
            self.sources.len() - 1
        });
        &mut self.sources[at]
    }

    /// Returns the place of the source that has the next turn.
    fn next(&self) -> Option<usize> {
        let has_turn = |of: &OfSource| !of.waiting.is_empty() && of.under_way < OF_SOURCE_MAX;
        self.sources.iter().position(has_turn)
    }

    /// Takes the next file that may be closed. The thread ends where there is none.
    fn take(&mut self) -> Option<(Source, OwnedFd)> {
        let Some(at) = self.next() else {
            self.threads -= 1;
            return None;
        };
        let mut of = self.sources.remove(at);
        let file = of.waiting.pop_front().expect("a source with a turn has a file");
        of.under_way += 1;
        let source = of.source;
        self.sources.push(of);
        Some((source, file))
    }

    fn is_closed(&mut self, source: Source) {
        self.of(source).under_way -= 1;
        self.sources.retain(|of| of.under_way > 0 || !of.waiting.is_empty());
    }
}

/// Closes files, on threads that exist while there are any.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing(Arc<Mutex<State>>);

impl Closing {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many files wait for a thread.
    pub(super) fn waiting(&self) -> usize {
        self.state().sources.iter().map(|of| of.waiting.len()).sum()
    }

    /// Lets a thread close a file that came from this source.
    pub(super) fn close(&self, source: Source, file: OwnedFd) {
        self.state().of(source).waiting.push_back(file);
        self.start();
    }

    /// Starts threads for files that may be closed, as far as the system lets it. They run on the caller's
    /// processors.
    pub(super) fn start(&self) {
        loop {
            let mut state = self.state();
            // Threads that have just been started may not have taken their files yet.
            if state.threads == THREADS_MAX || state.next().is_none() {
                return;
            }
            state.threads += 1;
            drop(state);
            let shared = self.clone();
            let thread = std::thread::Builder::new().name("jet-close".to_owned());
            if thread.spawn(move || shared.run()).is_err() {
                // The files wait for the next call, or for a thread that closes another.
                self.state().threads -= 1;
                return;
            }
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
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < deadline, "this did not happen: {what}");
        }
    }

    fn process(number: u32) -> Source {
        Source::of_process(number, 0)
    }

    fn under_way(closing: &Closing) -> Vec<usize> {
        closing.state().sources.iter().map(|of| of.under_way).collect()
    }

    #[test]
    fn a_source_whose_files_do_not_close_has_a_quarter_of_the_threads() {
        let closing = Closing::default();
        let (stuck, files): (Vec<_>, Vec<_>) = (0..4).map(|_| Lingering::new()).unzip();
        for file in files {
            closing.close(process(1), file);
        }
        until("two are under way", || under_way(&closing) == [2]);
        assert_eq!(closing.waiting(), 2);
        // Others' files are closed, beside and after it.
        for number in 2..5 {
            let (near, far) = rustix::pipe::pipe().unwrap();
            closing.close(process(number), far);
            assert_eq!(rustix::io::read(&near, &mut [0; 1]), Ok(0));
            until("two are under way", || under_way(&closing) == [2]);
        }
        // What waits for its source's turn is closed when one of its files is.
        drop(stuck);
        until("all are closed", || closing.state().threads == 0);
        assert!(closing.state().sources.is_empty());
    }

    #[test]
    fn where_all_threads_are_taken_files_wait_and_sources_take_turns() {
        let closing = Closing::default();
        let (stuck, files): (Vec<_>, Vec<_>) = (0..THREADS_MAX).map(|_| Lingering::new()).unzip();
        for (number, file) in (0..4).cycle().zip(files) {
            closing.close(process(number), file);
        }
        until("all are under way", || under_way(&closing) == [2; 4]);
        let (near, far) = rustix::pipe::pipe().unwrap();
        for number in [8, 8, 8, 9] {
            closing.close(process(number), far.try_clone().unwrap());
        }
        assert_eq!((closing.waiting(), closing.state().threads), (4, THREADS_MAX));
        let mut state = closing.state();
        let first = [state.take(), state.take(), state.take()].map(|taken| taken.unwrap().0);
        assert_eq!(first, [process(8), process(9), process(8)]);
        first.into_iter().for_each(|source| state.is_closed(source));
        drop((state, far, stuck));
        until("all are closed", || closing.state().threads == 0);
        assert_eq!(rustix::io::read(&near, &mut [0; 1]), Ok(0));
    }

    #[test]
    fn files_for_which_no_thread_could_be_started_are_closed_later() {
        let closing = Closing::default();
        let (near, far) = rustix::pipe::pipe().unwrap();
        // As after a start that failed.
        closing.state().of(process(1)).waiting.push_back(far);
        closing.start();
        assert_eq!(rustix::io::read(&near, &mut [0; 1]), Ok(0));
        until("no thread is left", || closing.state().threads == 0);
    }
}
