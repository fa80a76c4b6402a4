//! Addresses of network interfaces.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the addresses of an interface of this host; empty where there is no such interface.
pub(super) fn addresses(interface: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list is the C library's, and read before it is given back; an address in it is of its
    // family's type.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return addresses;
        }
        let mut entry = list;
        while let Some(found) = entry.as_ref() {
            if CStr::from_ptr(found.ifa_name).to_bytes() == interface.as_bytes() && !found.ifa_addr.is_null()
            {
                match i32::from((*found.ifa_addr).sa_family) {
                    libc::AF_INET => {
                        let v4 = (*found.ifa_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                        addresses.push(IpAddr::V4(Ipv4Addr::from(v4.to_ne_bytes())));
                    }
                    libc::AF_INET6 => {
                        let v6 = (*found.ifa_addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                        addresses.push(IpAddr::V6(Ipv6Addr::from(v6)));
                    }
                    _ => {}
                }
            }
            entry = found.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_the_loopback_address() {
        assert!(addresses("lo").contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(addresses("no-such-interface").is_empty());
    }
}
