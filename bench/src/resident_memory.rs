//! A daemon's resident memory, divided into pool, escape memory, reply memory, senders' files, the program's
//! own files and the rest, from the sizes that the kernel gives for each mapping.

/// Files that senders made and the daemon maps. These files count as the senders' memory.
const SENDERS_FILES: [&str; 3] = ["memfd:jet-link", "memfd:jet-send", "memfd:jet-copies"];
const POOL_FILE: &str = "memfd:jet-pool";
const ESCAPE_FILE: &str = "memfd:jet-escape";
const REPLIES_FILE: &str = "memfd:jet-replies";
/// Begins the names of all memory files, as of a folder that no file system has.
const MEMORY_FILE: &str = "/memfd:";
/// Names in `smaps` of the sizes of resident pages. `Rss` leaves out pages of hugetlbfs, which the other two
/// count.
const SIZES: [&str; 3] = ["Rss:", "Shared_Hugetlb:", "Private_Hugetlb:"];
const KIBIBYTES_OF_MEBIBYTE: f64 = 1024.0;

/// Resident memory of a daemon's process, in MiB.
pub struct Resident {
    /// Memory of the pool.
    pub pool: f64,
    /// Escape memory.
    pub escape: f64,
    /// Memory for replies.
    pub replies: f64,
    /// Memory in files that senders made and the daemon maps.
    pub senders: f64,
    /// Pages of the program's file and its libraries. All processes share them, the kernel may drop them, and
    /// how many it maps at once depends on the kernel and the file system.
    pub program: f64,
    /// Other memory: heap and stacks, sessions, headers.
    pub beyond: f64,
}

impl Resident {
    /// Reads the resident memory of the process `pid`.
    ///
    /// # Errors
    /// There is no such process, or the kernel does not give the sizes.
    pub fn of(pid: u32) -> std::io::Result<Self> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        Self::parse(&maps)
            .ok_or_else(|| std::io::Error::other(format!("/proc/{pid}/smaps has no resident sizes")))
    }

    /// Parses the text of `smaps`. A line for each mapping ends with its file, and lines of its sizes follow.
    fn parse(maps: &str) -> Option<Self> {
        let mut resident =
            Self { pool: 0.0, escape: 0.0, replies: 0.0, senders: 0.0, program: 0.0, beyond: 0.0 };
        let mut mapping = None;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some(size) if SIZES.contains(&size) => {
                    let kibibytes: u32 = words.next()?.parse().ok()?;
                    let file: &str = mapping?;
                    let place = match file {
                        _ if file.contains(POOL_FILE) => &mut resident.pool,
                        _ if file.contains(ESCAPE_FILE) => &mut resident.escape,
                        _ if file.contains(REPLIES_FILE) => &mut resident.replies,
                        _ if SENDERS_FILES.iter().any(|theirs| file.contains(theirs)) => {
                            &mut resident.senders
                        }
                        _ if file.contains(" /") && !file.contains(MEMORY_FILE) => &mut resident.program,
                        _ => &mut resident.beyond,
                    };
                    *place += f64::from(kibibytes) / KIBIBYTES_OF_MEBIBYTE;
                }
                Some(word) if !word.ends_with(':') => mapping = Some(line),
                _ => {}
            }
        }
        // Every process has a stack.
        (resident.beyond > 0.0).then_some(resident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resident_page_is_somebodys() {
        let maps = "55f0-55f8 r-xp 0000 fe:00 12 /usr/bin/jetd\nSize: 9999 kB\nRss: 1024 kB\nPss: 77 kB\n\
                    7f00-7f10 rw-s 0000 00:01 1 /memfd:jet-pool (deleted)\nRss: 2048 kB\n\
                    7f20-7f30 rw-s 0000 00:01 2 /memfd:jet-escape (deleted)\nRss: 3072 kB\n\
                    7f40-7f50 rw-s 0000 00:01 3 /memfd:jet-send (deleted)\nRss: 4096 kB\n\
                    7f50-7f58 rw-s 0000 00:01 4 /memfd:jet-replies (deleted)\nRss: 5120 kB\n\
                    7f58-7f60 rw-s 0000 00:01 5 /memfd:jet-session (deleted)\nRss: 256 kB\n\
                    7f60-7f70 rw-p 0000 00:00 0\nRss: 512 kB\nVmFlags: rd wr\n\
                    7f70-7f80 rw-p 0000 00:00 0 [heap]\nRss: 256 kB\n";
        let Resident { pool, escape, replies, senders, program, beyond } = Resident::parse(maps).unwrap();
        assert_eq!([pool, escape, replies, senders, program, beyond], [2.0, 3.0, 5.0, 4.0, 1.0, 1.0]);
        assert!(Resident::parse("").is_none());
        assert!(Resident::parse("7f60-7f70 rw-p\nRss: much kB\n").is_none());
    }

    /// The first sizes are what the kernel shows for a pool on huge pages that an application maps, too; the
    /// second are for a pool that only the daemon maps.
    #[test]
    fn huge_pages_count() {
        for sizes in [
            "Shared_Hugetlb: 12288 kB\nPrivate_Hugetlb: 0 kB",
            "Shared_Hugetlb: 0 kB\nPrivate_Hugetlb: 12288 kB",
        ] {
            let maps = format!(
                "7ff0-7ff8 rw-p 0000 00:00 0 [stack]\nRss: 1024 kB\nShared_Hugetlb: 0 \
                 kB\nPrivate_Hugetlb: 0 kB\n\
                 7f00-7f10 rw-s 0000 00:10 1 /memfd:jet-pool (deleted)\nRss: 0 kB\nAnonHugePages: 7 \
                 kB\n{sizes}\n"
            );
            let Resident { pool, beyond, .. } = Resident::parse(&maps).unwrap();
            assert_eq!([pool, beyond], [12.0, 1.0]);
        }
    }
}
