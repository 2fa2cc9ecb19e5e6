#!/usr/bin/env bash
# How fast training is beside PyTorch: the step alone and the whole trainer, with all cores on both sides.
#
#   scripts/bench/train-cpu.sh [--quick]
#
# Writes target/bench/train-cpu.json. See setup.sh for what it installs and where.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/bench/setup.sh
source scripts/bench/setup.sh
bench_arguments "$@"
bench_fovea
bench_venv torch==2.15.0 torchvision ultralytics==8.4.190 opencv-python-headless
"$python" scripts/bench/train_cpu.py $quick
