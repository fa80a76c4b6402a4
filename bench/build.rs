//! Tells the program with which profile it is built: Cargo tells that to build scripts only, by the folder they write to.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR").expect("Cargo says where to write");
    // target/PROFILE/build/jet-bench-HASH/out
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    let profile = profile.and_then(|name| name.to_str()).unwrap_or("unknown");
    println!("cargo:rustc-env=JET_BENCH_PROFILE={profile}");
}
