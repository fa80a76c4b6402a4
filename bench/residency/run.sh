#!/usr/bin/env bash
# The cache's effect on this machine, as a picture: runs jet-bench residency and draws what it measured.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
root=$(readlink -f "$here/../..")
out=$root/target/residency
measure=1

usage() {
    cat <<'USAGE'
usage: bench/residency/run.sh [--out FOLDER] [--draw-only] [OPTION OF jet-bench residency...]

Measures the throughput and the tail latency of Jet's pool, of Jet's pool whose footprint follows the load, and of a receiver with
buffers of each connection's own, by message size, without and with an antagonist. Writes residency.csv (every turn), residency.txt
(medians and ratios), residency.svg and residency.png into the folder (target/residency). As root it installs gnuplot-nox where it
is missing.

  --draw-only   draws the CSV that is there again

What it cannot see: see `cargo doc -p jet-bench`, module residency, and docs/performance.md.
USAGE
}
refuse() { printf 'residency: %s\n' "$*" >&2; exit 2; }

options=()
while (($#)); do
    case $1 in
        --help) usage; exit 0 ;;
        --out) [[ -n ${2:-} ]] || refuse '--out wants a folder'; out=$2; shift ;;
        --draw-only) measure= ;;
        *) options+=("$1") ;;
    esac
    shift
done

if ! command -v gnuplot >/dev/null; then
    ((EUID == 0)) || refuse 'gnuplot is not installed; as root: apt-get install --no-install-recommends gnuplot-nox'
    apt-get install -qq -y --no-install-recommends gnuplot-nox >/dev/null
fi
mkdir -p "$out"
if [[ -n $measure ]]; then
    cargo build --quiet --release --locked -p jet-bench --manifest-path "$root/Cargo.toml"
    bench=$(readlink -f "${CARGO_TARGET_DIR:-$root/target}")/release/jet-bench
    "$bench" residency --csv "$out/residency.csv" ${options[@]+"${options[@]}"} | tee "$out/residency.txt"
fi
[[ -s $out/residency.csv ]] || refuse "no $out/residency.csv to draw"

# medians RECEIVER WITH-ANTAGONIST: message KiB, GB/s, p99.9 us; the median of the turns.
medians() {
    awk -F, -v receiver="$1" -v with="$2" '
        NR > 1 && $1 == receiver && ($5 != "") == with { n[$2]++; rate[$2, n[$2]] = $6; tail[$2, n[$2]] = $9 }
        function median(of, size, count,    i, j, t, v) {
            for (i = 1; i <= count; i++) v[i] = of[size, i]
            for (i = 2; i <= count; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return count % 2 ? v[(count + 1) / 2] : (v[count / 2] + v[count / 2 + 1]) / 2
        }
        END { for (size in n) print size / 1024, median(rate, size, n[size]), median(tail, size, n[size]) }
    ' "$out/residency.csv" | sort -n
}
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
for receiver in jet following conventional; do
    for with in 0 1; do medians "$receiver" "$with" >"$data/$receiver-$with"; done
done
gnuplot -e "data='$data'; out='$out'" "$here/picture.gnuplot"
printf 'residency: %s\n' "$out"/residency.{csv,svg,png} >&2
