#!/usr/bin/env bash
# Jet beside plain sockets: Unix ones and TCP on loopback.
set -euo pipefail

# shellcheck source=bench/peers/turns.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/turns.sh"

usage() {
    cat <<'USAGE'
usage: bench/peers/sockets.sh [--turns N] [--brief] [--json] [--congestion NAME]

Streams of 4, 64 and 256 KiB messages whose receiver reads every byte, in turn: Jet over shm: beside a Unix stream socket, Jet over
tcp: beside TCP on loopback. The sockets are used as plainly as they can be: a blocking write for a message, and reads until it is
there, into 32 buffers in turn. As root it installs what is missing of Debian's: gcc, python3.

  --turns N  samples a figure, each taken in turn with the others' (default 5)
  --json     one JSON object a row
  --congestion NAME  the congestion control of TCP in a network made for this run (root), as reno; without it the system's
  --brief    one turn of a sixteenth of the messages: whether it all runs, no figure to quote

"each read acknowledged": the receiver answers every message with 8 bytes when it has read it, and the sender has 32 messages at most
that are not read. Jet always does that. Where the row does not say so, the sender waits for room in the socket only.

Over TCP the sockets have the system's congestion control, and Jet one without pacing, which it chooses within a host.

What it cannot see: a network, many connections, and what happens on more than two processors. Both have the same two; the sockets' are
two processes, Jet's are three (sender, daemon, application). A socket's buffer takes the place of messages under way: how much is
in it the kernel decides.
USAGE
}
options "$@"
install gcc:gcc
build_jet
build_stream socket sockets/socket.c
take_two_processors
say "processors $two, congestion control $congestion"

for fabric in "${fabrics[@]}"; do
    kind=tcp name='TCP socket'
    [[ $fabric == tcp ]] || kind=unix name='Unix socket'
    for bytes in "${sizes[@]}"; do
        messages=$((bytes == 4096 ? 200000 : (1 << 30) / bytes))
        messages=$((messages / shorter))
        key=$fabric-$bytes
        say "$(size "$bytes") over $fabric"
        for ((turn = 0; turn < turns; turn++)); do
            sample "jet-$key" jet_messages "$fabric" "$bytes" "$depth" "$messages"
            sample "socket-$key" timeout 120 "$place/socket" "$bytes" "$depth" "$messages" free "$kind"
            sample "acked-$key" timeout 120 "$place/socket" "$bytes" "$depth" "$messages" acked "$kind"
        done
        what="$fabric $(size "$bytes"), read:"
        gb_per_s=$(python3 -c "print($bytes / 1e9)")
        figure "$what Jet" GB/s "jet-$key" "$gb_per_s"
        figure "$what $name" GB/s "socket-$key" "$gb_per_s"
        figure "$what $name, each read acknowledged" GB/s "acked-$key" "$gb_per_s"
        ratio "$what Jet / $name" "jet-$key" "socket-$key" 1
        ratio "$what Jet / $name, each read acknowledged" "jet-$key" "acked-$key" 1
    done
done
rows
