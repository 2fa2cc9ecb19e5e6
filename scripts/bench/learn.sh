#!/usr/bin/env bash
# Whether models learn as well as the reference's: yolo11n on blood cells against recorded runs, and every other task
# on small data. Hours; --quick trains one epoch of each, to see that all of it runs.
#
#   scripts/bench/learn.sh [--quick]
#
# Writes target/bench/learn.json. Needs no peer: the reference's results are recorded in learn.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/bench/setup.sh
source scripts/bench/setup.sh
bench_arguments "$@"
bench_fovea
bench_venv
"$python" scripts/bench/learn.py $quick
