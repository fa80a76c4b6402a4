//! Gives the program its build profile and the commit that it is built from. Only build scripts learn the
//! profile from Cargo, by the folder that they write to. The commit is noted now, because the checkout may be
//! at another one when the program runs.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR").expect("Cargo says where to write");
    // target/PROFILE/build/jet-bench-HASH/out
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    let profile = profile.and_then(|name| name.to_str()).unwrap_or("unknown");
    println!("cargo:rustc-env=JET_BENCH_PROFILE={profile}");
    println!("cargo:rerun-if-env-changed=JET_COMMIT");
    match commit() {
        Some((commit, dirty)) => {
            println!("cargo:rustc-env=JET_BENCH_COMMIT={commit}");
            println!("cargo:rustc-env=JET_BENCH_DIRTY={dirty}");
        }
        // Without git the commit may be given in the environment.
        None => {
            if let Ok(commit) = std::env::var("JET_COMMIT") {
                println!("cargo:rustc-env=JET_BENCH_COMMIT={commit}");
            }
        }
    }
}

/// Returns the commit that git names, and whether the sources differ from the commit. Has Cargo run this
/// script again when the commit or the sources may have changed.
fn commit() -> Option<(String, bool)> {
    // Sources that were unpacked within another checkout do not belong to its commits.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "HEAD"])?;
    // The log of HEAD grows with everything that moves HEAD, also where its branch has no file of its own.
    // The index is not watched: `git status` writes it, and staging changes neither the commit nor the
    // sources.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        watch(Path::new(&git(&["rev-parse", "--git-path", name])?));
    }
    let sources = sources()?;
    sources.iter().for_each(|source| watch(source));
    let mut status = vec!["status", "--porcelain", "--untracked-files=no", "--"];
    status.extend(sources.iter().filter_map(|source| source.to_str()));
    let changes = git(&status)?;
    Some((commit, !changes.is_empty()))
}

/// Returns the paths of the sources and manifests of this workspace's packages. Cargo builds this package
/// anew when one of these files changes.
fn sources() -> Option<Vec<PathBuf>> {
    let mut sources: Vec<PathBuf> = ["../Cargo.toml", "../Cargo.lock"].map(PathBuf::from).into();
    let manifest = std::fs::read_to_string("../Cargo.toml").ok()?;
    let (members, _) = manifest.split_once("members = [")?.1.split_once(']')?;
    for member in members.split('"').skip(1).step_by(2) {
        let package = Path::new("..").join(member);
        sources.extend(["Cargo.toml", "build.rs", "src"].map(|part| package.join(part)));
    }
    sources.retain(|source| source.exists());
    Some(sources)
}

/// Makes Cargo run this script again when `path` changes. A path that does not exist is left out, since Cargo
/// would run the script each time.
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

/// Runs git in this package's folder and returns its output. `None`: git is missing or fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
