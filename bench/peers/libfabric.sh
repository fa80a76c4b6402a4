#!/usr/bin/env bash
# Jet beside libfabric, over shared memory and TCP.
set -euo pipefail

# shellcheck source=bench/peers/turns.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/turns.sh"

usage() {
    cat <<'USAGE'
usage: bench/peers/libfabric.sh [--turns N] [--brief] [--json] [--congestion NAME]

Streams of 4, 64 and 256 KiB messages, 32 at once, whose receiver reads every byte, in turn through Jet and through libfabric's tagged
messages, over shared memory (provider shm) and over TCP on loopback (tcp;ofi_rxm); and 64 B with one message at once, where
libfabric is a stream of this kind and its own fi_pingpong. As root it installs what is missing of Debian's: libfabric-dev,
libfabric-bin, gcc, python3.

  --turns N  samples a figure, each taken in turn with the others' (default 5)
  --json     one JSON object a row
  --congestion NAME  the congestion control of TCP in a network made for this run (root), as reno; without it the system's
  --brief    one turn of a sixteenth of the messages: whether it all runs, no figure to quote

"each read acknowledged": libfabric's receiver says of every message when it has read it, and the sender has 32 messages at most that
are not read. Jet always does that. Where the row does not say so, libfabric's sender waits for its own buffers only.

What it cannot see: a network, an RNIC, and what happens on more than two processors. Both have the same two; libfabric's are two
processes that poll all the time, Jet's are three (sender, daemon, application) that sleep when there is nothing to do. Over
TCP libfabric has the system's congestion control, and Jet one without pacing, which it chooses within a host. fi_pingpong reads
nothing of what it gets.
USAGE
}
options "$@"
install gcc:gcc /usr/include/rdma/fi_tagged.h:libfabric-dev fi_pingpong:libfabric-bin
build_jet
build_stream ofi libfabric/ofi.c -lfabric
take_two_processors
say "$(fi_info --version | sed -n 's/^libfabric: /libfabric /p'), processors $two, congestion control $congestion"

declare -A providers=([shm]=shm [tcp]='tcp;ofi_rxm')
# ofi_messages FABRIC BYTES DEPTH MESSAGES free|acked
ofi_messages() { timeout 120 "$place/ofi" "${@:2}" "${providers[$1]}"; }
# pingpong FABRIC BYTES TRIPS: half a round trip in microseconds as fi_pingpong says.
pingpong() {
    local port common=(-e rdm -m tagged -p "${providers[$1]}" -S "$2" -I "$3")
    port=$(free_port)
    local server=(timeout 120 fi_pingpong -B "$port" "${common[@]}")
    against "$port" timeout 120 fi_pingpong -P "$port" "${common[@]}" 127.0.0.1 | awk 'END { print $7 }'
}

for fabric in "${fabrics[@]}"; do
    for bytes in "${sizes[@]}"; do
        messages=$((bytes == 4096 ? 200000 : (1 << 30) / bytes))
        [[ $fabric == shm || $bytes != 4096 ]] || messages=$((messages / 2))
        messages=$((messages / shorter))
        key=$fabric-$bytes
        say "$(size "$bytes") over $fabric"
        for ((turn = 0; turn < turns; turn++)); do
            sample "jet-$key" jet_messages "$fabric" "$bytes" "$depth" "$messages"
            sample "ofi-$key" ofi_messages "$fabric" "$bytes" "$depth" "$messages" free
            sample "acked-$key" ofi_messages "$fabric" "$bytes" "$depth" "$messages" acked
        done
        what="$fabric $(size "$bytes"), read:"
        gb_per_s=$(python3 -c "print($bytes / 1e9)")
        figure "$what Jet" GB/s "jet-$key" "$gb_per_s"
        figure "$what libfabric" GB/s "ofi-$key" "$gb_per_s"
        figure "$what libfabric, each read acknowledged" GB/s "acked-$key" "$gb_per_s"
        ratio "$what Jet / libfabric" "jet-$key" "ofi-$key" 1
        ratio "$what Jet / libfabric, each read acknowledged" "jet-$key" "acked-$key" 1
    done
    say "64 B, one at once, over $fabric"
    one=$((20000 / shorter))
    for ((turn = 0; turn < turns; turn++)); do
        sample "jet-$fabric-one" jet_messages "$fabric" 64 1 "$one"
        sample "acked-$fabric-one" ofi_messages "$fabric" 64 1 "$one" acked
        sample "pingpong-$fabric" pingpong "$fabric" 64 "$one"
    done
    # Half a round trip is half of what a message takes until its end is known.
    figure "$fabric 64 B, one at once, half a round trip: Jet" us "jet-$fabric-one" /5e5
    figure "$fabric 64 B, one at once, half a round trip: libfabric" us "acked-$fabric-one" /5e5
    figure "$fabric 64 B, one at once, half a round trip: fi_pingpong" us "pingpong-$fabric"
    ratio "$fabric 64 B, one at once, rate: Jet / libfabric" "jet-$fabric-one" "acked-$fabric-one"
done
rows
