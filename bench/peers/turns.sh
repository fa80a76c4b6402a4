# Sourced by the scripts of bench/peers: what they install and build, the processors they use, samples in turn, rows.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names are shared with the scripts

peers=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
root=$(readlink -f "$peers/../..")
target=$(readlink -f "${CARGO_TARGET_DIR:-$root/target}" || echo "${CARGO_TARGET_DIR:-$root/target}")
place=$target/peers
script=$(basename "$0" .sh)
# What TCP uses where a program chooses nothing: what is asked for, or else the system's.
congestion=''
turns=5 shorter=1 brief='' json='' depth=32 sizes=(4096 65536 262144) fabrics=(shm tcp)

say() { printf 'peers/%s: %s\n' "$script" "$*" >&2; }
refuse() { say "$*"; exit 2; }

# options ARGUMENT...: what every script takes. The script has a function `usage`.
options() {
    given=("$@")
    while (($#)); do
        case $1 in
            --help) usage; exit 0 ;;
            --json) json=--json ;;
            --brief) turns=1 shorter=16 brief=--brief ;;
            --congestion) [[ ${2:-} =~ ^[a-z0-9_]+$ ]] || refuse '--congestion wants a name'; congestion=$2; shift ;;
            --turns) [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || refuse '--turns wants a number above zero'; turns=$2; shift ;;
            *) refuse "unknown option '$1'; see --help" ;;
        esac
        shift
    done
    local asked=$congestion
    [[ ! $asked ]] || in_own_network "$asked"
    congestion=$(cat /proc/sys/net/ipv4/tcp_congestion_control 2>/dev/null || echo unknown)
    [[ ! $asked || $congestion == "$asked" ]] || refuse "TCP uses $congestion here, and not $asked"
}

# in_own_network NAME: goes on in a network of its own, which has loopback alone, and in which TCP uses that congestion control unless
# a program chooses one.
in_own_network() {
    [[ -z ${JET_PEERS_NETWORK:-} ]] || return 0
    ((EUID == 0)) || refuse '--congestion needs root: it makes a network of its own'
    export JET_PEERS_NETWORK=$1
    exec unshare --net bash -c '
        set -euo pipefail
        python3 -c "
import fcntl, socket, struct
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack(\"16sH14x\", b\"lo\", 1))  # SIOCSIFFLAGS: up"
        echo "$JET_PEERS_NETWORK" >/proc/sys/net/ipv4/tcp_congestion_control 2>/dev/null || {
            echo "no congestion control $JET_PEERS_NETWORK; this kernel has" \
                "$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)" >&2
            exit 2
        }
        exec "$@"' - "$0" "${given[@]}"
}

# install TOOL:PACKAGE...: what is missing of Debian's packages. A TOOL with a slash is a file.
install() {
    local each tool missing=()
    for each in "$@" python3:python3 taskset:util-linux; do
        tool=${each%%:*}
        if [[ $tool == */* ]]; then [[ -e $tool ]]; else command -v "$tool" >/dev/null; fi || missing+=("${each#*:}")
    done
    ((${#missing[@]})) || return 0
    ((EUID == 0)) || refuse "not installed: ${missing[*]}; as root: apt-get install --no-install-recommends ${missing[*]}"
    command -v apt-get >/dev/null || refuse "not installed: ${missing[*]}, by their names in Debian"
    say "installing ${missing[*]}"
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
        refuse "apt-get could not install ${missing[*]}; perhaps apt-get update comes first"
}

# Jet's programs of this checkout, or the jet-bench that JET_BENCH names.
build_jet() {
    jet_bench=${JET_BENCH:-}
    [[ -z $jet_bench ]] || { [[ -x $jet_bench ]] || refuse "JET_BENCH is no program: $jet_bench"; return; }
    command -v cargo >/dev/null || refuse 'no cargo: install Rust 1.90 or later (https://rustup.rs)'
    cargo build -q --release --locked -p jet-bench --manifest-path "$root/Cargo.toml" >&2
    jet_bench=$target/release/jet-bench
}

# build_stream NAME SOURCE LIBRARY...: the program $place/NAME, a stream over one system.
build_stream() {
    local name=$1 source=$2
    shift 2
    mkdir -p "$place"
    gcc -std=gnu11 -O3 -g -Wall -Wextra -Werror -o "$place/$name" "$peers/stream/stream.c" "$peers/$source" "$@"
}

# Everything that is measured, Jet's three processes or a peer's two, has the same two processors and may move between them.
take_two_processors() {
    local all
    all=$(taskset -cp $$ | sed 's/.*: //')
    two=$(python3 -c '
import sys
allowed = []
for part in sys.argv[1].split(","):
    first, _, last = part.partition("-")
    allowed += range(int(first), int(last or first) + 1)
print(",".join(map(str, allowed[:2])))' "$all")
    [[ $two == *,* ]] || refuse "needs two processors, and may use $all only"
    taskset -cp "$two" $$ >/dev/null
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# until_listens PORT PID: a program has opened that TCP port, or is gone.
until_listens() {
    local port
    port=$(printf ':%04X ' "$1")
    until grep -q "${port}[0-9A-F:]* 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do
        kill -0 "$2" 2>/dev/null || { say "what should listen on port $1 has ended"; return 1; }
        sleep 0.01
    done
}
# against PORT CLIENT...: runs it when the command in the array `server` listens on that port; the server ends with it.
against() (
    "${server[@]}" >/dev/null 2>"$dir/server" &
    pid=$!
    trap 'kill "$pid" 2>/dev/null || true; wait' EXIT
    { until_listens "$1" "$pid" && "${@:2}" && wait "$pid"; } || { cat "$dir/server" >&2; exit 1; }
)
# A TCP port that nobody has.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# sample NAME COMMAND...: one sample more; the last line that it prints is the number.
sample() {
    local name=$1 said
    shift
    said=$("$@") || { say "failed: $*"; exit 1; }
    said=${said##*$'\n'}
    [[ $said =~ ^[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$ ]] || { say "no number from: $*: '$said'"; exit 1; }
    printf '%s\n' "$said" >>"$dir/$name.samples"
}
# jet_messages FABRIC BYTES DEPTH MESSAGES OPTION...: messages a second through Jet.
jet_messages() {
    timeout 120 "$jet_bench" --samples 1 --json stream --fabric "$1" --bytes "$2" --depth "$3" --messages "$4" "${@:5}" |
        python3 -c 'import json, sys; print([row["value"] for row in map(json.loads, sys.stdin) if row.get("unit") == "1/s"][0])'
}

# The rows that the script prints at its end, in order.
# figure METRIC UNIT SAMPLES FACTOR: the samples times a factor, or FACTOR/sample where it begins with a slash.
figure() { printf 'figure\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-1}" >>"$dir/rows"; }
# ratio METRIC SAMPLES BASE [LEAST]: samples beside those taken in the same turn, and what their median should be at least.
ratio() { printf 'ratio\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" >>"$dir/rows"; }
rows() { python3 "$peers/rows.py" ${json:+"$json"} ${brief:+"$brief"} "$script" "$dir"; }
# size BYTES: as people say it.
size() { if (($1 < 1024)); then echo "$1 B"; else echo "$(($1 / 1024)) KiB"; fi; }
