//! Control over where devices' writes land: the files `io_alloc` and `io_alloc_cbm` (Linux 6.19 and later,
//! AMD processors with SDCIAE). Intel's DDIO does not use them.

use super::error::AccessError;
use super::mask::WayMask;
use super::schemata::{DomainId, Line, Resource, Schemata};
use super::tree::Tree;
use std::collections::BTreeMap;

const STATE: &str = "info/L3/io_alloc";
const MASKS: &str = "info/L3/io_alloc_cbm";

/// State of `io_alloc`: whether devices have ways of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoAlloc {
    /// The kernel has no file `io_alloc`.
    Absent,
    /// The processor does not support `io_alloc`.
    NotSupported,
    /// Devices fill all ways.
    Disabled,
    /// Devices have ways of their own.
    Enabled,
}

pub(super) fn state(tree: &Tree) -> Result<IoAlloc, AccessError> {
    let Some(text) = tree.read_if_there(STATE)? else { return Ok(IoAlloc::Absent) };
    match text.trim() {
        "enabled" => Ok(IoAlloc::Enabled),
        "disabled" => Ok(IoAlloc::Disabled),
        "not supported" => Ok(IoAlloc::NotSupported),
        _ => Err(AccessError::format(&tree.path(STATE), &text, "it is no state of io_alloc")),
    }
}

pub(super) fn set(tree: &Tree, enabled: bool) -> Result<(), AccessError> {
    tree.write(STATE, if enabled { "1\n" } else { "0\n" })
}

pub(super) fn ways(tree: &Tree) -> Result<BTreeMap<DomainId, WayMask>, AccessError> {
    // The file has the form of a schemata's line without the resource's name.
    let named = |text: &str| format!("L3:{text}").parse::<Schemata>();
    let schemata = tree.read_as(MASKS, named)?;
    match schemata.lines.into_iter().next() {
        Some((_, Line::Ways(ways))) => Ok(ways),
        _ => Ok(BTreeMap::new()),
    }
}

pub(super) fn set_ways(tree: &Tree, ways: &BTreeMap<DomainId, WayMask>) -> Result<(), AccessError> {
    let line = Schemata::of_ways(Resource::L3, ways.clone()).to_string();
    tree.write(MASKS, line.strip_prefix("L3:").unwrap_or(&line))
}
