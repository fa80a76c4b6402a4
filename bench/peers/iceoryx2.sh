#!/usr/bin/env bash
# Jet's hand-over to another process beside iceoryx2's.
set -euo pipefail

# shellcheck source=bench/peers/turns.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/turns.sh"

usage() {
    cat <<'USAGE'
usage: bench/peers/iceoryx2.sh [--turns N] [--brief] [--json]

Hands one thing from one process to another and back, both polling, each on a processor of its own; half a round trip. Jet's is what
`jet-bench handoff` measures: slot word, 128-byte descriptor, and back the release; "with pin and unpin" is what an application does
that reads the bytes. iceoryx2's is a sample of 64 bytes each way, by publish-subscribe with one publisher, one subscriber and one
sample under way, sent as a value (copy) or written in iceoryx2's memory (loan). Fetches iceoryx2 from crates.io.

  --turns N  samples a figure, each taken in turn with the others' (default 5)
  --json     one JSON object a row
  --brief    one turn: whether it all runs, no figure to quote

"From end to end" is all of Jet: a sender's 64 B through its NIC, the daemon and the client library to an application that reads them,
and the word back that it did. Half of that stands beside iceoryx2's half a round trip.

What it cannot see: an end that sleeps, and more than one at once. Jet's hand-over is its shared segment alone, without the daemon that
fills it and without the client library around it; iceoryx2's is its whole public interface, and finds its peers, which Jet's segment
does not. Jet's way back is a release and not a message. From end to end Jet is three processes on the two processors, iceoryx2 two.
USAGE
}
options "$@"
install gcc:gcc
build_jet
cargo build -q --release --locked --manifest-path "$peers/iceoryx2/Cargo.toml" --target-dir "$place/iceoryx2"
take_two_processors
say "iceoryx2 $(sed -n '/^name = "iceoryx2"$/{n;s/version = "\(.*\)"/\1/p}' "$peers/iceoryx2/Cargo.lock"), processors $two"

# handoff METRIC: of the run that is in $dir/handoff.
handoff() {
    python3 -c '
import json, sys
print([row["value"] for row in map(json.loads, open(sys.argv[1])) if row.get("metric") == sys.argv[2]][0])' "$dir/handoff" "$1"
}
# Half a round trip is half of what a message takes until its end is known.
half_trip_ns() { jet_messages shm 64 1 $((20000 / shorter)) | awk '{ print 5e8 / $1 }'; }
for ((turn = 0; turn < turns; turn++)); do
    timeout 120 "$jet_bench" --samples 1 --json ${brief:+"$brief"} handoff >"$dir/handoff"
    sample bare handoff 'bare ring, one way'
    sample segment handoff 'session segment, one way'
    sample pinned handoff 'session segment with pin and unpin, one way'
    sample end half_trip_ns
    sample copy timeout 60 "$place/iceoryx2/release/iceoryx2-handoff" copy
    sample loan timeout 60 "$place/iceoryx2/release/iceoryx2-handoff" loan
done
figure 'hand-over, one way: a bare ring' ns bare
figure 'hand-over, one way: Jet' ns segment
figure 'hand-over, one way: Jet with pin and unpin' ns pinned
figure '64 B from end to end, half a round trip: Jet' ns end
figure 'hand-over, one way: iceoryx2, 64 B by copy' ns copy
figure 'hand-over, one way: iceoryx2, 64 B by loan' ns loan
for way in copy loan; do
    ratio "hand-over: iceoryx2 by $way / Jet" "$way" segment 2.5
    ratio "hand-over: iceoryx2 by $way / Jet with pin and unpin" "$way" pinned 2.5
    ratio "64 B from end to end: iceoryx2 by $way / Jet" "$way" end
done
rows
