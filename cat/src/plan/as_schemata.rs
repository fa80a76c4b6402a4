//! Serde format of [`Ways`] in journals: the text that the kernel writes to `schemata`, so that an operator
//! can compare the two.

use super::{Ways, l3_ways, schemata};
use crate::resctrl::Schemata;
use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(ways: &Ways, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&schemata(ways))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ways, D::Error> {
    let text = String::deserialize(deserializer)?;
    let schemata: Schemata = text.parse().map_err(serde::de::Error::custom)?;
    let ways = l3_ways(&schemata);
    if ways.len() == schemata.lines.len() {
        Ok(ways)
    } else {
        Err(serde::de::Error::custom("it names something else than ways of the last-level cache"))
    }
}
