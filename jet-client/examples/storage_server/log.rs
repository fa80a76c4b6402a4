//! What the log has: a whole index first, and after it a record for each write.
//!
//! Each of them is a frame, with its length and a checksum (CRC32C). So a power cut in the middle of a frame
//! is seen, and the log ends before it. Numbers are little-endian.

use crate::index::{BLOCKS_MAX, Index, Place, Record, Run, Writer};
use jet_client::exactly_once::SeenWindow;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A log that this server cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadLog(&'static str);

/// First bytes of an index in the log.
const MAGIC: [u8; 8] = *b"jetstor1";
/// Number of a place that a block has which nobody wrote.
const NOWHERE: u32 = u32::MAX;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FrameHeader {
    bytes: U32,
    checksum: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IndexHeader {
    magic: [u8; 8],
    version: U64,
    blocks: U32,
    writers: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockEntry {
    version: U64,
    place: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WriterEntry {
    sender: U64,
    writes: U64,
    seen: [u8; SeenWindow::BYTES],
    versions: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct VersionEntry {
    sequence: U64,
    version: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    version: U64,
    sender: U64,
    sequence: U64,
    first: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RunEntry {
    first: U32,
    count: U32,
}

/// Appends a frame with what `body` writes.
fn frame(log: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = log.len();
    let header = size_of::<FrameHeader>();
    log.resize(at + header, 0);
    body(log);
    let (head, body) = log[at..].split_at_mut(header);
    let bytes = u32::try_from(body.len()).expect("an index is less than 4 GiB");
    let made = FrameHeader { bytes: bytes.into(), checksum: crc32c::crc32c(body).into() };
    head.copy_from_slice(made.as_bytes());
}

/// Takes the next frame off the log. `None`: there is none, or not all of it.
fn next_frame<'l>(log: &mut &'l [u8]) -> Option<&'l [u8]> {
    let (header, rest) = FrameHeader::ref_from_prefix(log).ok()?;
    let (body, rest) = rest.split_at_checked(header.bytes.get() as usize)?;
    if body.is_empty() || crc32c::crc32c(body) != header.checksum.get() {
        return None;
    }
    *log = rest;
    Some(body)
}

/// Appends a write's record to a log.
pub fn append_record(log: &mut Vec<u8>, record: &Record) {
    frame(log, |log| {
        let Record { version, sender, sequence, first, ref runs } = *record;
        let header = RecordHeader {
            version: version.into(),
            sender: sender.into(),
            sequence: sequence.into(),
            first: first.into(),
        };
        log.extend_from_slice(header.as_bytes());
        for run in runs {
            let entry = RunEntry { first: run.first.into(), count: run.count.into() };
            log.extend_from_slice(entry.as_bytes());
        }
    });
}

/// Returns the beginning of a log: the whole index.
pub fn begin(index: &Index) -> Vec<u8> {
    let mut log = Vec::new();
    frame(&mut log, |log| {
        let count = |count: usize| U32::new(u32::try_from(count).expect("they have numbers"));
        let header = IndexHeader {
            magic: MAGIC,
            version: index.version.into(),
            blocks: count(index.blocks.len()),
            writers: count(index.writers.len()),
        };
        log.extend_from_slice(header.as_bytes());
        for block in &index.blocks {
            let Place { place, version } = block.unwrap_or(Place { place: NOWHERE, version: 0 });
            let entry = BlockEntry { version: version.into(), place: place.into() };
            log.extend_from_slice(entry.as_bytes());
        }
        for (&sender, writer) in &index.writers {
            let entry = WriterEntry {
                sender: sender.into(),
                writes: writer.writes.into(),
                seen: writer.seen.to_bytes(),
                versions: count(writer.versions.len()),
            };
            log.extend_from_slice(entry.as_bytes());
            for (&sequence, &version) in &writer.versions {
                let entry = VersionEntry { sequence: sequence.into(), version: version.into() };
                log.extend_from_slice(entry.as_bytes());
            }
        }
    });
    log
}

/// Reads a log, as far as it is whole.
///
/// # Errors
/// [`BadLog`]: what is whole is nothing that a server wrote.
pub fn read(mut log: &[u8]) -> Result<Index, BadLog> {
    let first = next_frame(&mut log).ok_or(BadLog("it does not begin with a whole index"))?;
    let mut index = read_index(first).ok_or(BadLog("its index contradicts itself"))?;
    while let Some(body) = next_frame(&mut log) {
        let record = read_record(body, &mut index).ok_or(BadLog("a record contradicts those before it"))?;
        index.apply(&record);
    }
    Ok(index)
}

fn take<'l, T: FromBytes + Immutable + KnownLayout + Unaligned>(body: &mut &'l [u8]) -> Option<&'l T> {
    let (taken, rest) = T::ref_from_prefix(body).ok()?;
    *body = rest;
    Some(taken)
}

fn read_index(mut body: &[u8]) -> Option<Index> {
    let header: &IndexHeader = take(&mut body).filter(|header: &&IndexHeader| header.magic == MAGIC)?;
    (header.blocks.get() <= BLOCKS_MAX).then_some(())?;
    let mut index = Index::new(header.blocks.get());
    index.version = header.version.get();
    for block in 0..index.blocks.len() {
        let entry: &BlockEntry = take(&mut body)?;
        let (place, version) = (entry.place.get(), entry.version.get());
        if place != NOWHERE {
            index.claim(place).then_some(())?;
            index.blocks[block] = Some(Place { place, version });
        }
    }
    for _ in 0..header.writers.get() {
        let entry: &WriterEntry = take(&mut body)?;
        let mut writer = Writer {
            seen: SeenWindow::from_bytes(&entry.seen).ok()?,
            writes: entry.writes.get(),
            ..Writer::default()
        };
        for _ in 0..entry.versions.get() {
            let entry: &VersionEntry = take(&mut body)?;
            writer.versions.insert(entry.sequence.get(), entry.version.get());
        }
        index.writers.insert(entry.sender.get(), writer);
    }
    body.is_empty().then_some(index)
}

/// Reads a record that may follow what the index has, and takes its places.
fn read_record(mut body: &[u8], index: &mut Index) -> Option<Record> {
    let header: &RecordHeader = take(&mut body)?;
    let mut record = Record {
        version: header.version.get(),
        sender: header.sender.get(),
        sequence: header.sequence.get(),
        first: header.first.get(),
        runs: Vec::new(),
    };
    let mut blocks = 0_u32;
    while !body.is_empty() {
        let entry: &RunEntry = take(&mut body)?;
        let run = Run { first: entry.first.get(), count: entry.count.get() };
        run.first.checked_add(run.count)?;
        run.places().all(|place| index.claim(place)).then_some(())?;
        blocks = blocks.checked_add(run.count)?;
        record.runs.push(run);
    }
    let is_next = record.version == index.version + 1;
    let is_new = index.version_given(record.sender, record.sequence).is_none();
    (is_next && is_new && index.range(record.first.into(), blocks).is_ok()).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCKS: u32 = 64;

    /// Lets writes take effect in an index, and returns their records.
    fn write(index: &mut Index, writes: &[(u64, u32, u32)]) -> Vec<Record> {
        let mut records = Vec::new();
        for &(sender, first, blocks) in writes {
            let blocks = blocks.min(BLOCKS - first);
            let record = Record {
                version: index.version + 1,
                sender,
                sequence: index.version + 1,
                first,
                runs: index.take(blocks).expect("there is room"),
            };
            index.apply(&record);
            records.push(record);
        }
        records
    }

    proptest! {
        /// However the log is cut, it has the writes whose frames are whole, and no others.
        #[test]
        fn a_log_that_is_cut_anywhere_has_what_was_whole(
            before in prop::collection::vec((0u64..3, 0..BLOCKS, 1u32..20), 0..30),
            after in prop::collection::vec((0u64..3, 0..BLOCKS, 1u32..20), 1..30),
            cut in any::<prop::sample::Index>(),
            junk in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut index = Index::new(BLOCKS);
            write(&mut index, &before);
            let mut log = begin(&index);
            let whole = log.len();
            let mut ends = vec![(whole, index.version)];
            for record in write(&mut index, &after) {
                append_record(&mut log, &record);
                ends.push((log.len(), record.version));
            }
            prop_assert_eq!(read(&log).unwrap(), index);
            let at = whole + cut.index(log.len() - whole + 1);
            log.truncate(at);
            log.extend(junk);
            let expected = ends.iter().rfind(|(end, _)| *end <= at).expect("the index is whole").1;
            prop_assert_eq!(read(&log).unwrap().version, expected);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut log = begin(&Index::new(2));
            frame(&mut log, |log| log.append(&mut bytes));
            let _ = read(&log);
        }
    }
}
