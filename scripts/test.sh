#!/usr/bin/env bash
# Everything that has to hold: format, lints, all tests, kernels for GPUs, the page in a browser. CI runs this.
#
#   scripts/test.sh            all of it
#   FOVEA_TEST_DATA=…          the folder with test data sets (default ../shared/data)
#   FOVEA_TEST_SPEC=…          the folder with recorded numbers (default ../shared/spec)
#   FOVEA_TEST_POSTGRES=…      a PostgreSQL to make throw-away databases in (default: loopback, else its own)
#   FOVEA_TEST_REDIS=…         a Redis (default: loopback, else its own)
set -euo pipefail
cd "$(dirname "$0")/.."

now="start"
step() {
    now="$1"
    printf '\n== %s: %s\n' "$1" "$2"
}
# Servers started for the tests end with them, whatever happens.
finish() {
    status=$?
    scripts/test-services.sh --stop || true
    if [ "$status" = 0 ]; then
        printf '\n== everything holds\n'
    else
        printf '\n== FAILED at the step "%s"\n' "$now" >&2
    fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step "tools" "what tests need and isn't there is installed"
scripts/setup.sh --test

step "servers" "PostgreSQL and Redis that answer, or our own"
services="$(scripts/test-services.sh)"
eval "$services"
printf 'FOVEA_TEST_POSTGRES=%s FOVEA_TEST_REDIS=%s\n' "${FOVEA_TEST_POSTGRES:-(loopback)}" "${FOVEA_TEST_REDIS:-(loopback)}"

# One target folder for all checkouts of this machine: a fresh clone then compiles only our own crates.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fovea-target}"
export FOVEA_TEST_DATA="${FOVEA_TEST_DATA:-$PWD/../shared/data}"
export FOVEA_TEST_SPEC="${FOVEA_TEST_SPEC:-$PWD/../shared/spec}"
[ -d "$FOVEA_TEST_DATA" ] || echo "skipped: tests on real data sets, $FOVEA_TEST_DATA is not there"
[ -d "$FOVEA_TEST_SPEC" ] || echo "skipped: tests against recorded numbers, $FOVEA_TEST_SPEC is not there"

step "format" "rustfmt"
cargo fmt --all --check

step "lints" "clippy, warnings denied"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "kernels" "compiled for every GPU and held to their lock file"
scripts/kernels.sh --check

step "tests" "of every crate"
cargo test --workspace --locked --no-fail-fast

step "planted bugs" "in the kernels are caught"
scripts/mutate-kernels.sh --workspace

step "sanitizers" "find nothing in the kernels"
scripts/sanitize-kernels.sh --workspace

step "page" "in a headless browser"
# The tests have built it.
FOVEA_BINARY="$CARGO_TARGET_DIR/debug/fovea" scripts/test-page.sh
