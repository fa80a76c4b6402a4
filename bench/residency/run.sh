#!/usr/bin/env bash
# The cache's effect on this machine, as a picture, with what that takes installed.
set -euo pipefail

root=$(readlink -f "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..")
out=$root/target/residency

usage() {
    cat <<'USAGE'
usage: bench/residency/run.sh [--out FOLDER] [OPTION OF jet-bench residency...]

Runs jet-bench residency --plot: measures the throughput and the tail latency of Jet's pool, of Jet's pool whose footprint follows the
load, and of a receiver with buffers of each connection's own, by message size, without and with an antagonist. Writes residency.csv
(every turn), residency.txt (medians and ratios), residency.svg and residency.png into the folder (target/residency). As root it
installs gnuplot-nox where it is missing.

What it cannot see: see `cargo doc -p jet-bench`, module residency, and docs/performance.md.
USAGE
}
refuse() { printf 'residency: %s\n' "$*" >&2; exit 2; }

options=()
while (($#)); do
    case $1 in
        --help) usage; exit 0 ;;
        --out) [[ -n ${2:-} ]] || refuse '--out wants a folder'; out=$2; shift ;;
        *) options+=("$1") ;;
    esac
    shift
done

if ! command -v gnuplot >/dev/null; then
    ((EUID == 0)) || refuse 'gnuplot is not installed; as root: apt-get install --no-install-recommends gnuplot-nox'
    apt-get install -qq -y --no-install-recommends gnuplot-nox >/dev/null
fi
mkdir -p "$out"
cargo build --quiet --release --locked -p jet-bench --manifest-path "$root/Cargo.toml"
bench=$(readlink -f "${CARGO_TARGET_DIR:-$root/target}")/release/jet-bench
"$bench" residency --plot "$out" ${options[@]+"${options[@]}"} | tee "$out/residency.txt"
