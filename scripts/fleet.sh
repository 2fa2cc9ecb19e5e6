#!/usr/bin/env bash
# A fleet beyond the embedded default: one process for each service on PostgreSQL and Redis, without the supervisor.
#
#   scripts/fleet.sh DATABASE_URL REDIS_URL [FOLDER]
#
# It starts its own nats-server in FOLDER (default .fovea-fleet), runs until Ctrl-C, and ends everything with itself.
# Ports come from the environment as always (FOVEA_FLEET__…).
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -ge 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
export FOVEA_FLEET__DATABASE_URL="$1" FOVEA_FLEET__REDIS_URL="$2"
folder="${3:-.fovea-fleet}"
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"
export FOVEA_FLEET__DATA="$folder"
fovea="${FOVEA_BINARY:-${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fovea-target}/debug/fovea}"
nats="${FOVEA_NATS_SERVER:-${FOVEA_BIN:-$HOME/.cache/fovea/bin}/nats-server}"
url="${FOVEA_FLEET__NATS_URL:-nats://127.0.0.1:7420}"
export FOVEA_FLEET__NATS_URL="$url"

children=()
stop() {
    kill "${children[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
}
trap stop EXIT
trap 'exit 0' INT TERM

"$nats" -a 127.0.0.1 -p "${url##*:}" -js -sd "$folder/nats" >"$folder/nats.log" 2>&1 &
children+=($!)
for service in accounts datasets projects billing scheduler inference worker gateway; do
    # A process that ends starts again: the others may not have been there yet.
    (
        trap 'kill "$child" 2>/dev/null; exit 0' TERM
        while true; do
            "$fovea" serve "$service" >>"$folder/$service.log" 2>&1 &
            child=$!
            wait "$child" || true
            sleep 0.5
        done
    ) &
    children+=($!)
done
echo "the fleet's logs are in $folder"
wait
