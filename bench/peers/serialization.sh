#!/usr/bin/env bash
# Jet's in-place messages beside prost, rkyv and flatbuffers (bench/peers/serialization says what is timed and what is not).
# A crate of its own, so that nothing else depends on the peers; takes no protoc and no flatc. Wants an idle machine.
#
# usage: bench/peers/serialization.sh [--json] [--check] [--rounds N]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serialization"
# Not where the workspace builds.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}
cargo build --quiet --locked --release
exec "$CARGO_TARGET_DIR/release/jet-peers-serialization" "$@"
