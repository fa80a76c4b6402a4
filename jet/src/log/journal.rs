//! The protocol of systemd's journal ("Native Journal Protocol"). A record is a datagram of fields,
//! `NAME=VALUE` a line. A value with several lines is preceded by its length instead.

use super::record::Record;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use serde_json::Value;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use tracing::Level;

/// Path of the socket where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";

/// A datagram socket to the journal.
pub(super) struct Journal {
    socket: OwnedFd,
    to: SocketAddrUnix,
}

impl Journal {
    /// Creates the socket for systemd's journal.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(Self { socket, to: SocketAddrUnix::new(path)? })
    }

    /// Sends a record without waiting.
    ///
    /// # Errors
    /// Returns the system's error if the journal does not take the record now.
    pub fn put(&self, program: &str, record: &Record) -> io::Result<()> {
        let datagram = datagram(program, record);
        sendto(&self.socket, &datagram, SendFlags::NOSIGNAL, &self.to)?;
        Ok(())
    }
}

fn datagram(program: &str, record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    let priority = match record.level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    };
    field(&mut bytes, "PRIORITY", priority);
    field(&mut bytes, "SYSLOG_IDENTIFIER", program);
    field(&mut bytes, "MESSAGE", &record.message);
    for (name, value) in &record.fields {
        let value = match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        field(&mut bytes, &format!("JET_{}", name.to_ascii_uppercase()), &value);
    }
    if record.left_out > 0 {
        field(&mut bytes, "JET_LEFT_OUT", &record.left_out.to_string());
    }
    bytes
}

fn field(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        bytes.extend((value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend(value.as_bytes());
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::time::SystemTime;

    fn record(message: &str) -> Record {
        Record {
            time: SystemTime::now(),
            level: Level::WARN,
            message: message.to_owned(),
            fields: vec![("application", "store".into()), ("peer", 7.into())],
            left_out: 0,
        }
    }

    #[test]
    fn a_record_arrives_with_its_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let reader = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        journal.put("jetd", &record("one line")).unwrap();
        let mut bytes = [0; 1024];
        let got = reader.recv(&mut bytes).unwrap();
        let wanted =
            "PRIORITY=4\nSYSLOG_IDENTIFIER=jetd\nMESSAGE=one line\nJET_APPLICATION=store\nJET_PEER=7\n";
        assert_eq!(std::str::from_utf8(&bytes[..got]).unwrap(), wanted);
        journal.put("jetd", &record("two\nlines")).unwrap();
        let got = reader.recv(&mut bytes).unwrap();
        let long = b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n";
        assert!(bytes[..got].windows(long.len()).any(|part| part == long));
    }

    #[test]
    fn a_journal_that_reads_nothing_or_is_gone_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let reader = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        let full =
            (0..100_000).find_map(|_| journal.put("jetd", &record("again")).err()).expect("it fills up");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(reader);
        assert!(journal.put("jetd", &record("gone")).is_err());
        assert!(Journal::at(&folder.path().join("none")).unwrap().put("jetd", &record("none")).is_err());
    }
}
