//! Addresses that a NIC listens at or connects to: `shm:/run/jet/nic.sock`, `tcp:host:port`,
//! `rdma:host:port`.

use std::path::PathBuf;
use std::str::FromStr;

/// Address of a NIC, with the fabric (`shm:`, `tcp:` or `rdma:`) that reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Path of a Unix socket on the same host.
    Shm(PathBuf),
    /// Text `host:port` of a TCP address on any host. The name is resolved when the address is used.
    Tcp(String),
    /// Text `host:port` of an address on any host that RDMA CM connects to.
    Rdma(String),
}

/// Error of a text that is not an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no address: write shm:/path/of/nic.sock, tcp:host:port or rdma:host:port ({reason})")]
#[non_exhaustive]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

/// Most bytes in the path of a Unix socket, without its final zero.
const SOCKET_PATH_MAX: usize = 107;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |reason| AddressError { text: text.to_owned(), reason };
        let (fabric, rest) = text.split_once(':').ok_or_else(|| refuse("no fabric before a colon"))?;
        let host_port = || match rest.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(rest.to_owned()),
            Some(_) => Err(refuse("the port is not a number from 0 to 65535, or the host is empty")),
            None => Err(refuse("no port after the host")),
        };
        match fabric {
            "shm" if rest.is_empty() => Err(refuse("the path is empty")),
            "shm" if rest.len() > SOCKET_PATH_MAX => Err(refuse("the path exceeds 107 bytes")),
            "shm" => Ok(Self::Shm(PathBuf::from(rest))),
            "tcp" => host_port().map(Self::Tcp),
            "rdma" => host_port().map(Self::Rdma),
            _ => Err(refuse("the fabric is none of shm, tcp, rdma")),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
            Self::Tcp(rest) => write!(f, "tcp:{rest}"),
            Self::Rdma(rest) => write!(f, "rdma:{rest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["shm:/run/jet/nic.sock", "tcp:localhost:9000", "tcp:[::1]:0", "rdma:10.0.0.1:7471"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_says_what_one_is() {
        for text in
            ["", "tcp:", "tcp:host", "tcp:host:port", "tcp::1", "shm:", "udp:a:1", "/run/jet/nic.sock"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("tcp:host:port"), "{error}");
        }
        assert!(format!("shm:/{}", "x".repeat(107)).parse::<Address>().is_err());
    }
}
