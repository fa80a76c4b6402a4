//! Tests of the configuration: values that can be set, values that are refused, and the error messages.

use super::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

fn load(overrides: &[&str]) -> Result<Config, ConfigError> {
    Config::load(None, &overrides.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
}

#[test]
fn the_defaults_are_the_papers() {
    let config = load(&[]).unwrap();
    assert_eq!((config.pool.bytes, config.pool.srq_bytes), (12 << 20, 4 << 20));
    assert_eq!((config.read.concurrency, config.read.in_flight_bytes), (32, 8 << 20));
    assert_eq!(config.read.fragment_bytes, 256 << 10);
}

#[test]
fn the_pools_node_is_the_one_that_is_named_and_else_the_devices() {
    let sys = tempfile::tempdir().unwrap();
    for (device, node) in [("mlx5_0", "1\n"), ("mlx5_1", "-1\n")] {
        let folder = sys.path().join("class/infiniband").join(device).join("device");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("numa_node"), node).unwrap();
    }
    let node = |overrides: &[&str]| load(overrides).unwrap().numa_node_below(sys.path());
    assert_eq!(node(&[]), None);
    assert_eq!(node(&["rdma.device='mlx5_0'"]), Some(1));
    assert_eq!(node(&["rdma.device='mlx5_1'"]), None, "the kernel names none");
    assert_eq!(node(&["rdma.device='rxe0'"]), None, "there is no file");
    assert_eq!(node(&["rdma.device='mlx5_0'", "pool.numa_node=0"]), Some(0));
}

#[test]
fn what_is_printed_can_be_read() {
    for overrides in [
        &[][..],
        // The largest sizes that TOML has.
        &["cache.bytes='9223372036854775807'", "cache.slack_bytes=9223372036854775807"],
        &["cache.throttle={batch = 20, '/' = 50}", "cache.device_ways='pool'", "control_socket='a \\ \"b\"'"],
    ] {
        let config = load(overrides).unwrap();
        assert_eq!(config.to_toml().unwrap().parse::<Config>().unwrap(), config);
    }
}

#[test]
fn sizes_that_toml_has_no_number_for_are_refused() {
    for key in ["read.message_bytes_max", "read.in_flight_bytes", "cache.bytes", "cache.slack_bytes"] {
        let error = load(&[&format!("{key}='8EiB'")]).unwrap_err().to_string();
        assert!(
            error.contains("\"8EiB\" is too large") && error.contains(key.split_once('.').unwrap().1),
            "{error}"
        );
    }
}

#[test]
fn more_senders_than_a_receiver_has_are_refused() {
    assert_eq!(load(&["limits.peers=1048576"]).unwrap().limits.peers, 1 << 20);
    for peers in ["0", "1048577", "536870912", "4294967295"] {
        let error = load(&[&format!("limits.peers={peers}")]).unwrap_err().to_string();
        assert!(error.contains("limits.peers is ") && error.contains(peers), "{error}");
    }
}

#[test]
fn a_path_that_is_no_text_is_not_printed() {
    let path = PathBuf::from(OsStr::from_bytes(b"/run/\xff"));
    let error = Config { control_socket: path, ..Config::default() }.to_toml().unwrap_err().to_string();
    assert!(error.contains("control_socket") && error.contains("not UTF-8"), "{error}");
}

#[test]
fn the_file_that_is_deployed_says_the_defaults() {
    let deployed = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/jetd.toml");
    assert_eq!(Config::load(Some(Path::new(deployed)), &[]).unwrap(), Config::default());
}

#[test]
fn what_escape_does_can_be_turned_off_one_by_one() {
    let core = |overrides: &[&str]| {
        let core = load(overrides).unwrap().core(16).unwrap();
        core.check().unwrap();
        core
    };
    let defaults = core(&[]);
    assert_eq!(
        (defaults.escape.replace_slabs_max, defaults.memory_slabs, defaults.session_memory_slabs),
        (256, 8192, 2048)
    );
    assert_eq!(defaults.escape, EscapeConfig::default());
    let no_replace = core(&["escape.replace_bytes=0"]);
    assert_eq!((no_replace.escape.replace_slabs_max, no_replace.memory_slabs), (0, 8192));
    // Without escape memory the limit of each session does not matter.
    let no_memory = core(&["escape.memory_bytes=0"]);
    assert_eq!((no_memory.escape.replace_slabs_max, no_memory.memory_slabs), (256, 0));
    core(&["escape.replace_bytes=0", "escape.memory_bytes=0", "escape.session_memory_bytes=0"]);
    assert!(!core(&["escape.enabled=false"]).escape.enabled);
    assert_eq!(load(&["escape.workers=0"]).unwrap().escape.workers, 0);
}

#[test]
fn what_escape_is_told_reaches_the_receiver() {
    let config = load(&[
        "escape.safe_permille=300",
        "escape.danger_permille=100",
        "escape.hysteresis_permille=10",
        "escape.credit_permille=700",
        "escape.straggler_us=1500",
        "escape.replace_bytes=8192",
        "escape.memory_bytes=2097152",
        "escape.session_memory_bytes=1048576",
    ]);
    let core = config.unwrap().core(16).unwrap();
    let thresholds = Thresholds { safe_permille: 300, danger_permille: 100, hysteresis_permille: 10 };
    let escape = EscapeConfig {
        enabled: true,
        thresholds,
        replace_slabs_max: 2,
        credit_permille: 700,
        straggler_ns: 1_500_000,
    };
    assert_eq!(core.escape, escape);
    assert_eq!((core.memory_slabs, core.session_memory_slabs), (512, 256));
}

