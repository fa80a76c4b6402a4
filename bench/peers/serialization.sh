#!/usr/bin/env bash
# Jet's in-place messages beside prost, rkyv and flatbuffers (bench/peers/serialization says what is timed and what is not).
# A crate of its own, so that nothing else depends on the peers; takes no protoc and no flatc. Wants an idle machine.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: bench/peers/serialization.sh [--json] [--check] [--rounds N]

Encodes and decodes the same three records with Jet's in-place messages, prost, rkyv and flatbuffers, in turn, and prints nanoseconds and
ratios. Builds what it needs from crates.io first.

  --json      one JSON object a row
  --check     ends with 1 where a bound does not hold
  --rounds N  rounds, 9 or more (default 11)

What it cannot see: the wire, and colder places than the nearest cache. Encoding and decoding are timed apart, each in a loop over one
value whose branches are foretold. It does not time the making of the structs to be written.
USAGE
}
refuse() { printf 'peers/serialization: %s\n' "$*" >&2; exit 2; }
options=()
while (($#)); do
    case $1 in
        --help) usage; exit 0 ;;
        --json | --check) options+=("$1") ;;
        --rounds) [[ ${2:-} =~ ^[0-9]+$ ]] && (($2 >= 9)) || refuse '--rounds wants a number, 9 or more'; options+=("$1" "$2"); shift ;;
        *) refuse "unknown option '$1'; see --help" ;;
    esac
    shift
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serialization"
# Not where the workspace builds.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}
cargo build --quiet --locked --release
exec "$CARGO_TARGET_DIR/release/jet-peers-serialization" ${options[@]+"${options[@]}"}
