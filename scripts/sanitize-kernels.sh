#!/usr/bin/env bash
# Runs the tests of kernels with the kernels compiled for AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   scripts/sanitize-kernels.sh [--workspace]     with --workspace it uses what a build of everything has left
set -euo pipefail
cd "$(dirname "$0")/.."
scope=("$@")
[ $# -gt 0 ] || scope=(-p engine-emulator)

program="$(cargo test --locked "${scope[@]}" --test it --no-run --message-format=json |
    sed -n '/engine\/emulator\/Cargo.toml/s/.*"executable":"\([^"]*\)".*/\1/p')"
# Leaks are counted by the fake driver; fibers leave their stacks without the sanitizer's knowledge.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0
export FOVEA_SANITIZED=1
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" exec "$program" --skip probe::
