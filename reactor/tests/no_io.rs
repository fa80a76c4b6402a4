//! Checks that the driver has no clock, no socket, no file and no configuration: its caller has those.

use std::path::Path;

/// Words that the code must not contain, because each stands for a clock, a socket, a file or configuration.
const NEVER: [&str; 15] = [
    "Instant",
    "SystemTime",
    "sleep",
    "net",
    "fs",
    "env",
    "rustix",
    "tokio",
    "serde",
    "Doorbell",
    "print",
    "println",
    "eprint",
    "eprintln",
    "dbg",
];
/// Dependencies that the crate may have. `tracing` is for events about connections, none about messages; its
/// caller's log decides what becomes of them. Where nobody listens, an event costs one load.
const USES: [&str; 8] =
    ["crc32c", "crossbeam-queue", "jet-core", "jet-fabric", "jet-wire", "libc", "slab", "tracing"];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the lines of a source file before its tests, without comments.
fn code(source: &str) -> impl Iterator<Item = &str> {
    source
        .lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test"))
        .filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn nothing_is_named_that_tells_the_time_or_touches_the_system() {
    let (mut read, mut folders) = (0, vec![folder().join("src")]);
    let mut files = Vec::new();
    while let Some(within) = folders.pop() {
        for entry in std::fs::read_dir(within).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { &mut folders } else { &mut files }.push(path);
        }
    }
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        if ["tests.rs", "pair.rs"].contains(&name) {
            continue; // in tests alone
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for (number, line) in (1..).zip(code(&source)) {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let found: Vec<&str> = words.filter(|word| NEVER.contains(word)).collect();
            // Workers sleep when there is no job; `jet_wire::sleep` is how they are woken.
            let is_sleepers = name == "workers.rs" && line.starts_with("use jet_wire::sleep::");
            assert!(name == "poison.rs" || !line.contains("libc"), "{name}: a system call: {line}");
            assert!(found.is_empty() || is_sleepers, "{name}, {number}th line of code: {found:?}: {line}");
            read += 1;
        }
    }
    assert!(read > 1000, "{read} lines are not all of it");
}

#[test]
fn it_stands_on_what_is_below_it_and_little_else() {
    let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    let uses: Vec<&str> = manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split('.').next().filter(|name| !name.is_empty()))
        .collect();
    assert_eq!(uses, USES);
}
