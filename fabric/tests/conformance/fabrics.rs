//! The fabrics that the suite runs on.
//!
//! They are software NICs over both transports, polled, on a thread and with a helper, without limits and
//! with those of a device; simulated NICs; and an RDMA device, if one is named.

use jet_fabric::address::Address;
use jet_fabric::limits::Profile;
use jet_fabric::nic::Nic;
use jet_fabric::sim::{Conditions, Network, SimOptions};
use jet_fabric::soft::attended::Attended;
use jet_fabric::soft::threaded::{Threaded, ThreadedOptions};
use jet_fabric::soft::{SoftNic, SoftOptions};
use std::sync::OnceLock;
use std::time::Duration;

/// Fabric that the suite runs on: makes NICs and addresses.
pub trait Fabric {
    /// Returns the name of the module that runs the suite on this fabric.
    fn name(&self) -> &'static str;
    /// Makes a NIC for the end of that name.
    fn nic(&self, end: &str, options: SoftOptions) -> Box<dyn Nic>;
    /// Returns an address to listen on. `place` lives as long as the address is used.
    fn address(&self, place: &tempfile::TempDir) -> Address;
    /// Returns an address that the fabric's NICs do not support.
    fn foreign_address(&self) -> Address {
        Address::Rdma("127.0.0.1:1".to_owned())
    }
}

fn shm_address(place: &tempfile::TempDir) -> Address {
    Address::Shm(place.path().join("nic.sock"))
}

fn tcp_address(_: &tempfile::TempDir) -> Address {
    Address::Tcp("127.0.0.1:0".to_owned())
}

fn soft(options: SoftOptions) -> SoftNic {
    SoftNic::new(options).expect("a software NIC")
}

fn on_a_thread(options: SoftOptions) -> Box<dyn Nic> {
    Box::new(Threaded::new(soft(options), &ThreadedOptions::default()).expect("a NIC thread"))
}

fn with_a_helper(options: SoftOptions) -> Box<dyn Nic> {
    Box::new(Attended::new(soft(options)).expect("a helper"))
}

macro_rules! fabric {
    ($fabric:ident, $name:literal, $nic:expr, $address:expr) => {
        pub struct $fabric;
        impl Fabric for $fabric {
            fn name(&self) -> &'static str {
                $name
            }
            fn nic(&self, _end: &str, options: SoftOptions) -> Box<dyn Nic> {
                $nic(options)
            }
            fn address(&self, place: &tempfile::TempDir) -> Address {
                $address(place)
            }
        }
    };
}

fabric!(Shm, "shm", |options| Box::new(soft(options)), shm_address);
fabric!(Tcp, "tcp", |options| Box::new(soft(options)), tcp_address);
fabric!(ShmThreaded, "shm_threaded", on_a_thread, shm_address);
fabric!(TcpThreaded, "tcp_threaded", on_a_thread, tcp_address);
fabric!(TcpAttended, "tcp_attended", with_a_helper, tcp_address);

/// Sets the profile, unless the case names one, and lowers the SRQ entries to what it has.
fn on(profile: Profile, options: SoftOptions) -> SoftOptions {
    let profile = options.profile.unwrap_or(profile);
    let entries = u32::try_from(profile.attributes().max_srq_wr).expect("it has an SRQ");
    SoftOptions { profile: Some(profile), srq_entries_max: options.srq_entries_max.min(entries), ..options }
}

macro_rules! fabric_of_a_profile {
    ($profile:ident: $($fabric:ident, $name:literal, $nic:expr, $address:expr;)+) => {
        $(fabric!($fabric, $name, |options| $nic(on(Profile::$profile, options)), $address);)+
    };
}

fn polled(options: SoftOptions) -> Box<dyn Nic> {
    Box::new(soft(options))
}

fabric_of_a_profile! { SMALLEST:
    ShmSmallest, "shm_smallest", polled, shm_address;
    TcpSmallest, "tcp_smallest", polled, tcp_address;
    ShmThreadedSmallest, "shm_threaded_smallest", on_a_thread, shm_address;
    TcpThreadedSmallest, "tcp_threaded_smallest", on_a_thread, tcp_address;
}

fabric_of_a_profile! { CONNECTX_6:
    ShmConnectX6, "shm_connectx_6", polled, shm_address;
    TcpConnectX6, "tcp_connectx_6", polled, tcp_address;
    ShmThreadedConnectX6, "shm_threaded_connectx_6", on_a_thread, shm_address;
    TcpThreadedConnectX6, "tcp_threaded_connectx_6", on_a_thread, tcp_address;
}

/// Simulated NICs in a network of their own for each case, with the limits of a device. The time is the real
/// one.
pub struct Sim {
    name: &'static str,
    profile: Profile,
    network: OnceLock<Network>,
}

