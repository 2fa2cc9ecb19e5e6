#!/usr/bin/env bash
# Whether a run that is killed at ten random moments and resumed ends in the same bytes as one that was left alone.
#
#   scripts/bench/resume.sh [--quick]
#
# Writes target/bench/resume.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/bench/setup.sh
source scripts/bench/setup.sh
bench_arguments "$@"
bench_fovea
bench_venv
"$python" scripts/bench/resume.py $quick
