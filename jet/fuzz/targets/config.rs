//! Fuzzing of the daemon's configuration: any text as a file, and any values for the keys as `--set`. Reading
//! must not panic. A configuration that is accepted must print as a text that is accepted and means the same.
//! A size or a span with a unit must be the number that it says, or be refused.

#![no_main]

use jet::daemon::{Config, ConfigError, DaemonArgs};
use jet::values::{SpanError, parse_bytes, parse_microseconds, parse_span, parse_span_or_seconds};
use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::LazyLock;

/// Units of sizes, with their bytes.
const SIZES: [(&str, u128); 14] = [
    ("", 1),
    ("B", 1),
    ("kB", 1000),
    ("KiB", 1 << 10),
    (" KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EB", 1_000_000_000_000_000_000),
    ("EiB", 1 << 60),
];

/// Units of spans, with their nanoseconds.
const SPANS: [(&str, u128); 10] = [
    ("ns", 1),
    ("us", 1000),
    ("ms", 1_000_000),
    (" ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("days", 86_400_000_000_000),
    ("weeks", 604_800_000_000_000),
];

/// Words that some keys take.
const WORDS: [&str; 29] = [
    "auto",
    "off",
    "on",
    "require",
    "prefer",
    "never",
    "away",
    "onto",
    "anywhere",
    "leave",
    "inline",
    "workers",
    "pool",
    "follow",
    "aggressive",
    "dynamic",
    "connectx-6",
    "smallest",
    "text",
    "json",
    "journal",
    "debug",
    "trace",
    "roce_np",
    "cc_params",
    "ff",
    "f0000",
    "0000:3b:00.0",
    "tcp:127.0.0.1:7450",
];

/// Keys that are not printed while they are not set.
const UNSET: [&str; 15] = [
    "pool.numa_node",
    "cache.bytes",
    "cache.ddio_ways",
    "cache.device_ways",
    "cache.throttle.batch",
    "cache.throttle./",
    "reactor.cpu",
    "nic.cpu",
    "nic.profile",
    "rdma.device",
    "rdma.port",
    "rdma.gid_index",
    "rdma.tos",
    "congestion.interface",
    "congestion.pci",
];

/// All keys, as `--set` takes them, and their defaults.
static KEYS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let printed = Config::default().to_toml().expect("the defaults");
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in printed.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((key, value)) = line.split_once(" = ") {
            keys.push((format!("{section}{key}"), value.to_owned()));
        }
    }
    assert!(keys.len() > 50, "{printed}");
    keys.extend(UNSET.map(|key| (key.to_owned(), "1".to_owned())));
    keys
});

/// Makes a number that is often small, and now and then near a limit.
fn any_number(u: &mut Unstructured<'_>) -> arbitrary::Result<u64> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u8::arbitrary(u)?.into(),
        1 => u32::arbitrary(u)?.into(),
        2 => u64::arbitrary(u)?,
        _ => {
            let near = 1u64 << u.int_in_range(0..=63)?;
            near.wrapping_add(u8::arbitrary(u)?.into()).wrapping_sub(u8::arbitrary(u)?.into())
        }
    })
}

/// Makes a size, and checks that it means what it says.
fn any_size(u: &mut Unstructured<'_>) -> arbitrary::Result<String> {
    let (unit, factor) = *u.choose(&SIZES)?;
    let number = u128::from(any_number(u)?);
    let mut decimals = String::new();
    for _ in 0..u.int_in_range(0..=6)? {
        decimals.push(char::from(b'0' + u.int_in_range(0..=9)?));
    }
    let text =
        if decimals.is_empty() { format!("{number}{unit}") } else { format!("{number}.{decimals}{unit}") };
    let scale = 10u128.pow(decimals.len().try_into().expect("short"));
    let digits = format!("{number}{decimals}").parse::<u128>().expect("digits");
    // What does not even fit here is too large.
    let parts = digits.checked_mul(factor);
    match parse_bytes(&text) {
        Ok(bytes) => assert_eq!(Some(u128::from(bytes) * scale), parts, "{text}"),
        Err(error) => {
            // The greatest number of all stands for too large ones, and fractions are rounded to it.
            let is_refused = parts.is_none_or(|parts| {
                parts >= u128::from(u64::MAX - 2048) * scale || !parts.is_multiple_of(scale)
            });
            assert!(is_refused, "{text}: {error}");
        }
    }
    Ok(text)
}

