#!/usr/bin/env bash
# Jet over RDMA beside perftest, in a guest that has soft-RoCE.
set -euo pipefail

# shellcheck source=bench/peers/turns.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/turns.sh"

usage() {
    cat <<'USAGE'
usage: bench/peers/perftest.sh [--turns N] [--json]

Jet over an RDMA device beside ib_read_bw, ib_send_bw and ib_send_lat of perftest, in turn: the stage `benchmark` of deploy/vm/check,
which boots a guest with the kernel's soft-RoCE and installs what it needs (as root; the first time takes minutes). On a host that has
an RDMA device, `jet-bench verbs` alone does the same.

  --turns N  samples a figure (default 5)
  --json     one JSON object a row

What it cannot see: hardware. The guest's processor is emulated where the host has no KVM, so only the ratios mean anything, and
soft-RoCE's own work for a packet is most of each figure. Neither perftest's receiver nor Jet's application reads the bytes. perftest
polls and has two processes; Jet has three.
USAGE
}
options "$@"
install gcc:gcc
# What the guest prints goes to the log as well, so that the rows and what went wrong are both to be seen.
"$root/deploy/vm/check" --samples "$turns" --json benchmark </dev/null | tee "$dir/said" >&2 ||
    refuse 'the guest did not get through; what it said is above'
tr -d '\r' <"$dir/said" | sed -n 's/^{"bench":"verbs"/{"bench":"perftest"/p' >"$dir/json"
[[ -s $dir/json ]] || refuse 'the guest printed no rows'
if [[ $json ]]; then cat "$dir/json"; else python3 "$peers/rows.py" --table "$dir/json"; fi
