#!/usr/bin/env bash
# The page in a real browser: a fleet of its own, a small trained run, then headless Chromium signs in and looks.
#
#   scripts/test-page.sh [--output FOLDER]     screenshots and logs go to FOLDER (default: a new one in TMPDIR)
#
# FOVEA_BINARY names a built `fovea`; otherwise it builds. FOVEA_BROWSER names a Chromium; without one it is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/own-fleet.sh
source scripts/own-fleet.sh

out=""
while [ $# -gt 0 ]; do
    case "$1" in
    --output) out="${2:?a folder}"; shift 2 ;;
    *) sed -n '2,6p' "$0" >&2; exit 2 ;;
    esac
done

browser="${FOVEA_BROWSER:-}"
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser="$(command -v "$name" || true)"
done
[ -n "$browser" ] || { echo "skipped: the page in a browser, no Chromium is installed (apt-get install chromium)"; exit 0; }

scripts/setup.sh
build_fovea
[ -n "$out" ] || out="$(mktemp -d "${TMPDIR:-/tmp}/fovea-page.XXXXXX")"
mkdir -p "$out"
out="$(cd "$out" && pwd)"

# What it made stays only where something failed, but for the pictures.
trap stop_fleet EXIT
start_fleet "$out"
"$fovea" billing top-up 10 --note "the page's test"
"$fovea" datasets sample "$out/sample.zip" --images 24 --size 64
"$fovea" --json datasets import "$out/sample.zip" --name sample >/dev/null
"$fovea" train --dataset sample --name page --epochs 1 --imgsz 64 --batch 8 --gpu cpu
run="$("$fovea" --json runs show page | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')"
link="$(grep -o 'http://[^ ]*/sign-in?token=[^ ]*' "$out/fleet.log" | head -1)"

python3 scripts/page_check.py --browser "$browser" --fovea "$fovea" --url "$FOVEA_DEMO_URL" \
    --key "$(cat "$FOVEA_FLEET__DATA/admin.key")" --link "$link" --run "$run" --dataset sample --output "$out" || {
    echo "the fleet's log is $out/fleet.log" >&2
    exit 1
}
stop_fleet
rm -rf "$out/data" "$out/config" "$out/sample.zip"
