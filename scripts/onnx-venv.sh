#!/bin/sh
# Makes the Python environment with which tests load exported models in the real ONNX Runtime, and prints its
# interpreter. Does nothing when it is there. Fails, saying why, without Python or a package index.
set -eu

venv="${XDG_CACHE_HOME:-$HOME/.cache}/fovea/venv-onnx"
packages="onnx onnxruntime numpy"

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c "import onnx, onnxruntime, numpy" 2>/dev/null; then
    command -v python3 >/dev/null || { echo "onnx-venv: python3 is not installed" >&2; exit 1; }
    echo "onnx-venv: installing $packages into $venv" >&2
    mkdir -p "$(dirname "$venv")"
    # Two test runs may come here at once: only one may build.
    exec 9>"$venv.lock"
    flock 9
    python3 -m venv "$venv" >&2
    # shellcheck disable=SC2086 # a list of words
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $packages >&2
fi
echo "$venv/bin/python"