impl Sim {
    pub fn smallest() -> Self {
        Self::of("sim_smallest", Profile::SMALLEST)
    }

    pub fn connectx_6() -> Self {
        Self::of("sim_connectx_6", Profile::CONNECTX_6)
    }

    pub fn rxe() -> Self {
        Self::of("sim_rxe", Profile::RXE)
    }

    fn of(name: &'static str, profile: Profile) -> Self {
        Self { name, profile, network: OnceLock::new() }
    }

    /// Returns the network's conditions. They are bad ones, with a new seed, so that much happens in another
    /// order.
    fn conditions() -> Conditions {
        let seed = crate::random::seed();
        Conditions { jitter_ns: 20_000, flush_ns: 200_000, last_wqe_ns: 500_000, ..Conditions::quiet(seed) }
    }
}

impl Fabric for Sim {
    fn name(&self) -> &'static str {
        self.name
    }

    fn nic(&self, _end: &str, options: SoftOptions) -> Box<dyn Nic> {
        let options = on(self.profile, options);
        let network = self.network.get_or_init(|| Network::new(Self::conditions()));
        let nanoseconds = |span: Duration| u64::try_from(span.as_nanos()).expect("a short span");
        let made = SimOptions {
            regions_max: options.regions_max,
            rnr_timeout_ns: options.rnr_timeout.map(nanoseconds),
            farewell_ns: nanoseconds(options.farewell),
            ..SimOptions::new(options.profile.expect("it was just set"), options.requirements())
        };
        Box::new(network.nic(made).unwrap_or_else(|error| panic!("{error}")))
    }

    fn address(&self, _: &tempfile::TempDir) -> Address {
        Address::Rdma("receiver:0".to_owned())
    }

    fn foreign_address(&self) -> Address {
        Address::Tcp("127.0.0.1:1".to_owned())
    }
}

/// Verbs, between two devices or through one. Environment variables name the devices (docs/rdma.md).
#[cfg(feature = "verbs")]
pub struct Rdma;

#[cfg(feature = "verbs")]
impl Rdma {
    /// Variable with the address where the server listens.
    const ADDRESS: &str = "JET_RDMA_ADDRESS";
    /// Variable with the address that clients connect from, if that is on another device.
    const SOURCE: &str = "JET_RDMA_SOURCE";
    /// Variable with the profile whose limits the devices are to keep to, beside their own.
    const PROFILE: &str = "JET_RDMA_PROFILE";

    fn profile() -> Option<Profile> {
        let name = std::env::var(Self::PROFILE).ok()?;
        Some(name.parse().unwrap_or_else(|error| panic!("{}: {error}", Self::PROFILE)))
    }

    fn address_in(variable: &str) -> Option<std::net::IpAddr> {
        let text = std::env::var(variable).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no IP address")))
    }

    fn server() -> std::net::IpAddr {
        Self::address_in(Self::ADDRESS).expect("JET_RDMA_ADDRESS names an address of an RDMA device")
    }

    /// Returns the options of a NIC on verbs that has these sizes.
    pub fn options(end: &str, options: &SoftOptions) -> jet_fabric::verbs::VerbsOptions {
        use jet_fabric::verbs::{DeviceChoice, VerbsOptions};
        let source = Self::address_in(Self::SOURCE).filter(|_| matches!(end, "client" | "child"));
        let options = match Self::profile() {
            Some(profile) => on(profile, *options),
            None => *options,
        };
        let SoftOptions { qps_max, srq_entries_max, reads_max, completions, .. } = options;
        VerbsOptions {
            source,
            profile: options.profile,
            qps_max,
            srq_entries_max,
            reads_max,
            reads_per_qp_max: options.reads_per_qp_max,
            reads_answered_per_qp_max: options.reads_answered_per_qp_max,
            sends_max: completions - srq_entries_max - reads_max,
            regions_max: options.regions_max,
            rnr_retry: if options.rnr_timeout.is_some() { 1 } else { 7 },
            farewell: options.farewell,
            // A daemon has a set-up thread; a sender makes these calls in place.
            set_up_thread: end == "server",
            ..VerbsOptions::on(DeviceChoice::Reaching(source.unwrap_or_else(Self::server)))
        }
    }
}

#[cfg(feature = "verbs")]
impl Fabric for Rdma {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn nic(&self, end: &str, options: SoftOptions) -> Box<dyn Nic> {
        let nic = jet_fabric::verbs::VerbsNic::new(Self::options(end, &options));
        Box::new(nic.unwrap_or_else(|error| panic!("{error}")))
    }

    fn address(&self, _: &tempfile::TempDir) -> Address {
        Address::Rdma(format!("{}:0", Self::server()))
    }

    fn foreign_address(&self) -> Address {
        Address::Tcp("127.0.0.1:1".to_owned())
    }
}
