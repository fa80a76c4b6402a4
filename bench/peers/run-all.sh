#!/usr/bin/env bash
# Jet beside all its peers, in one table.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# The guest's build has other features than the rest, so it comes last.
all=(ucx iceoryx2 sockets libfabric nbd perftest)

usage() {
    cat <<'USAGE'
usage: bench/peers/run-all.sh [--turns N] [--brief] [--json] [NAME...]

Runs the comparisons named, or all: ucx iceoryx2 sockets libfabric nbd perftest. Each is a script of its own beside this one, and
says with --help what it measures and what it cannot see. Prints one table, or with --json one object a row. Goes on where one fails,
and ends with 1. Takes ten to twenty minutes once everything is built; as root the scripts install what is missing of Debian's.

  --turns N  samples a figure (default 5)
  --brief    ucx, iceoryx2, sockets and libfabric in one short turn: whether it all runs, no figure to quote
  --json     one JSON object a row
USAGE
}
say() { printf 'peers/run-all: %s\n' "$*" >&2; }
refuse() { say "$*"; exit 2; }

json='' long=(--turns 5) names=()
while (($#)); do
    case $1 in
        --help) usage; exit 0 ;;
        --json) json=1 ;;
        --brief) long=(--brief) ;;
        --turns) [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || refuse '--turns wants a number above zero'; long=(--turns "$2"); shift ;;
        *) [[ " ${all[*]} " == *" $1 "* ]] || refuse "no comparison '$1': ${all[*]}; see --help"; names+=("$1") ;;
    esac
    shift
done
((${#names[@]})) || names=("${all[@]}")

dir=$(mktemp -d)
child=''
# An interrupted script ends what it started itself.
trap '[[ -z $child ]] || kill "$child" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
files=() failed=()
for name in "${names[@]}"; do
    say "$name"
    "$here/$name.sh" "${long[@]}" --json >"$dir/$name" &
    child=$!
    if wait "$child"; then files+=("$dir/$name"); else failed+=("$name"); fi
    child=''
done
if ((${#files[@]})); then
    if [[ $json ]]; then cat "${files[@]}"; else python3 "$here/rows.py" --table "${files[@]}"; fi
fi
((${#failed[@]} == 0)) || { say "failed: ${failed[*]}"; exit 1; }
