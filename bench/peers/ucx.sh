#!/usr/bin/env bash
# Jet beside UCX, over shared memory and TCP.
set -euo pipefail

# shellcheck source=bench/peers/turns.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/turns.sh"

usage() {
    cat <<'USAGE'
usage: bench/peers/ucx.sh [--turns N] [--brief] [--json] [--congestion NAME]

Streams of 4, 64 and 256 KiB messages, 32 at once, through Jet and through UCX in turn, over shared memory and over TCP on loopback;
and 64 B with one message at once. UCX twice: a program on UCP's tagged messages whose receiver reads every byte, as Jet's does,
and UCX's own ucx_perftest (tag_bw). As root it installs what is missing of Debian's: libucx-dev, ucx-utils, gcc, python3.

  --turns N  samples a figure, each taken in turn with the others' (default 5)
  --json     one JSON object a row
  --congestion NAME  the congestion control of TCP in a network made for this run (root), as reno; without it the system's
  --brief    one turn of a sixteenth of the messages: whether it all runs, no figure to quote

"each read acknowledged": UCX's receiver says of every message when it has read it, and the sender has 32 messages at most that are
not read. Jet always does that. Where the row does not say so, UCX's sender waits for its own buffers only.
"a relay process between": UCX has three processes then, as Jet has. The one between copies each message and passes it on, and says
the sender what was read. "application linked": Jet's sender and its receiver with the application are two threads of one process,
where UCX has two processes.

What it cannot see: a network, an RNIC, and what happens on more than two processors. Both have the same two; UCX's are two processes
that poll all the time, Jet's are three (sender, daemon, application) that sleep when there is nothing to do. Over TCP UCX has the
system's congestion control, and Jet one without pacing, which it chooses within a host. UCX's receiver has
buffers of its own and is alone; Jet's can be shared by many senders and applications, and no sender can write into it.
ucx_perftest's receiver does not read what it gets, so its figures stand beside Jet's with an application that does not either.
USAGE
}
options "$@"
install gcc:gcc /usr/include/ucp/api/ucp.h:libucx-dev ucx_perftest:ucx-utils
build_jet
build_stream ucx ucx/ucp.c -lucp -lucs
take_two_processors
# UCX's own choice within one kind of transport; on TCP the same interface as Jet's.
export UCX_NET_DEVICES=lo UCX_LOG_LEVEL=error
say "$(ucx_info -v | sed -n 's/^# Version /UCX /p'), processors $two, congestion control $congestion"

# ucx_messages FABRIC BYTES DEPTH MESSAGES free|acked|relayed
ucx_messages() {
    UCX_TLS=$1 timeout 120 "$place/ucx" "${@:2}"
}
# jet_linked FABRIC: messages a second, one at a time, to an application that is linked into Jet's receiver.
jet_linked() {
    timeout 120 "$jet_bench" --samples 1 ${brief:+--brief} --json alone --fabric "$1" --linked |
        python3 -c 'import json, sys; print([5e5 / row["value"] for row in map(json.loads, sys.stdin) if "linked" in row.get("metric", "") and row["unit"] == "us"][0])'
}
# ucx_perf FABRIC BYTES MESSAGES: messages a second as ucx_perftest says.
ucx_perf() {
    local port common=(-t tag_bw -s "$2" -n "$3" -w $(($3 / 8)) -O "$depth")
    port=$(free_port)
    local server=(timeout 120 ucx_perftest -p "$port" "${common[@]}")
    UCX_TLS=$1 against "$port" timeout 120 ucx_perftest 127.0.0.1 -p "$port" "${common[@]}" -f -v | tail -n 1 | cut -d, -f8
}

for fabric in "${fabrics[@]}"; do
    for bytes in "${sizes[@]}"; do
        # So many that each run takes a tenth of a second at least, but with --brief. What shorter runs show depends on where the
        # scheduler puts the processes first.
        messages=$((bytes == 4096 ? 200000 : (2 << 30) / bytes))
        [[ $fabric == shm ]] || messages=$((messages / 2))
        messages=$((messages / shorter))
        key=$fabric-$bytes
        say "$(size "$bytes") over $fabric"
        for ((turn = 0; turn < turns; turn++)); do
            sample "jet-$key" jet_messages "$fabric" "$bytes" "$depth" "$messages"
            sample "ucx-$key" ucx_messages "$fabric" "$bytes" "$depth" "$messages" free
            sample "acked-$key" ucx_messages "$fabric" "$bytes" "$depth" "$messages" acked
            sample "relayed-$key" ucx_messages "$fabric" "$bytes" "$depth" "$messages" relayed
            sample "unread-$key" jet_messages "$fabric" "$bytes" "$depth" "$messages" --unread
            sample "perf-$key" ucx_perf "$fabric" "$bytes" "$messages"
        done
        what="$fabric $(size "$bytes")"
        gb_per_s=$(python3 -c "print($bytes / 1e9)")
        # Two processors for three processes do not let short messages keep up with two processes that copy once.
        least=1 relayed_least=''
        [[ $key != shm-4096 ]] || least='' relayed_least=0.8
        figure "$what, read: Jet" GB/s "jet-$key" "$gb_per_s"
        figure "$what, read: UCX" GB/s "ucx-$key" "$gb_per_s"
        figure "$what, read: UCX, each read acknowledged" GB/s "acked-$key" "$gb_per_s"
        ratio "$what, read: Jet / UCX" "jet-$key" "ucx-$key" "$least"
        ratio "$what, read: Jet / UCX, each read acknowledged" "jet-$key" "acked-$key" "$least"
        figure "$what, read: UCX, a relay process between" GB/s "relayed-$key" "$gb_per_s"
        ratio "$what, read: Jet / UCX, a relay process between" "jet-$key" "relayed-$key" "$relayed_least"
        figure "$what, not read: Jet" GB/s "unread-$key" "$gb_per_s"
        figure "$what, not read: ucx_perftest" GB/s "perf-$key" "$gb_per_s"
        ratio "$what, not read: Jet / ucx_perftest" "unread-$key" "perf-$key"
    done
    say "64 B, one at once, over $fabric"
    one=$((20000 / shorter))
    for ((turn = 0; turn < turns; turn++)); do
        sample "jet-$fabric-one" jet_messages "$fabric" 64 1 "$one"
        sample "acked-$fabric-one" ucx_messages "$fabric" 64 1 "$one" acked
        sample "relayed-$fabric-one" ucx_messages "$fabric" 64 1 "$one" relayed
        sample "linked-$fabric-one" jet_linked "$fabric"
    done
    # Half a round trip is half of what a message takes until its end is known.
    figure "$fabric 64 B, one at once, half a round trip: Jet" us "jet-$fabric-one" /5e5
    figure "$fabric 64 B, one at once, half a round trip: UCX" us "acked-$fabric-one" /5e5
    figure "$fabric 64 B, one at once, half a round trip: UCX, a relay process between" us "relayed-$fabric-one" /5e5
    figure "$fabric 64 B, one at once, half a round trip: Jet, application linked" us "linked-$fabric-one" /5e5
    ratio "$fabric 64 B, one at once, rate: Jet / UCX" "jet-$fabric-one" "acked-$fabric-one"
    ratio "$fabric 64 B, one at once, rate: Jet / UCX, a relay process between" "jet-$fabric-one" "relayed-$fabric-one" 0.8
    ratio "$fabric 64 B, one at once, rate: Jet, application linked / UCX" "linked-$fabric-one" "acked-$fabric-one" 0.5
done
rows
