#!/usr/bin/env bash
# How fast prediction is beside ONNX Runtime and OpenVINO on the same weights, from the picture to the boxes.
#
#   scripts/bench/infer-cpu.sh [--quick]
#
# Writes target/bench/infer-cpu.json. See setup.sh for what it installs and where.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/bench/setup.sh
source scripts/bench/setup.sh
bench_arguments "$@"
bench_fovea
bench_venv onnxruntime openvino opencv-python-headless numpy
"$python" scripts/bench/infer_cpu.py $quick
