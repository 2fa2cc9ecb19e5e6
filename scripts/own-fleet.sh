# shellcheck shell=bash
# For `source`: a fleet that keeps to itself, with a data folder, free ports and a login of its own.
#
#   build_fovea           builds everything and sets $fovea; FOVEA_BINARY names one that is built
#   start_fleet FOLDER    starts it in FOLDER and logs in; sets $fleet, its process, and FOVEA_DEMO_URL
#   stop_fleet            ends it and waits until it has ended

fleet=""

build_fovea() {
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fovea-target}"
    if [ -n "${FOVEA_BINARY:-}" ]; then
        fovea="$FOVEA_BINARY"
    else
        cargo build --workspace --locked
        fovea="$CARGO_TARGET_DIR/debug/fovea"
    fi
}

start_fleet() {
    local folder="$1"
    rm -rf "$folder/data"
    eval "$(scripts/free-ports.sh)"
    export FOVEA_FLEET__DATA="$folder/data" XDG_CONFIG_HOME="$folder/config"
    "$fovea" up >"$folder/fleet.log" 2>&1 &
    fleet=$!
    for _ in $(seq 1200); do
        grep -q "fovea is up" "$folder/fleet.log" && break
        kill -0 "$fleet" 2>/dev/null || { cat "$folder/fleet.log" >&2; echo "the fleet ended; its log is above" >&2; return 1; }
        sleep 0.1
    done
    grep -q "fovea is up" "$folder/fleet.log" || { cat "$folder/fleet.log" >&2; echo "the fleet isn't up after two minutes; its log is above" >&2; return 1; }
    "$fovea" login --url "$FOVEA_DEMO_URL"
}

stop_fleet() {
    [ -n "$fleet" ] || return 0
    kill "$fleet" 2>/dev/null || true
    wait "$fleet" 2>/dev/null || true
    fleet=""
}
