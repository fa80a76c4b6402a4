#!/usr/bin/env bash
# Jet beside NBD over a Unix socket, both by fio.
set -euo pipefail

# shellcheck source=bench/peers/turns.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/turns.sh"

usage() {
    cat <<'USAGE'
usage: bench/peers/nbd.sh [--turns N] [--json]

fio's random writes of 4 and 256 KiB, 32 at once, in turn through Jet's engine over shm: (bench/fio) and through fio's own engine for
NBD to nbdkit's null plugin over a Unix socket. It is the second half of bench/fio/run.sh, which this calls; that one installs fio,
nbdkit and the sources of fio's headers where they are missing, as root.

  --turns N  samples a figure, each taken in turn with the others' (default 5)
  --json     one JSON object a row

What it cannot see: a network, and a disk. fio's own work for a block (about a microsecond) is in both. nbdkit's null plugin throws its
data away unread, Jet's receiver reads every byte. Jet's are three processes (fio, daemon, application), NBD's are two.
USAGE
}
options "$@"
install gcc:gcc
mkdir "$dir/fio"
take_two_processors
"$peers/../fio/run.sh" --only-nbd --runtime 2 --turns "$turns" --keep "$dir/fio" >&2

# written FILE: bytes a second.
written() {
    python3 -c '
import json, sys
text = open(sys.argv[1], encoding="utf-8").read()
# fio writes its notes before the JSON.
print(json.loads(text[text.index("{"):])["jobs"][0]["write"]["bw_bytes"])' "$1"
}
for bs in 4k 256k; do
    for ((turn = 1; turn <= turns; turn++)); do
        sample "jet-$bs" written "$dir/fio/jet-$bs-$turn.json"
        sample "nbd-$bs" written "$dir/fio/nbd-$bs-$turn.json"
    done
    what="fio randwrite ${bs%k} KiB:"
    figure "$what Jet, read" GB/s "jet-$bs" 1e-9
    figure "$what NBD, not read" GB/s "nbd-$bs" 1e-9
done
ratio 'fio randwrite 4 KiB: Jet / NBD' jet-4k nbd-4k 3
ratio 'fio randwrite 256 KiB: Jet / NBD' jet-256k nbd-256k 1
rows
