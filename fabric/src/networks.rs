//! Networks from whose hosts a NIC takes connections.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// Network: addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// First address. Those of version 4 are mapped to version 6.
    first: u128,
    /// Number of the bits with which all addresses begin.
    bits: u32,
}

/// Reason why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The text before the slash is no IP address, or the one behind it no number of bits.
    #[error("'{text}' is no network; write an address and how many of its bits count, as in 10.1.0.0/16")]
    NoNetwork {
        /// The text.
        text: String,
    },
    /// The address has bits that do not count.
    #[error("'{text}' has bits that do not count; write {meant}")]
    MoreBits {
        /// The text.
        text: String,
        /// The network that the bits that count name.
        meant: Network,
    },
}

/// Bits by which an address of version 4 is mapped to version 6.
const MAPPED_BITS: u32 = 96;

fn mapped(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

fn mask(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

impl Network {
    /// Whether the address is one of the network.
    pub fn contains(self, address: IpAddr) -> bool {
        mapped(address) & mask(self.bits) == self.first
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError::NoNetwork { text: text.to_owned() };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let before = if address.is_ipv4() { MAPPED_BITS } else { 0 };
        let bits = bits.unwrap_or(128 - before).checked_add(before).filter(|&bits| bits <= 128);
        let bits = bits.ok_or_else(wrong)?;
        let network = Self { first: mapped(address) & mask(bits), bits };
        if network.first == mapped(address) {
            Ok(network)
        } else {
            Err(NetworkError::MoreBits { text: text.to_owned(), meant: network })
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = Ipv6Addr::from(self.first);
        match first.to_ipv4_mapped() {
            Some(v4) if self.bits >= MAPPED_BITS => write!(f, "{v4}/{}", self.bits - MAPPED_BITS),
            _ => write!(f, "{first}/{}", self.bits),
        }
    }
}

/// Networks from whose hosts connections are taken, before anything is allocated for them. By default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Option<Arc<[Network]>>);

impl Networks {
    /// Returns these networks and no others.
    pub fn only(networks: impl Into<Arc<[Network]>>) -> Self {
        Self(Some(networks.into()))
    }

    /// Whether connections are taken from everywhere.
    pub fn are_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether connections from this address are taken.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.as_deref().is_none_or(|list| list.iter().any(|network| network.contains(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn has(networks: &str, address: &str) -> bool {
        let list: Vec<Network> = networks.split(' ').map(network).collect();
        Networks::only(list).contain(address.parse().unwrap())
    }

    #[test]
    fn an_address_is_in_the_networks_whose_bits_it_begins_with() {
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.0"));
        assert!(has("10.0.0.0/8", "::ffff:10.1.1.1"), "as a socket of both versions reports it");
        assert!(has("192.0.2.7", "192.0.2.7") && !has("192.0.2.7", "192.0.2.6"));
        assert!(has("192.0.2.7 2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!has("2001:db8::/32", "2001:db9::1") && !has("0.0.0.0/0", "2001:db8::1"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && has("::/0", "203.0.113.9") && has("::/0", "fe80::1"));
        assert!(Networks::default().contain("203.0.113.9".parse().unwrap()));
        assert!(!Networks::only(Vec::new()).contain("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_refused_with_what_to_write() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/4294967295", "host"] {
            let error = text.parse::<Network>().unwrap_err();
            assert_eq!(error, NetworkError::NoNetwork { text: text.to_owned() });
        }
        let error = "10.1.2.3/16".parse::<Network>().unwrap_err();
        assert_eq!(error.to_string(), "'10.1.2.3/16' has bits that do not count; write 10.1.0.0/16");
    }

    proptest! {
        /// Bit by bit, as one would do it by hand.
        #[test]
        fn a_network_has_what_begins_as_it_does(
            address: u128,
            other: u128,
            bits in 0..=128u32,
            shared in 0..=128u32,
        ) {
            let of = |number: u128| IpAddr::V6(Ipv6Addr::from(number));
            let first = address & mask(bits);
            // The other address begins with some of the same bits.
            let other = first & mask(shared) | other & !mask(shared);
            let text = format!("{}/{bits}", Ipv6Addr::from(first));
            let network: Network = text.parse().unwrap();
            let bit = |number: u128, at: u32| number >> (127 - at) & 1;
            let same = (0..bits).all(|at| bit(first, at) == bit(other, at));
            prop_assert_eq!(network.contains(of(other)), same);
            prop_assert_eq!(network.to_string().parse::<Network>(), Ok(network));
        }
    }
}
