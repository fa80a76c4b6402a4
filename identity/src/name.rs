//! Names of identities, and patterns of them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// Name of an identity: 1 to 255 letters, digits, `.`, `_`, `-`, `/` or `:`.
///
/// What begins with `spiffe:` is a SPIFFE id, and keeps to its rules: `spiffe://example.org/storage/web-1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Box<str>);

/// Reason why a text is no name, or no pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty, too long, or has a character that is not allowed.
    #[error("\"{0}\" is no name; a name has 1 to {NAME_MAX} characters out of A-Z a-z 0-9 . _ - / :")]
    Characters(String),
    /// It begins as a SPIFFE id and is none.
    #[error(
        "\"{0}\" is no SPIFFE id; write one as spiffe://example.org/storage/web-1, with the domain in small \
         letters, and no empty part"
    )]
    Spiffe(String),
}

const SPIFFE: &str = "spiffe:";

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte)
}

/// Whether a text begins as a SPIFFE id, in capital letters, too.
fn looks_like_spiffe(text: &str) -> bool {
    text.get(..SPIFFE.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(SPIFFE))
}

fn is_spiffe_id(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("spiffe://") else { return false };
    let (domain, path) = rest.split_once('/').map_or((rest, None), |(domain, path)| (domain, Some(path)));
    let in_domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let in_path = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let is_segment = |part: &str| !["", ".", ".."].contains(&part) && part.bytes().all(in_path);
    !domain.is_empty()
        && domain.bytes().all(in_domain)
        && path.is_none_or(|path| path.split('/').all(is_segment))
}

impl Name {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(is_allowed) {
            return Err(NameError::Characters(text.to_owned()));
        }
        if looks_like_spiffe(text) && !is_spiffe_id(text) {
            return Err(NameError::Spiffe(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A name, or the beginning of names and a `*`.
///
/// `web-*` stands for all names that begin with `web-`, and `*` for all names. The `*` of a SPIFFE id belongs
/// behind a `/`: `spiffe://example.org*` would be `spiffe://example.org.of.others`, too, and is refused. A
/// beginning that is none of a SPIFFE id, as in `s*`, stands for no SPIFFE id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(Box<str>);

impl NamePattern {
    /// Whether the pattern stands for this name.
    pub fn matches(&self, name: &Name) -> bool {
        match self.0.strip_suffix('*') {
            Some("") => true,
            // The beginning of a word is none of a SPIFFE id.
            Some(beginning) => {
                name.0.starts_with(beginning) && name.0.starts_with(SPIFFE) == beginning.starts_with(SPIFFE)
            }
            None => self.0 == name.0,
        }
    }
}

impl FromStr for NamePattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let Some(beginning) = text.strip_suffix('*') else {
            return text.parse::<Name>().map(|name| Self(name.0));
        };
        if beginning.len() > NAME_MAX || !beginning.bytes().all(is_allowed) {
            return Err(NameError::Characters(text.to_owned()));
        }
        // All SPIFFE ids, those of a domain, or those below a path.
        let is_whole = |beginning: &str| {
            beginning == "spiffe://" || beginning.strip_suffix('/').is_some_and(is_spiffe_id)
        };
        if looks_like_spiffe(beginning) && !is_whole(beginning) {
            return Err(NameError::Spiffe(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for NamePattern {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.0.into()
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_or_spiffe_ids() {
        for good in ["web-1", "a", "rack/7:web_1.b", "spiffe://example.org", "spiffe://e-x.org/a/B.c_d-1"] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        let long = "x".repeat(NAME_MAX + 1);
        for bad in ["", "a b", "web*", "wéb", "line\nbreak", &long] {
            assert!(matches!(bad.parse::<Name>(), Err(NameError::Characters(_))), "{bad}");
        }
        for bad in [
            "spiffe:web",
            "SPIFFE://a.org/x",
            "spiffe:/web",
            "spiffe://",
            "spiffe:///path",
            "spiffe://Example.org/a",
            "spiffe://example.org/",
            "spiffe://example.org/a//b",
            "spiffe://example.org/../b",
            "spiffe://example.org:80/a",
        ] {
            assert!(matches!(bad.parse::<Name>(), Err(NameError::Spiffe(_))), "{bad}");
        }
        assert_eq!("x".repeat(NAME_MAX).parse::<Name>().unwrap().as_str().len(), NAME_MAX);
    }

    #[test]
    fn a_pattern_stands_for_one_name_or_for_those_that_begin_so() {
        let matches = |pattern: &str, name: &str| {
            pattern.parse::<NamePattern>().unwrap().matches(&name.parse().unwrap())
        };
        assert!(matches("web-1", "web-1") && !matches("web-1", "web-12") && !matches("web-1", "web-"));
        assert!(matches("web-*", "web-12") && matches("web-*", "web-") && !matches("web-*", "web"));
        assert!(matches("*", "anything") && matches("*", "spiffe://a.org/x"));
        assert!(!matches("s*", "spiffe://a.org/x") && !matches("spiffe*", "spiffe://a.org/x"));
        assert!(matches("s*", "store"));
        assert!(matches("spiffe://*", "spiffe://a.org/x") && !matches("spiffe://*", "web"));
        assert!(matches("spiffe://a.org/*", "spiffe://a.org/x"));
        assert!(!matches("spiffe://a.org/*", "spiffe://a.org.evil/x"));
        assert!(
            matches("spiffe://a.org/x/*", "spiffe://a.org/x/y")
                && !matches("spiffe://a.org/x/*", "spiffe://a.org/xy")
        );
        for bad in
            ["", "we*b", "**", "spiffe://a.org*", "spiffe://a.org/x*", "spiffe:*", "spiffe:///*", "Spiffe:*"]
        {
            assert!(bad.parse::<NamePattern>().is_err(), "{bad}");
        }
    }
}
