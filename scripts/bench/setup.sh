# shellcheck shell=bash
# What the benchmarks share; sourced by them from the repository's root.
#
#   bench_arguments "$@"     sets $quick, which is --quick or nothing
#   bench_fovea              builds it with optimisation and sets $FOVEA_BINARY, unless that names one already
#   bench_venv PACKAGE…      makes the throw-away Python environment, adds the packages and sets $python

bench_arguments() {
    quick=""
    for argument in "$@"; do
        case "$argument" in
        --quick) quick="--quick" ;;
        *) echo "$0: '$argument' is not an argument; there is --quick" >&2; exit 2 ;;
        esac
    done
}

bench_fovea() {
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fovea-target}"
    if [ -z "${FOVEA_BINARY:-}" ]; then
        cargo build --release --locked -p fovea
        FOVEA_BINARY="$CARGO_TARGET_DIR/release/fovea"
    fi
    export FOVEA_BINARY
}

bench_venv() {
    local venv="${FOVEA_BENCH_VENV:-$HOME/.cache/fovea/bench-venv}"
    python="$venv/bin/python"
    # What the peers remember stays there too.
    export YOLO_CONFIG_DIR="$venv/settings" PYTHONDONTWRITEBYTECODE=1
    [ $# -gt 0 ] || { python=python3; return; }
    mkdir -p "$(dirname "$venv")"
    [ -x "$python" ] || python3 -m venv "$venv"
    # A name that is there in the wanted version costs nothing; torch's wheel is of several gigabytes the first time.
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
}
