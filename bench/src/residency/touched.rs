//! How much of a process's memory was touched over a time, by the marks that the processor leaves in its page tables.

use std::fs;
use std::io;

/// Forgets what was touched so far.
///
/// # Errors
/// What the system says.
pub fn forget(pid: u32) -> io::Result<()> {
    // All pages' marks (proc_pid_clear_refs).
    fs::write(format!("/proc/{pid}/clear_refs"), "1")
}

/// Bytes touched since, of the shared memory of this name. Counts whole pages, huge ones where memory lies in such.
///
/// # Errors
/// What the system says, or that there is no such memory.
pub fn bytes(pid: u32, name: &str) -> io::Result<u64> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    referenced(&smaps, name).ok_or_else(|| io::Error::other(format!("process {pid} has no memory {name}")))
}

fn referenced(smaps: &str, name: &str) -> Option<u64> {
    let path = format!("/memfd:{name}");
    let mut inside = false;
    let mut found = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next()?;
        if !first.ends_with(':') {
            inside = words.nth(4) == Some(&path);
        } else if inside && first == "Referenced:" {
            let kib: u64 = words.next()?.parse().ok()?;
            *found.get_or_insert(0) += kib * 1024;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_fabric::memory::SharedMemory;

    #[test]
    fn what_is_written_is_touched_and_nothing_else() {
        let memory = SharedMemory::new("jet-touched", 64 * 4096, false).unwrap();
        // SAFETY: this test's own memory.
        unsafe { memory.base().write_bytes(1, memory.bytes()) };
        let own = std::process::id();
        forget(own).unwrap();
        assert_eq!(bytes(own, "jet-touched").unwrap(), 0);
        // SAFETY: as above.
        unsafe { memory.base().write_bytes(2, 10 * 4096) };
        assert_eq!(bytes(own, "jet-touched").unwrap(), 10 * 4096);
        assert!(bytes(own, "jet-nothing").is_err());
    }
}
