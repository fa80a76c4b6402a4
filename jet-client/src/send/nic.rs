//! The NIC that a sender makes for itself: small, since it has one connection and receives little.

use super::driver::{NicSource, RECEIVE_ENTRIES};
use super::error::SendConnectError;
use super::options::{RdmaOptions, SenderOptions};
use jet_fabric::soft::attended::Attended;
use jet_fabric::soft::{SoftNic, SoftOptions};
#[cfg(feature = "verbs")]
use jet_fabric::verbs::{DeviceChoice, VerbsNic, VerbsOptions};
use jet_fabric::{Address, Nic};
use std::io;
use std::net::IpAddr;

/// Returns the options of a software NIC for a sender.
fn software_options() -> SoftOptions {
    SoftOptions {
        qps_max: 4,
        srq_entries_max: u32::from(RECEIVE_ENTRIES),
        reads_max: 1,
        // A sender makes no READs; it answers those of the receiver.
        reads_per_qp_max: 0,
        completions: 1024,
        ..SoftOptions::default()
    }
}

/// Returns the options of a sender's NIC on an RDMA device: the device with the address `source`, or else the
/// one that reaches `host_and_port`.
#[cfg(feature = "verbs")]
fn verbs_options(host_and_port: &str, source: Option<IpAddr>, rdma: RdmaOptions) -> io::Result<VerbsOptions> {
    let defaults = match source {
        Some(ip) => VerbsOptions { source, ..VerbsOptions::on(DeviceChoice::Reaching(ip)) },
        None => VerbsOptions::reaching(host_and_port)?,
    };
    Ok(VerbsOptions {
        qps_max: 4,
        srq_entries_max: u32::from(RECEIVE_ENTRIES),
        reads_max: 1,
        // A sender makes no READs over RDMA, either.
        reads_per_qp_max: 0,
        sends_max: 512,
        inline_places: 64,
        tos: rdma.tos,
        ack_timeout: rdma.ack_timeout,
        retry: rdma.retry,
        ..defaults
    })
}

/// A source of NICs for the address, the source address and the RDMA settings of the sender's options.
#[derive(Debug)]
pub(super) struct ByAddress {
    address: Address,
    source: Option<IpAddr>,
    rdma: RdmaOptions,
}

impl ByAddress {
    pub(super) fn new(options: &SenderOptions) -> Self {
        Self { address: options.address.clone(), source: options.source, rdma: options.rdma }
    }
}

impl NicSource for ByAddress {
    fn open(&mut self) -> Result<Box<dyn Nic>, SendConnectError> {
        nic_for(&self.address, self.source, self.rdma)
    }

    fn stand_in(&mut self) -> io::Result<Box<dyn Nic>> {
        Ok(Box::new(SoftNic::new(SoftOptions { qps_max: 1, ..software_options() })?))
    }
}

/// Makes the NIC for an address.
///
/// # Errors
/// [`SendConnectError`], also where `source` or `rdma` is set for an address that is not `rdma:`.
fn nic_for(
    address: &Address,
    source: Option<IpAddr>,
    rdma: RdmaOptions,
) -> Result<Box<dyn Nic>, SendConnectError> {
    if !matches!(address, Address::Rdma(_)) {
        if source.is_some() {
            return Err(SendConnectError::Option("a source address is chosen for rdma: addresses only"));
        }
        if rdma != RdmaOptions::default() {
            return Err(SendConnectError::Option(
                "tos, ack_timeout and retry are chosen for rdma: addresses only",
            ));
        }
    }
    match address {
        Address::Shm(_) => Ok(Box::new(SoftNic::new(software_options())?)),
        Address::Tcp(_) => Ok(Box::new(Attended::new(SoftNic::new(software_options())?)?)),
        #[cfg(feature = "verbs")]
        Address::Rdma(text) => Ok(Box::new(VerbsNic::new(verbs_options(text, source, rdma)?)?)),
        #[cfg(not(feature = "verbs"))]
        Address::Rdma(_) => Err(SendConnectError::WrongFabric { address: address.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_fabric::limits::Requirements;

    /// Tests of limits on devices that this host lacks use these constants (`Requirements`). So the constants
    /// must be what a sender really asks for.
    #[test]
    fn a_sender_wants_what_its_limits_were_derived_from() {
        assert_eq!(software_options().requirements(), Requirements::SOFTWARE_SENDER);
        #[cfg(feature = "verbs")]
        for source in [None, Some(std::net::Ipv4Addr::new(192, 0, 2, 1).into())] {
            let options = verbs_options("192.0.2.10:7450", source, RdmaOptions::default()).unwrap();
            assert_eq!((options.source, options.requirements()), (source, Requirements::VERBS_SENDER));
        }
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn what_a_sender_says_of_its_connection_reaches_the_nic() {
        let source = Some(std::net::Ipv4Addr::new(192, 0, 2, 1).into());
        let of_nic = |rdma, source| {
            let options = verbs_options("192.0.2.10:7450", source, rdma).unwrap();
            (options.tos, options.ack_timeout, options.retry)
        };
        for source in [None, source] {
            assert_eq!(of_nic(RdmaOptions::default(), source), (None, 16, 6));
            let rdma = RdmaOptions { tos: Some(104), ack_timeout: 13, retry: 4 };
            assert_eq!(of_nic(rdma, source), (Some(104), 13, 4));
        }
    }
}