#[test]
fn overrides_reach_into_sections() {
    let config = load(&["pool.bytes=25165824", "listen=[\"tcp:127.0.0.1:0\"]", "reactor.cpu=1"]).unwrap();
    assert_eq!((config.pool.bytes, config.reactor.cpu), (24 << 20, Some(1)));
    assert_eq!(config.listen, ["tcp:127.0.0.1:0"]);
}

#[test]
fn a_device_is_named_by_its_profile() {
    assert_eq!(load(&[]).unwrap().nic.profile, None);
    for profile in jet_fabric::limits::Profile::ALL {
        let config = load(&[&format!("nic.profile={}", profile.name())]).unwrap();
        assert_eq!(config.nic.profile, Some(NicProfile(profile)));
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(printed.parse::<toml::Table>().unwrap().try_into::<Config>().unwrap(), config);
    }
}

#[test]
fn what_cannot_be_says_what_to_write() {
    for (given, named) in [
        ("pool.bytez=1", "bytez"),
        ("pool.bytes=5000", "pool.bytes"),
        ("pool.bytes=8192", "pool.bytes"),
        ("listen=[]", "listen"),
        ("listen=[\"udp:x\"]", "tcp:host:port"),
        ("read.concurrency=0", "read.concurrency"),
        ("limits.messages=10", "limits.messages"),
        ("pool.bytes=many", "pool.bytes"),
        ("escape.danger_permille=900", "escape.danger_permille is 900 and safe_permille 200"),
        ("escape.danger_permille=200", "must lie below the safe one"),
        ("escape.hysteresis_permille=900", "escape.safe_permille is 200 and hysteresis_permille 900"),
        ("read.checksums=sometimes", "unknown variant `sometimes`"),
        ("read.checksums=false", "expected one of `inline`, `workers`, `off`"),
        ("read.footprint=1", "unknown variant `1`"),
        ("escape.workers=65", "escape.workers is 65, but must be 0 to 64"),
        ("escape.workers=-1", "escape"),
        ("escape.straggler_us=0", "escape.straggler_us is 0, but must be at least 1"),
        ("escape.credit_permille=1001", "escape.credit_permille is 1001, but must be 0 to 1000"),
        ("escape.replace_bytes=4097", "escape.replace_bytes = 4097 must be a multiple"),
        (
            "escape.replace_bytes=4294971392",
            "escape.replace_bytes is 4294971392, but must be 0 to 4294967296",
        ),
        ("escape.memory_bytes=1000", "escape.memory_bytes = 1000 must be a multiple"),
        ("escape.memory_bytes=17592186044416", "and at most 4 GiB"),
        ("escape.memory_bytes=4096", "escape.memory_bytes is 4096, but must be "),
        ("limits.heartbeat_ms=9", "limits.heartbeat_ms is 9, but must be 10 to 60000"),
        ("pool.srq_bytes=4096", "pool.srq_bytes is 4096, but must be 8192 to "),
        ("escape.session_memory_bytes=100", "escape.session_memory_bytes = 100 must be a multiple"),
        ("escape.session_memory_bytes=1073741824", "escape.session_memory_bytes"),
        ("session.quarantine_ms=9223372036854775807", "session.quarantine_ms is 9223372036854775807, but"),
        ("admission.aging_ms=86400001", "admission.aging_ms is 86400001, but must be at most 86400000"),
        ("reactor.spin_us_max=1000001", "must be at most 1000000"),
        ("shutdown.drain_ms=86400001", "shutdown.drain_ms"),
        ("escape.straggler_us=86400000001", "escape.straggler_us"),
        ("rdma.ack_timeout=0", "rdma.ack_timeout is 0, but must be 1 to 31"),
        ("rdma.ack_timeout=32", "rdma.ack_timeout is 32, but must be 1 to 31"),
        ("rdma.retry=8", "rdma.retry is 8, but must be 0 to 7"),
        ("rdma.look_ms=99", "rdma.look_ms is 99, but must be 100 to 86400000"),
        ("rdma.look_ms=86400001", "rdma.look_ms is 86400001, but must be 100 to 86400000"),
        ("rdma.tos=256", "rdma"),
        ("nonsense", "SECTION.KEY=VALUE"),
        ("nic.profile=connectx-9", "unknown profile 'connectx-9', expected one of connectx-6, e810,"),
        ("nic.profile=7", "nic"),
        ("congestion.hold_ms=0", "configuration: congestion.hold_ms"),
        ("congestion.actuators=[\"ecn\"]", "roce_np"),
    ] {
        let error = load(&[given]).unwrap_err().to_string();
        assert!(error.contains(named), "{given}: {error}");
    }
    let error = load(&["escape.workers=0", "read.checksums=workers"]).unwrap_err().to_string();
    assert!(error.contains("set it to 1 or more, or read.checksums to \"inline\""), "{error}");
    let missing = Config::load(Some(Path::new("/nonexistent.toml")), &[]).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent.toml"));
}
