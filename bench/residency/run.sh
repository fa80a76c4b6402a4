#!/usr/bin/env bash
# The cache's effect on this machine, as a picture, with what that takes installed.
set -euo pipefail

root=$(readlink -f "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..")
out=$root/target/residency

usage() {
    cat <<'USAGE'
usage: bench/residency/run.sh [--out FOLDER] [OPTION OF jet-bench residency...]

Runs jet-bench residency --samples 5 --plot: measures throughput, tail latency and memory of five receivers by message size, without
and with an antagonist: Jet's pool, buffers of each connection, Jet's pool whose footprint follows the load, a shared pool of 32 MiB, and
buffers of each connection with at most 32 READs at once. Writes residency.csv (every turn), residency.txt (the command, the machine,
medians and ratios), residency.svg and residency.png into the folder (target/residency). It takes about 20 minutes, on a machine that
does nothing else. As root it installs gnuplot-nox where it is missing.

What it cannot see: see `cargo doc -p jet-bench`, module residency, and docs/performance.md.
USAGE
}
refuse() { printf 'residency: %s\n' "$*" >&2; exit 2; }

options=()
given=$*
while (($#)); do
    case $1 in
        --help) usage; exit 0 ;;
        --out) [[ -n ${2:-} ]] || refuse '--out wants a folder'; out=$2; shift ;;
        *) options+=("$1") ;;
    esac
    shift
done

# Five: each receiver is first, second and so on once.
[[ " ${options[*]-}" == *' --samples'* ]] || options+=(--samples 5)
if ! command -v gnuplot >/dev/null; then
    ((EUID == 0)) || refuse 'gnuplot is not installed; as root: apt-get install --no-install-recommends gnuplot-nox'
    apt-get install -qq -y --no-install-recommends gnuplot-nox >/dev/null
fi
mkdir -p "$out"
cargo build --quiet --release --locked -p jet-bench --manifest-path "$root/Cargo.toml"
bench=$(readlink -f "${CARGO_TARGET_DIR:-$root/target}")/release/jet-bench
{
    printf '# bench/residency/run.sh %s\n' "$given"
    "$bench" residency --plot "$out" "${options[@]}"
} | tee "$out/residency.txt"
