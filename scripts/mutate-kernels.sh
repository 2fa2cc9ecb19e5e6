#!/usr/bin/env bash
# Plants each bug of services/engine/emulator/tests/it/mutations.rs in the kernels and sees its test fail.
#
#   scripts/mutate-kernels.sh [--workspace]     with --workspace it uses what a build of everything has left
set -euo pipefail
cd "$(dirname "$0")/.."
scope=("$@")
[ $# -gt 0 ] || scope=(-p engine-emulator)
exec cargo test --locked "${scope[@]}" --test it -- mutations::every_planted_bug_is_caught --exact --ignored
