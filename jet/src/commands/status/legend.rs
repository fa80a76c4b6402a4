//! Legend of `jet status`: what each line and each column of the page means.

use super::page::{PEERS, QUARANTINED, SESSIONS};
use crate::text;

/// Names of a part of the page, with what they mean, in the order of the page. A name without a text shares
/// the text of the name below it.
type Part = [(&'static str, &'static str)];

/// Lines of names and values. Names of lines below another one are indented, as on the page.
const LINES: &Part = &[
    ("jetd", "the daemon; `pressure` is ok, unsafe (escape acts) or danger (senders are slowed down)"),
    ("pool", "`whole`: nothing is in use; a slab is 4 KiB of the pool"),
    ("  free", "slabs that nothing uses"),
    ("  posted", "slabs that wait for small messages; they follow what senders may send"),
    ("  small messages", "slabs with small messages that were not given back"),
    ("  large messages", "slabs that a READ fills, or that an application holds"),
    ("  quarantined", "slabs of applications that ended: they come back by themselves"),
    ("  high water", "the most slabs that were in use at a time; all of them is normal under load"),
    ("READs", "fetching of large messages: under way now; messages that wait, and for what"),
    ("  checksums", "which threads check messages that carry a checksum"),
    ("  footprint", "how much of the pool large messages may use at a time (read.footprint)"),
    ("messages", "since the start, but `without an end`: those that are under way now"),
    ("longest turn", "the longest that everything waited for the daemon's thread, so far"),
    ("lost memory", "memory that the hardware lost, and that is never used again"),
    ("escape", "what was done because the pool got full: zeros are good, and a few are normal"),
    ("  copies", "copies that are under way, or that came to nothing"),
    ("  memory", "memory beside the pool for this; it is there from the start, used or not"),
    ("congestion", "means to slow senders down; `ready`: there if needed"),
    ("cache", "ways of the last-level cache that are set aside for the pool; `none reserved` is no fault"),
    ("  amiss", "what others changed of the reservation"),
    ("  reserved again", "how often that was put right"),
    ("  resident", "share of the pool that is in the cache now. On an idle host without reserved ways it"),
    ("", "falls to 0: other programs use the cache meanwhile. Under load it should be high"),
    ("  registers", "settings of the processor that the configuration asks for"),
    ("  adjusted", "settings of the kernel that it asks for"),
    ("  counted", "accesses of the daemon's thread to the last-level cache, and how many missed it"),
    ("  as of", "when the lines about the cache were read; once a second"),
    ("rdma", "the RDMA port"),
    ("  away", "addresses to listen at that the port does not have now"),
    ("  cannot listen", "addresses at which listening fails, and why"),
    ("  shorter packets", "connections whose packets are shorter than the port's"),
    ("  refused", "connections that were refused for the length of their packets"),
    ("ends", "how messages ended, since the start"),
    ("faults", "applications and senders that were cut off, since the start; `none` is good"),
    ("nic", "what went wrong at the NIC; `rnr`: a SEND waited for a free slab, which is normal when"),
    ("", "many idle senders wake at once"),
];

/// Columns of the table of applications.
const OF_SESSIONS: &Part = &[
    (
        "application",
        "its name; `slow`: it keeps most of what it has for too long; `suspended`: it gets nothing",
    ),
    ("", "new for now; `stands still`: it holds all that it may"),
    ("session", "number of its registration"),
    ("senders", "senders that send to it"),
    ("class", "its urgency: 0 is the most urgent"),
    ("messages", "messages that were delivered to it"),
    ("bytes", "their bytes"),
    ("rate", "bytes a second at present"),
    ("held", "slabs that it holds now"),
    ("stragglers", "of these, slabs that it has held for longer than the straggler's time"),
    ("replaced", "slabs that escape memory stands in for, now `of` in all"),
    ("copied", "slabs that were copied out of the pool, now `of` in all"),
    ("memory", "slabs of messages that took memory instead of waiting"),
    ("backlog", "messages that wait for a free slot"),
    ("post-NIC p50", "time from a slice's arrival until it was given back: of 100 slices 50 took less"),
    ("p99", "99 took less"),
    ("p99.9", "99.9 took less"),
];

/// Columns of the table of applications that ended.
const OF_QUARANTINED: &Part = &[
    ("in quarantine", "an application that ended, whose slabs its own I/O may still read"),
    ("process", "its process"),
    ("held", "what it held"),
    ("comes back", "when that is the pool's again"),
];

/// Columns of the table of senders.
const OF_PEERS: &Part = &[
    ("sender", "its identity"),
    ("peer", "number of its connection"),
    ("to", "the application that it sends to"),
    ("session", "and its registration"),
    ("arrived", "SENDs of it that arrived"),
    ("credit", "SENDs that it may still make; an idle sender has 1"),
    ("unfinished", "its messages without an end"),
    ("READs", "READs of its memory now; `slow`: they take long"),
    ("in flight", "bytes of these"),
    ("window", "the most bytes that it may have in flight"),
    ("rate", "bytes a second while it is read"),
    ("oldest READ", "how long its oldest READ is under way"),
];

/// Formats the legend: the lines, then the columns of each table.
pub(super) fn legend() -> String {
    let mut out = text::rows(&rows(LINES));
    for (columns, part) in [(SESSIONS, OF_SESSIONS), (QUARANTINED, OF_QUARANTINED), (PEERS, OF_PEERS)] {
        let subject = columns.first().copied().unwrap_or_default();
        out.push_str(&format!("\ncolumns of the table `{subject}`:\n"));
        out.push_str(&text::rows(&rows(part)));
    }
    out
}

fn rows(part: &Part) -> Vec<(&'static str, String)> {
    part.iter().map(|&(name, text)| (name, text.to_owned())).collect()
}

/// Whether the legend says what a line of this name means.
#[cfg(test)]
pub(super) fn explains(line: &str) -> bool {
    LINES.iter().any(|&(name, _)| name == line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(part: &Part) -> Vec<&'static str> {
        part.iter().map(|&(name, _)| name).filter(|name| !name.is_empty()).collect()
    }

    #[test]
    fn every_column_is_explained_in_its_order() {
        assert_eq!(names(OF_SESSIONS), SESSIONS);
        assert_eq!(names(OF_QUARANTINED), QUARANTINED);
        assert_eq!(names(OF_PEERS), PEERS);
    }

    #[test]
    fn the_legend_fits_a_terminal() {
        let text = legend();
        assert!(text.lines().all(|line| line.len() <= 110), "{text}");
        assert!(text.contains("\ncolumns of the table `sender`:\n  sender"), "{text}");
    }
}
