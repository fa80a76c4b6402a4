//! What the client knows, and keeps on its disk: which of its messages have ended, and how.
//!
//! The log is made anew at each start, with what is known by then, and a record for each end is appended to
//! it. A record that is not whole ends the log: it was not synced, so nobody relies on it.

use crate::work::Client;
use jet_client::exactly_once::SEQUENCE_SPAN;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const KIND_CLIENT: u32 = 1;
const KIND_OLDEST: u32 = 2;
const KIND_KEPT: u32 = 3;
const KIND_NEWEST: u32 = 4;
const KIND_END: u32 = 5;

/// A record. What its numbers say depends on its kind.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    /// CRC32C of what follows.
    checksum: U32,
    kind: U32,
    numbers: [U64; 3],
}

impl Record {
    fn new(kind: u32, numbers: [u64; 3]) -> Self {
        let mut record = Self { checksum: 0.into(), kind: kind.into(), numbers: numbers.map(U64::new) };
        record.checksum = record.sum().into();
        record
    }

    fn sum(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[4..])
    }
}

/// A write that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    pub sequence: u64,
    /// 0: there is none.
    pub version: u64,
}

/// What a client knows of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub client: Client,
    /// The oldest message without a known end.
    pub oldest: u64,
    /// Writes that have ended.
    pub writes: u64,
    /// The newest version that was acknowledged.
    pub floor: u64,
    /// The newest acknowledged write of each block.
    pub newest: Vec<Acknowledged>,
    /// Version of each message that has ended, 0 for one that read: down to a window below the oldest message
    /// without an end.
    ends: BTreeMap<u64, u64>,
}

impl Known {
    fn new(client: Client) -> Self {
        let newest = vec![Acknowledged::default(); client.blocks as usize];
        Self { client, oldest: 1, writes: 0, floor: 0, newest, ends: BTreeMap::new() }
    }

    /// Returns the version of a message that has ended, where that is not too long ago.
    pub fn version(&self, sequence: u64) -> Option<u64> {
        self.ends.get(&sequence).copied()
    }

    /// Whether a message may be without a known end and have been sent nevertheless, by this life of the
    /// client or an earlier one.
    pub fn may_be_open(&self, sequence: u64) -> bool {
        (self.oldest..self.oldest + SEQUENCE_SPAN).contains(&sequence) && !self.ends.contains_key(&sequence)
    }

    /// Notes an end; of a write, with the version of its reply.
    pub fn note(&mut self, sequence: u64, version: u64) {
        if sequence < self.oldest || self.ends.insert(sequence, version).is_some() {
            return;
        }
        let blocks = self.client.writes(sequence);
        self.writes += u64::from(!blocks.is_empty());
        self.floor = self.floor.max(version);
        for newest in &mut self.newest[blocks] {
            if version > newest.version {
                *newest = Acknowledged { sequence, version };
            }
        }
        while self.ends.contains_key(&self.oldest) {
            self.oldest += 1;
        }
        while let Some(end) = self.ends.first_entry()
            && end.key() + SEQUENCE_SPAN < self.oldest
        {
            end.remove();
        }
    }

    /// Takes a record in. `None`: it is none of this log.
    fn take(&mut self, record: &Record) -> Option<()> {
        let [first, second, third] = record.numbers.each_ref().map(|number| number.get());
        match record.kind.get() {
            KIND_OLDEST => (self.oldest, self.writes, self.floor) = (first, second, third),
            KIND_KEPT => drop(self.ends.insert(first, second)),
            KIND_NEWEST => {
                let newest = self.newest.get_mut(usize::try_from(first).ok()?)?;
                *newest = Acknowledged { sequence: second, version: third };
            }
            KIND_END => self.note(first, second),
            _ => return None,
        }
        Some(())
    }

    /// Returns the records that say all of this.
    fn records(&self) -> Vec<Record> {
        let Client { id, first, blocks } = self.client;
        let mut records = vec![
            Record::new(KIND_CLIENT, [id, first, blocks.into()]),
            Record::new(KIND_OLDEST, [self.oldest, self.writes, self.floor]),
        ];
        let kept = self.ends.iter().map(|(&sequence, &version)| [sequence, version, 0]);
        records.extend(kept.map(|numbers| Record::new(KIND_KEPT, numbers)));
        let newest = (0..).zip(&self.newest).filter(|(_, newest)| newest.version > 0);
        records.extend(
            newest.map(|(block, newest)| Record::new(KIND_NEWEST, [block, newest.sequence, newest.version])),
        );
        records
    }

    /// Reads a log, as far as it is whole. `None`: it is none.
    fn read(log: &[u8]) -> Option<Self> {
        let mut records = log
            .chunks_exact(size_of::<Record>())
            .map(|bytes| Record::ref_from_bytes(bytes).expect("of its size"))
            .take_while(|record| record.checksum.get() == record.sum());
        let client = records.next().filter(|record| record.kind.get() == KIND_CLIENT)?;
        let [id, first, blocks] = client.numbers.each_ref().map(|number| number.get());
        let mut known = Self::new(Client { id, first, blocks: u32::try_from(blocks).ok()? });
        records.try_for_each(|record| known.take(record))?;
        Some(known)
    }
}

/// The file.
pub struct Log {
    file: File,
}

impl Log {
    /// Reads what the log at `path` knows. `None`: there is no log.
    ///
    /// # Errors
    /// Those of the file; `InvalidData` where it is no log.
    pub fn read(path: &Path) -> io::Result<Option<Known>> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let known = Known::read(&bytes);
        known
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no log of this client"))
    }

    /// Makes the log of a new client.
    pub fn new_client(first: u64, blocks: u32) -> Known {
        Known::new(Client { id: fastrand::u64(1..), first, blocks })
    }

    /// Begins the log anew with what is known. The one before stays until this one is on the disk.
    ///
    /// # Errors
    /// Those of the file.
    pub fn begin(path: &Path, known: &Known) -> io::Result<Self> {
        let mut new = PathBuf::from(path).into_os_string();
        new.push(".new");
        let mut file = File::create(&new)?;
        file.write_all(known.records().as_slice().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(Self { file })
    }

    /// Appends ends, and puts them on the disk.
    ///
    /// # Errors
    /// Those of the file.
    pub fn append(&mut self, ends: &[(u64, u64)]) -> io::Result<()> {
        let records: Vec<_> =
            ends.iter().map(|&(sequence, version)| Record::new(KIND_END, [sequence, version, 0])).collect();
        self.file.write_all(records.as_slice().as_bytes())?;
        self.file.sync_data()
    }
}
