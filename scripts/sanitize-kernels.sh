#!/usr/bin/env bash
# Runs the tests of kernels with the kernels compiled for AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   scripts/sanitize-kernels.sh [filter]
set -euo pipefail
cd "$(dirname "$0")/.."

program="$(cargo test --locked -p engine-emulator --test it --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)"
# Leaks are counted by the fake driver; fibers leave their stacks without the sanitizer's knowledge.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0
export FOVEA_SANITIZED=1
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" exec "$program" --skip probe:: "$@"
