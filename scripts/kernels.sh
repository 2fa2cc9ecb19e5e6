#!/usr/bin/env bash
# Compiles the CUDA kernels for every GPU of the catalogue, without a GPU: writes target/kernels.pack, prints what each
# kernel needs and holds it to services/engine/ops/cuda/kernels.lock.json.
#
#   scripts/kernels.sh [--arch all|sm_90a,…] [--check | --lock]
#
# The compiler is NVRTC from its PyPI wheel, kept in ${XDG_CACHE_HOME:-~/.cache}/fovea/venv-nvrtc (about 110 MB).
set -euo pipefail
cd "$(dirname "$0")/.."

venv="${XDG_CACHE_HOME:-$HOME/.cache}/fovea/venv-nvrtc"
wheel="nvidia-cuda-nvrtc-cu12==12.9.86"

library() { find "$venv" -name 'libnvrtc.so.12' 2>/dev/null | head -n 1; }
if [ -z "$(library)" ]; then
    command -v python3 >/dev/null || { echo "kernels: python3 is not installed" >&2; exit 1; }
    echo "kernels: installing $wheel into $venv" >&2
    mkdir -p "$(dirname "$venv")"
    # Two runs may come here at once: only one may build.
    exec 9>"$venv.lock"
    flock 9
    python3 -m venv "$venv" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel" >&2
fi

mkdir -p target
LD_LIBRARY_PATH="$(dirname "$(library)")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    cargo run --quiet --locked -p fovea -- engine kernels "$@"