/// Makes a span, and checks that it means what it says.
fn any_span(u: &mut Unstructured<'_>) -> arbitrary::Result<String> {
    let (unit, factor) = *u.choose(&SPANS)?;
    let number = any_number(u)?;
    let text = format!("{number}{unit}");
    let span_ns = u128::from(number) * factor;
    match parse_span(&text) {
        Ok(span) => assert_eq!(span.as_nanos(), span_ns, "{text}"),
        Err(error) => {
            assert!(matches!(error, SpanError::TooLong(_)), "{text}: {error}");
            assert!(span_ns / 1_000_000_000 > u128::from(u64::MAX) / 1_000_000_000, "{text}: {error}");
        }
    }
    match parse_microseconds(&text) {
        Ok(span_us) => assert_eq!(u128::from(span_us) * 1000, span_ns, "{text}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Ok(text)
}

/// Makes a value for a key with this default, as TOML or as a text that is not.
fn any_value(u: &mut Unstructured<'_>, default: &str) -> arbitrary::Result<String> {
    Ok(match u.int_in_range(0..=10)? {
        0 => default.to_owned(),
        1 => any_number(u)?.to_string(),
        2 => format!("\"{}\"", any_size(u)?),
        3 => any_span(u)?,
        4 => u.choose(&WORDS)?.to_string(),
        5 => bool::arbitrary(u)?.to_string(),
        6 => (u64::from(u16::arbitrary(u)?) * 4096).to_string(),
        7 => format!("[{}, {}]", u8::arbitrary(u)?, u8::arbitrary(u)?),
        8 => format!("['{}', \"{}\"]", u.choose(&WORDS)?, u.choose(&WORDS)?),
        9 => i64::arbitrary(u)?.to_string(),
        _ => <&str>::arbitrary(u)?.to_owned(),
    })
}

/// Checks a configuration that was accepted.
fn check(config: &Config) {
    let printed = match config.to_toml() {
        Ok(printed) => printed,
        Err(ConfigError::Path { path }) => {
            assert!(path.to_str().is_none());
            return;
        }
        Err(error) => panic!("{error}: {config:?}"),
    };
    let again: Config = printed.parse().unwrap_or_else(|error| panic!("{error}: {printed}"));
    assert_eq!(&again, config, "{printed}");
    assert_eq!(again.to_toml().expect("printed before"), printed);
    // What the daemon makes of it before anything is opened.
    assert!(!config.addresses().expect("checked").is_empty());
    for scatter_max in [1, 16, 64] {
        let core = config.core(scatter_max).expect("checked");
        if scatter_max == 1 {
            core.check().expect("checked");
        }
    }
    let _ = config.segment_shape();
}

fn load(args: &DaemonArgs) {
    match args.load() {
        Ok(config) => check(&config),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Makes arguments, and gives them to the daemon.
fn arguments(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut args = DaemonArgs::default();
    for _ in 0..u.int_in_range(1..=5)? {
        let (key, default) = u.choose(&KEYS)?;
        args.set.push(format!("{key}={}", any_value(u, default)?));
    }
    if u.ratio(1, 8)? {
        args.set.push(<&str>::arbitrary(u)?.to_owned());
    }
    if u.ratio(1, 8)? {
        args.listen.push(<&str>::arbitrary(u)?.to_owned());
    }
    if u.ratio(1, 8)? {
        args.control_socket = Some(OsStr::from_bytes(<&[u8]>::arbitrary(u)?).into());
    }
    load(&args);
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    // A text begins with anything but this.
    if let Some(rest) = bytes.strip_prefix(&[0]) {
        let _ = arguments(&mut Unstructured::new(rest));
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<Config>() {
        Ok(config) => check(&config),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(bytes) = parse_bytes(text) {
        assert_eq!(parse_bytes(&bytes.to_string()), Ok(bytes));
    }
    if let Ok(span_us) = parse_microseconds(text) {
        assert_eq!(parse_microseconds(&format!("{span_us}us")), Ok(span_us));
    }
    let _ = parse_span_or_seconds(text);
});
