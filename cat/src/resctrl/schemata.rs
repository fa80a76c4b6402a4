//! Allocation of resources to a group: the file `schemata`.

use super::mask::WayMask;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Number of a domain: the id of its cache. Ids are not socket numbers, and may have gaps.
pub type DomainId = u32;

/// Resource that the kernel allocates to groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Last-level cache.
    L3,
    /// Last-level cache for code only, where CDP is on.
    L3Code,
    /// Last-level cache for data only, where CDP is on.
    L3Data,
    /// Second-level cache.
    L2,
    /// Second-level cache for code only, where CDP is on.
    L2Code,
    /// Second-level cache for data only, where CDP is on.
    L2Data,
    /// Memory bandwidth: per cent on Intel, eighths of GB/s on AMD, MiB/s where the kernel's software
    /// controller is on.
    MemoryBandwidth,
    /// Bandwidth of slow memory (CXL), in the units of [`Self::MemoryBandwidth`].
    SlowMemoryBandwidth,
    /// Resource that this version does not know, by its name. Its lines are kept unchanged.
    Other(String),
}

impl Resource {
    const NAMES: [(Self, &'static str); 8] = [
        (Self::L3, "L3"),
        (Self::L3Code, "L3CODE"),
        (Self::L3Data, "L3DATA"),
        (Self::L2, "L2"),
        (Self::L2Code, "L2CODE"),
        (Self::L2Data, "L2DATA"),
        (Self::MemoryBandwidth, "MB"),
        (Self::SlowMemoryBandwidth, "SMBA"),
    ];

    /// Returns the resource with this name in the kernel's files.
    pub fn named(name: &str) -> Self {
        let known = Self::NAMES.into_iter().find(|(_, known)| *known == name);
        known.map_or_else(|| Self::Other(name.to_owned()), |(resource, _)| resource)
    }

    /// Returns the resource's name in the kernel's files.
    pub fn name(&self) -> &str {
        match self {
            Self::Other(name) => name,
            known => Self::NAMES.iter().find(|(resource, _)| resource == known).map_or("", |(_, name)| name),
        }
    }

    /// Returns whether the resource is a cache, so that its values are masks of ways.
    pub fn is_cache(&self) -> bool {
        !matches!(self, Self::MemoryBandwidth | Self::SlowMemoryBandwidth | Self::Other(_))
    }

    /// Returns whether the resource is the last-level cache or a part of it.
    pub fn is_l3(&self) -> bool {
        matches!(self, Self::L3 | Self::L3Code | Self::L3Data)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Line of a schemata: the values of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Ways in each domain.
    Ways(BTreeMap<DomainId, WayMask>),
    /// Bandwidth in each domain, in the resource's unit.
    Bandwidth(BTreeMap<DomainId, u64>),
    /// Nothing yet: the group is being set up as a pseudo-locked region.
    Uninitialized,
    /// Text behind the colon, for a resource that this version does not know.
    Unknown(String),
}

/// Allocation of each resource to a group, with the contents of the file `schemata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemata {
    /// Lines, in the file's order.
    pub lines: Vec<(Resource, Line)>,
}

/// Error of parsing a [`Schemata`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{line}' is no line of a schemata: {problem}")]
pub struct SchemataError {
    /// Line that could not be parsed.
    pub line: String,
    /// Description of what is wrong with the line.
    pub problem: &'static str,
}

impl Schemata {
    /// Makes a schemata with one line, which changes the ways of one resource.
    pub fn of_ways(resource: Resource, ways: BTreeMap<DomainId, WayMask>) -> Self {
        Self { lines: vec![(resource, Line::Ways(ways))] }
    }

    /// Returns the line of a resource.
    pub fn line(&self, resource: &Resource) -> Option<&Line> {
        self.lines.iter().find(|(found, _)| found == resource).map(|(_, line)| line)
    }

    /// Returns the ways that a resource has in each domain, or `None` where there is no line with its ways.
    pub fn ways(&self, resource: &Resource) -> Option<&BTreeMap<DomainId, WayMask>> {
        match self.line(resource) {
            Some(Line::Ways(ways)) => Some(ways),
            _ => None,
        }
    }

    /// Iterates over the ways of the last-level cache by resource: `L3`, or code and data where CDP is on.
    pub fn l3(&self) -> impl Iterator<Item = (&Resource, &BTreeMap<DomainId, WayMask>)> {
        self.lines.iter().filter_map(|(resource, line)| match line {
            Line::Ways(ways) if resource.is_l3() => Some((resource, ways)),
            _ => None,
        })
    }
}

fn parse_line(line: &str) -> Result<(Resource, Line), &'static str> {
    let (name, values) = line.split_once(':').ok_or("it has no colon")?;
    let name = name.trim();
    if name.is_empty() {
        return Err("it names no resource");
    }
    let resource = Resource::named(name);
    let values = values.trim();
    if matches!(resource, Resource::Other(_)) {
        return Ok((resource, Line::Unknown(values.to_owned())));
    }
    if values == "uninitialized" {
        return Ok((resource, Line::Uninitialized));
    }
    let line = if resource.is_cache() {
        Line::Ways(by_domain(values, |text| text.parse().ok())?)
    } else {
        Line::Bandwidth(by_domain(values, |text| text.parse().ok())?)
    };
    Ok((resource, line))
}

fn by_domain<T>(
    values: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<BTreeMap<DomainId, T>, &'static str> {
    let mut found = BTreeMap::new();
    for entry in values.split(';').filter(|entry| !entry.trim().is_empty()) {
        let (domain, value) = entry.split_once('=').ok_or("an entry is no DOMAIN=VALUE")?;
        let domain = domain.trim().parse().map_err(|_| "a domain is no number")?;
        let value = parse(value.trim()).ok_or("a value cannot be read")?;
        if found.insert(domain, value).is_some() {
            return Err("a domain is named twice");
        }
    }
    if found.is_empty() { Err("it names no domain") } else { Ok(found) }
}

impl FromStr for Schemata {
    type Err = SchemataError;

    /// Parses the kernel's text. Names may be right-aligned, and numbers padded with zeros or blanks.
    fn from_str(text: &str) -> Result<Self, SchemataError> {
        let mut lines: Vec<(Resource, Line)> = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let refused = |problem| SchemataError { line: line.trim().to_owned(), problem };
            let (resource, values) = parse_line(line).map_err(refused)?;
            if lines.iter().any(|(known, _)| *known == resource) {
                return Err(refused("the resource has two lines"));
            }
            lines.push((resource, values));
        }
        Ok(Self { lines })
    }
}

/// Prints the text that the kernel accepts: one line for each resource, each with the newline that the kernel
/// requires.
impl fmt::Display for Schemata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn entries<T: fmt::Display>(
            f: &mut fmt::Formatter<'_>,
            entries: &BTreeMap<DomainId, T>,
        ) -> fmt::Result {
            let mut semicolon = "";
            for (domain, value) in entries {
                write!(f, "{semicolon}{domain}={value}")?;
                semicolon = ";";
            }
            Ok(())
        }
        for (resource, line) in &self.lines {
            write!(f, "{resource}:")?;
            match line {
                Line::Ways(ways) => entries(f, ways)?,
                Line::Bandwidth(bandwidth) => entries(f, bandwidth)?,
                Line::Uninitialized => f.write_str("uninitialized")?,
                Line::Unknown(text) => f.write_str(text)?,
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
