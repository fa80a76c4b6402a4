#!/usr/bin/env bash
# fio through Jet: installs fio, builds the engine, starts a daemon and a receiver, runs the job files, prints a table.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
root=$(readlink -f "$here/../..")
place=${JET_FIO_DIR:-$root/target/fio}
runtime=5 fabrics=(shm tcp) nbd=1 turns=3 keep=''

usage() {
    cat <<'USAGE'
usage: bench/fio/run.sh [--runtime SECONDS] [--fabric shm|tcp] [--no-nbd | --only-nbd] [--turns N] [--keep DIRECTORY] [JOB...]

Runs the job files of bench/fio/jobs (all, or those named, as in `oltp incast`) through a daemon and a receiver of its own, over
shared memory and TCP, and prints a table; then fio's own engine for NBD against nbdkit's null plugin over a Unix socket, in turn
with Jet over shm:, and the ratio (--turns says how often; 3). As root it installs what is missing of Debian's: fio, nbdkit, python3.
--keep leaves what fio wrote of each turn, as jet-4k-1.json and nbd-4k-1.json, in a directory.

What it cannot see: all of it runs on this one host, so senders and receiver share its processors and its memory; nbdkit's null
plugin throws its data away unread, Jet's receiver reads every byte.
USAGE
}
say() { printf 'fio/run: %s\n' "$*" >&2; }
refuse() { say "$*"; exit 2; }

jobs=()
while (($#)); do
    case $1 in
        --help) usage; exit 0 ;;
        --runtime) [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || refuse '--runtime wants seconds'; runtime=$2; shift ;;
        --fabric) [[ ${2:-} == shm || ${2:-} == tcp ]] || refuse '--fabric is shm or tcp'; fabrics=("$2"); shift ;;
        --no-nbd) nbd= ;;
        --only-nbd) fabrics=() nbd=1 ;;
        --turns) [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || refuse '--turns wants a number above zero'; turns=$2; shift ;;
        --keep) [[ -d ${2:-} ]] || refuse '--keep wants a directory'; keep=$2; shift ;;
        -*) refuse "unknown option '$1'; see --help" ;;
        *) [[ $1 != */* && -e $here/jobs/$1.fio ]] || refuse "no job '$1': $(cd "$here/jobs" && printf '%s ' *.fio | sed 's/\.fio//g')"; jobs+=("$1") ;;
    esac
    shift
done
((${#jobs[@]})) || jobs=(oltp olap backup incast stalled verify)

missing=()
for tool in fio python3 ${nbd:+nbdkit}; do command -v "$tool" >/dev/null || missing+=("$tool"); done
command -v dpkg-source >/dev/null || missing+=(dpkg-dev)
if ((${#missing[@]})); then
    ((EUID == 0)) || refuse "not installed: ${missing[*]}; as root: apt-get install --no-install-recommends ${missing[*]}"
    say "installing ${missing[*]}"
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi
JET_FIO_DIR=$place "$here/build"
cargo build --release --locked -p jet --manifest-path "$root/Cargo.toml"
jetd=$(readlink -f "${CARGO_TARGET_DIR:-$root/target}")/release/jetd

dir=$(mktemp -d)
pids=()
stop() {
    local pid
    for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
    wait
    pids=()
}
trap 'stop; rm -rf "$dir"' EXIT

# until_says FILE TEXT PID: a program has said it, or is gone.
until_says() {
    until grep -q "$2" "$1"; do
        kill -0 "$3" 2>/dev/null || { cat "$1" >&2; exit 1; }
        sleep 0.02
    done
}
# start RECEIVER-ARGUMENT...: a daemon and a receiver.
start() {
    : >"$dir/log"
    "$jetd" --listen "shm:$dir/nic.sock" --listen tcp:127.0.0.1:0 --control-socket "$dir/jetd.sock" 2>"$dir/log" &
    pids+=($!)
    until_says "$dir/log" 'listening on' "${pids[-1]}"
    export JET_SHM=shm:$dir/nic.sock
    JET_TCP=$(sed -n 's/.*\(tcp:127[^,;]*\).*/\1/p' "$dir/log")
    "$place/receiver" --control-socket "$dir/jetd.sock" "$@" >"$dir/received" &
    pids+=($!)
}

export JET_FIO_ENGINE=$place/libjet_fio.so JET_RUNTIME=$runtime
fio() { command fio --output-format=json --eta=never "$@"; }
for fabric in ${fabrics[@]+"${fabrics[@]}"}; do
    tables=()
    for job in "${jobs[@]}"; do
        case $job in
            stalled) start --stall stalled store ;;
            verify) start --verify verified ;;
            *) start store ;;
        esac
        JET_ADDRESS=$JET_SHM
        [[ $fabric == shm ]] || JET_ADDRESS=$JET_TCP
        export JET_ADDRESS
        say "$job over $fabric:"
        fio "$here/jobs/$job.fio" --output="$dir/$job.json" || { cat "$dir/$job.json" "$dir/log" >&2; exit 1; }
        tables+=("$dir/$job.json")
        kill "${pids[-1]}"
        wait "${pids[-1]}" || { say "the receiver found blocks that are wrong"; cat "$dir/received" >&2; exit 1; }
        stop
    done
    printf '\nover %s:\n' "$fabric"
    python3 "$here/table.py" "${tables[@]}"
done

[[ -n $nbd ]] || exit 0
start store
nbdkit --foreground --unix "$dir/nbd.sock" null size=64G &
pids+=($!)
until [[ -S $dir/nbd.sock ]]; do kill -0 "${pids[-1]}" 2>/dev/null || exit 1; sleep 0.02; done
common=(--rw=randwrite --iodepth=32 --size=64g --time_based --runtime="$runtime" --group_reporting)
for bs in 4k 256k; do
    say "$bs through Jet and through NBD, in turn"
    for ((turn = 1; turn <= turns; turn++)); do
        fio --name="jet-$bs" --ioengine="external:$JET_FIO_ENGINE" --address="$JET_SHM" --app=store --bs="$bs" "${common[@]}" \
            --output="$dir/jet-$bs-$turn.json"
        fio --name="nbd-$bs" --ioengine=nbd --uri="nbd+unix:///?socket=$dir/nbd.sock" --bs="$bs" "${common[@]}" \
            --output="$dir/nbd-$bs-$turn.json"
    done
done
printf '\nbeside NBD (nbdkit null, Unix socket), turn by turn:\n'
python3 "$here/table.py" "$dir"/jet-4k-*.json "$dir"/nbd-4k-*.json "$dir"/jet-256k-*.json "$dir"/nbd-256k-*.json
[[ -z $keep ]] || cp "$dir"/{jet,nbd}-{4k,256k}-*.json "$keep"
python3 - "$dir" "$turns" <<'PYTHON'
import json, statistics, sys
def median(kind, bs):
    values = []
    for turn in range(1, int(sys.argv[2]) + 1):
        text = open(f"{sys.argv[1]}/{kind}-{bs}-{turn}.json", encoding="utf-8").read()
        values.append(json.loads(text[text.index("{"):])["jobs"][0]["write"]["bw_bytes"])
    return statistics.median(values)
for bs, bound in (("4k", 3.0), ("256k", None)):
    ratio = median("jet", bs) / median("nbd", bs)
    verdict = "" if bound is None else f"   >= {bound}: {'holds' if ratio >= bound else 'DOES NOT HOLD'}"
    print(f"{bs}: Jet / NBD {ratio:.2f}{verdict}")
PYTHON
