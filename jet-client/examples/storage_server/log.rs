//! What the log has: a whole index first, and after it the records of one batch of writes after the other.
//!
//! Each of them is a frame, with its length and a checksum (CRC32C), and begins at a multiple of 4096 bytes.
//! A frame is on the disk before the next one is written. So a power cut damages the last frame at most, and
//! nobody was told of its writes: the log ends before it. A damaged frame with a whole one behind it is
//! another matter: what was acknowledged is lost, and the log is refused. Numbers are little-endian.

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
    runs: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RunEntry {
    first: U32,
    count: U32,
}

/// Each frame begins at a multiple of this: what a disk writes at once belongs to one frame.
const FRAME_UNIT: usize = 4096;

/// Appends a frame with what `body` writes.
fn frame(log: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = log.len();
    debug_assert_eq!(at % FRAME_UNIT, 0, "frames follow each other");
    let header = size_of::<FrameHeader>();
    log.resize(at + header, 0);
    body(log);
    let (head, body) = log[at..].split_at_mut(header);
    let bytes = u32::try_from(body.len()).expect("an index is less than 4 GiB");
    let made = FrameHeader { bytes: bytes.into(), checksum: crc32c::crc32c(body).into() };
    head.copy_from_slice(made.as_bytes());
    log.resize(log.len().next_multiple_of(FRAME_UNIT), 0);
}

/// Takes the next frame off the log. `None`: there is none, or not all of it.
fn next_frame<'l>(log: &mut &'l [u8]) -> Option<&'l [u8]> {
    let (header, rest) = FrameHeader::ref_from_prefix(log).ok()?;
    let (body, _) = rest.split_at_checked(header.bytes.get() as usize)?;
    if body.is_empty() || crc32c::crc32c(body) != header.checksum.get() {
        return None;
    }
    let bytes = (size_of::<FrameHeader>() + body.len()).next_multiple_of(FRAME_UNIT);
    *log = log.get(bytes..).unwrap_or_default();
    Some(body)
}

/// Appends the records of a batch of writes to a log.
pub fn append_batch(log: &mut Vec<u8>, records: &[Record]) {
    frame(log, |log| {
        for record in records {
            let Record { version, sender, sequence, first, ref runs } = *record;
            let header = RecordHeader {
                version: version.into(),
                sender: sender.into(),
                sequence: sequence.into(),
                first: first.into(),
                runs: u32::try_from(runs.len()).expect("a write is short").into(),
            };
            log.extend_from_slice(header.as_bytes());
            for run in runs {
                let entry = RunEntry { first: run.first.into(), count: run.count.into() };
                log.extend_from_slice(entry.as_bytes());
            }
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

/// Reads a log, as far as it is whole. Returns also how many bytes behind that are not 0: of a batch that a
/// power cut left unfinished.
///
/// # Errors
/// [`BadLog`]: what is whole is nothing that a server wrote, or something in the middle is damaged.
pub fn read(mut log: &[u8]) -> Result<(Index, usize), BadLog> {
    let first = next_frame(&mut log).ok_or(BadLog("it does not begin with a whole index"))?;
    let mut index = read_index(first).ok_or(BadLog("its index contradicts itself"))?;
    while let Some(mut body) = next_frame(&mut log) {
        while !body.is_empty() {
            let record = read_record(&mut body, &mut index);
            index.apply(&record.ok_or(BadLog("a record contradicts those before it"))?);
        }
    }
    let is_damaged =
        (FRAME_UNIT..log.len()).step_by(FRAME_UNIT).any(|at| next_frame(&mut &log[at..]).is_some());
    if is_damaged {
        return Err(BadLog(
            "a part of it is damaged, and whole records follow; restore the store from a copy",
        ));
    }
    Ok((index, log.iter().filter(|&&byte| byte != 0).count()))
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
fn read_record(body: &mut &[u8], index: &mut Index) -> Option<Record> {
    let header: &RecordHeader = take(body)?;
    let mut record = Record {
        version: header.version.get(),
        sender: header.sender.get(),
        sequence: header.sequence.get(),
        first: header.first.get(),
        runs: Vec::new(),
    };
    let mut blocks = 0_u32;
    for _ in 0..header.runs.get() {
        let entry: &RunEntry = take(body)?;
        let run = Run { first: entry.first.get(), count: entry.count.get() };
        run.first.checked_add(run.count)?;
        run.places().all(|place| index.claim(place)).then_some(())?;
        blocks = blocks.checked_add(run.count)?;
        record.runs.push(run);
    }
    let is_next = record.version == index.version + 1;
    let is_new = index.version_given(record.sender, record.sequence) == Ok(None);
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
        /// However the log is cut, it has the writes whose frames are whole, and no others. However a frame
        /// before the last one is damaged, the log is refused.
        #[test]
        fn a_log_that_is_cut_has_what_was_whole_and_one_that_is_damaged_is_refused(
            before in prop::collection::vec((0u64..3, 0..BLOCKS, 1u32..20), 0..30),
            after in prop::collection::vec((0u64..3, 0..BLOCKS, 1u32..20), 1..30),
            batch in 1usize..5,
            cut in any::<prop::sample::Index>(),
            junk in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut index = Index::new(BLOCKS);
            write(&mut index, &before);
            let mut log = begin(&index);
            let whole = log.len();
            // Where each frame begins, and its bytes that are not there to fill it up.
            let mut frames = Vec::new();
            for records in write(&mut index, &after).chunks(batch) {
                let begin = log.len();
                append_batch(&mut log, records);
                let body = u32::from_le_bytes(log[begin..begin + 4].try_into().expect("4 bytes"));
                let used = begin + size_of::<FrameHeader>() + body as usize;
                frames.push((begin, used, records.last().expect("some").version));
            }
            prop_assert_eq!(read(&log), Ok((index, 0)));
            let at = whole + cut.index(log.len() - whole);
            let mut cut_log = log[..at].to_vec();
            cut_log.extend(junk);
            let whole = frames.iter().rfind(|(_, used, _)| *used <= at);
            let expected = whole.map_or(before.len() as u64, |frame| frame.2);
            prop_assert_eq!(read(&cut_log).unwrap().0.version, expected);
            if let [.., last] = frames[..] && at < last.0 {
                let damaged = frames.iter().rfind(|(begin, ..)| *begin <= at).expect("behind the index");
                log[damaged.0 + (at - damaged.0) % (damaged.1 - damaged.0)] ^= 1;
                prop_assert!(read(&log).is_err());
            }
        }

        #[test]
        fn numbers_that_only_a_hostile_sender_uses_are_stored(
            sequence in prop::sample::select(vec![1, 1 << 62, u64::MAX]),
        ) {
            let mut index = Index::new(BLOCKS);
            let runs = index.take(1).expect("there is room");
            index.apply(&Record { version: 1, sender: 7, sequence, first: 0, runs });
            prop_assert_eq!(read(&begin(&index)), Ok((index, 0)));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut log = begin(&Index::new(2));
            frame(&mut log, |log| log.append(&mut bytes));
            let _ = read(&log);
        }
    }
}
