#!/usr/bin/env bash
# Plants each bug of services/engine/emulator/tests/it/mutations.rs in the kernels and sees its test fail.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo test --locked -p engine-emulator --test it -- mutations::every_planted_bug_is_caught --exact --ignored
