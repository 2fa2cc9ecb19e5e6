#!/usr/bin/env bash
# The whole job on this machine: build, start a fleet, top up, import, estimate, train, pay, deploy, predict, export.
#
#   scripts/demo.sh [--dataset PATH|URL] [--epochs N] [--imgsz N] [--batch N] [--output FOLDER] [--keep]
#
# Without --dataset it makes a sample of procedural pictures. --keep leaves the fleet running. What came out stands in
# FOLDER/demo.json (default demo-out).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/own-fleet.sh
source scripts/own-fleet.sh

dataset="" epochs=3 imgsz=320 batch=16 keep="" out="demo-out"
while [ $# -gt 0 ]; do
    case "$1" in
    --dataset) dataset="$2"; shift 2 ;;
    --epochs) epochs="$2"; shift 2 ;;
    --imgsz) imgsz="$2"; shift 2 ;;
    --batch) batch="$2"; shift 2 ;;
    --output) out="$2"; shift 2 ;;
    --keep) keep=1; shift ;;
    *) echo "demo: '$1' is not an argument; see the top of $0" >&2; exit 2 ;;
    esac
done

step() { printf '\n== %s\n' "$*"; }
field() { python3 -c 'import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1].split("."):
    value = value[int(key)] if key.isdigit() else value[key]
print(value)' "$1"; }

step "tools"
scripts/setup.sh

step "build"
build_fovea

mkdir -p "$out"
out="$(cd "$out" && pwd)"

step "fleet"
stop() { [ -n "$keep" ] || stop_fleet; }
trap stop EXIT
start_fleet "$out"
"$fovea" billing top-up 10 --note "demo"
"$fovea" billing prices | sed -n '1,2p'

step "dataset"
if [ -z "$dataset" ]; then
    dataset="$out/sample.zip"
    "$fovea" datasets sample "$dataset" --images 200 --size "$imgsz"
fi
"$fovea" --json datasets import "$dataset" --name demo >"$out/import.json"
version="$(field version_id <"$out/import.json")"
"$fovea" datasets ls

# The worker measures its device for about two seconds before it registers.
for _ in $(seq 300); do
    "$fovea" --json estimate --dataset demo --gpu cpu --epochs "$epochs" --imgsz "$imgsz" --batch "$batch" >"$out/estimate.json" || exit
    [ "$(field devices.0.is_offered <"$out/estimate.json")" = True ] && break
    sleep 0.1
done

step "estimate"
"$fovea" estimate --dataset demo --epochs "$epochs" --imgsz "$imgsz" --batch "$batch"

step "train"
started=$(date +%s.%N)
"$fovea" train --dataset demo --name demo --epochs "$epochs" --imgsz "$imgsz" --batch "$batch" --gpu cpu
ended=$(date +%s.%N)
"$fovea" --json runs show demo >"$out/run.json"
run="$(field id <"$out/run.json")"
"$fovea" runs show demo

step "charge"
# The last charge follows the run's end as a fact.
for _ in $(seq 200); do
    "$fovea" --json billing charge "$run" >"$out/charge.json"
    [ "$(field is_settled <"$out/charge.json")" = True ] && break
    sleep 0.1
done
"$fovea" billing charge "$run"
"$fovea" billing transfers --run "$run"
"$fovea" billing check

step "deploy and predict"
"$fovea" --json deploy last --name demo >"$out/endpoint.json"
image="$("$fovea" --json datasets images "$version" --split test --limit 1 | field images.0.url 2>/dev/null)" ||
    image="$("$fovea" --json datasets images "$version" --split val --limit 1 | field images.0.url)"
python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$FOVEA_DEMO_URL$image" "$out/test-image"
"$fovea" --json predict demo "$out/test-image" --conf 0.1 --save "$out/prediction.jpg" >"$out/prediction.json"
"$fovea" predict demo "$out/test-image" --conf 0.1

step "export"
"$fovea" models export last --format onnx --output "$out/model.onnx"

python3 - "$out" "$started" "$ended" <<'PY'
import json, pathlib, sys

out, started, ended = pathlib.Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
read = lambda name: json.loads((out / name).read_text())
run, charge, prediction = read("run.json"), read("charge.json"), read("prediction.json")
estimate = read("estimate.json")["devices"][0]
seconds = lambda text: float(text.rstrip("s"))
demo = {
    "estimate": {
        "seconds_low": seconds(estimate["estimate"]["time_low"]),
        "seconds_likely": seconds(estimate["estimate"]["time_likely"]),
        "seconds_high": seconds(estimate["estimate"]["time_high"]),
        "credits_likely": int(estimate["estimate"]["cost_likely_micros"]) / 1e6,
        "basis": estimate["estimate"]["basis"],
        "fits": estimate["fits"],
        "needed_bytes": int(estimate["needed_bytes"]),
    },
    "seconds": round(ended - started, 3),
    "committed_seconds": seconds(charge["committed"]),
    "credits_per_hour": int(charge["price_per_hour_micros"]) / 1e6,
    "credits_charged": int(charge["charged_micros"]) / 1e6,
    "map50": run["metrics"].get("metrics/mAP50(B)"),
    "map50_95": run["metrics"].get("metrics/mAP50-95(B)"),
    "detections": prediction["detections"],
    "picture": str(out / "prediction.jpg"),
    "onnx": str(out / "model.onnx"),
}
(out / "demo.json").write_text(json.dumps(demo, indent=2) + "\n")
print(f"\nestimated {demo['estimate']['seconds_likely']:.0f} s and {demo['estimate']['credits_likely']:.6f} credits, "
      f"took {demo['committed_seconds']:.0f} s of compute and {demo['credits_charged']:.6f} credits")
print(f"{len(demo['detections'])} objects in {demo['picture']}")
print(out / "demo.json")
PY
[ -z "$keep" ] || echo "the fleet stays up at $FOVEA_DEMO_URL (kill $fleet ends it)"
