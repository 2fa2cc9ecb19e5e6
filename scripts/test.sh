#!/usr/bin/env bash
# Everything that has to hold: format, lints, all tests, the page in a browser. CI runs this.
#
#   scripts/test.sh            all of it
#   FOVEA_TEST_DATA=…          the folder with test data sets (default ../shared/data)
#   FOVEA_TEST_SPEC=…          the folder with recorded numbers (default ../shared/spec)
#   FOVEA_TEST_POSTGRES=…      a PostgreSQL to make throw-away databases in (default: loopback, else its own)
#   FOVEA_TEST_REDIS=…         a Redis (default: loopback, else its own)
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "tools"
scripts/setup.sh --test
# shellcheck disable=SC1090
eval "$(scripts/test-services.sh)"

# One target folder for all checkouts of this machine: a fresh clone then compiles only our own crates.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fovea-target}"
export FOVEA_TEST_DATA="${FOVEA_TEST_DATA:-$PWD/../shared/data}"
export FOVEA_TEST_SPEC="${FOVEA_TEST_SPEC:-$PWD/../shared/spec}"
[ -d "$FOVEA_TEST_DATA" ] || echo "skipped: tests on real data sets, $FOVEA_TEST_DATA is not there"
[ -d "$FOVEA_TEST_SPEC" ] || echo "skipped: tests against recorded numbers, $FOVEA_TEST_SPEC is not there"

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "tests"
cargo test --workspace --locked --no-fail-fast

step "the page in a browser"
scripts/test-page.sh
