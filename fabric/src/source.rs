//! Where a connection comes from: shares of what connections have in common are by source.

use std::net::IpAddr;

/// Origin of a connection, as far as a stranger cannot choose it: a host, or a process of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(u128);

impl Source {
    /// Returns the source at an IP address.
    ///
    /// In version 6 of IP a host chooses the lower half of its addresses, so that half does not count. Within
    /// a link, all hosts have the same upper half, and the whole address counts.
    pub(crate) fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().into()),
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Self(v6.into()),
            IpAddr::V6(v6) => Self(u128::from(v6) & !u128::from(u64::MAX)),
        }
    }

    /// Returns the source of connections of a process. Processes of one user that this process cannot tell
    /// apart, since they are in another pid namespace, have the number 0 and are one source.
    pub(crate) fn of_process(process: u32, user: u32) -> Self {
        Self(u128::from(user) << 32 | u128::from(process))
    }

    /// Returns the source of a number, of those that a NIC numbers itself.
    pub(crate) fn of_number(number: u32) -> Self {
        Self(number.into())
    }

    /// Returns a number that no other source of the same NIC has.
    pub fn number(self) -> u128 {
        self.0
    }

    /// Returns the source of what has come from several.
    pub(crate) fn of_nobody() -> Self {
        Self(u128::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str) -> Source {
        Source::of_address(address.parse().unwrap())
    }

    #[test]
    fn a_source_is_what_a_stranger_cannot_choose() {
        assert_eq!(host("10.0.0.1"), host("::ffff:10.0.0.1"));
        assert_ne!(host("10.0.0.1"), host("10.0.0.2"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:1"));
        assert_ne!(host("2001:db8:0:1::1"), host("2001:db8:0:2::1"));
        assert_ne!(host("fe80::1"), host("fe80::2"));
        assert_ne!(host("::1"), host("10.0.0.1"));
        assert_ne!(Source::of_process(1, 0), Source::of_process(2, 0));
        assert_ne!(Source::of_process(0, 1), Source::of_process(0, 2));
    }
}
