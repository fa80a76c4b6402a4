#!/usr/bin/env bash
# Jet beside all its peers, in one table.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# The guest's build has other features than the rest, so it comes last.
all=(ucx iceoryx2 sockets libfabric nbd perftest)

usage() {
    cat <<'USAGE'
usage: bench/peers/run-all.sh [--turns N] [--brief] [--json] [NAME...]

Runs the comparisons of Jet with other systems that are named, or all: ucx iceoryx2 sockets libfabric nbd perftest. Each comparison
is a script of its own in this folder, which says with --help what it measures and what it cannot see. Prints one table, or with --json
one JSON object for each row. If a comparison fails, the others still run, and the exit status is 1. Takes ten to twenty minutes once
everything is built. As root the scripts install the Debian packages that are missing.

  --turns N  number of samples of each figure (default 5)
  --brief    make one short turn of ucx, iceoryx2, sockets and libfabric: this shows that all of them run; do not quote its figures
  --json     print one JSON object for each row
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
