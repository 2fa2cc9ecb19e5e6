"""Runs the sides of infer-cpu in turn; started by infer-cpu.sh."""

import os
import sys
import tempfile

import rounds
from rounds import FOVEA, HERE, QUICK, Bench, dataset, number, ratio

CORES = os.cpu_count()
ROUNDS = 1 if QUICK else 3
STEPS = 5 if QUICK else 30
CANDIDATES = 300
MODEL = "yolo11n"
PRECISIONS = ["f32", "mixed"]
PEERS = ["onnxruntime", "openvino"]

bench = Bench("infer-cpu")


def main(folder):
    picture = sorted((dataset("bccd-yolo", folder) / "images" / "test").iterdir())[0]
    exported = f"{folder}/{MODEL}.onnx"
    threads_of = sorted({1, CORES})
    for _ in range(ROUNDS):
        for threads in threads_of:
            for precision in PRECISIONS:
                about = {"threads": threads, "precision": precision}
                command = [FOVEA, "--json", "engine", "bench", "mode=infer", f"model={MODEL}", f"threads={threads}",
                           f"steps={STEPS}", f"source={picture}", f"candidates={CANDIDATES}", f"export={exported}",
                           *rounds.precision(precision)]
                bench.run("fovea", command, **about)
                for peer in PEERS:
                    # ONNX Runtime computes in f32 only.
                    if peer == "openvino" or precision == "f32":
                        command = [sys.executable, HERE / "runtime_predict.py", peer, exported, picture, threads, STEPS,
                                   precision, CANDIDATES]
                        bench.run(peer, command, **about)
    rows = []
    for threads in threads_of:
        for precision in PRECISIONS:
            about = {"threads": threads, "precision": precision}
            for side in ["fovea", *PEERS]:
                seconds = bench.median(side, "seconds", **about)
                alone = bench.median(side, "network_seconds", **about)
                if seconds:
                    memory = bench.median(side, "peak_bytes", **about)
                    rows.append([precision, threads, side, number(seconds * 1e3), number(alone and alone * 1e3),
                                 number(memory / 1e9)])
            over = ratio(bench.median("fovea", "seconds", **about), bench.median("openvino", "seconds", **about))
            bench.goal(f"{MODEL}-{precision}-{threads}-threads-over-openvino", over, "×", 1.0, higher_is_better=False)
    bench.table(f"{MODEL}, 640 px, batch 1, letterbox and suppression included",
                ["precision", "threads", "side", "ms", "of it network", "peak GB"], rows)
    bench.finish()


with tempfile.TemporaryDirectory() as folder:
    main(folder)
