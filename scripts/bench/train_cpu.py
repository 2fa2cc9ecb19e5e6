"""Runs the sides of train-cpu in turn; started by train-cpu.sh."""

import json
import os
import sys
import tempfile

import rounds
from rounds import FOVEA, HERE, QUICK, Bench, dataset, number, ratio

CORES = os.cpu_count()
ROUNDS = 1 if QUICK else 3
STEPS = 1 if QUICK else 3
EPOCHS = 1 if QUICK else 3
TRAINER_ROUNDS = 1 if QUICK else 2
SIZE = 160 if QUICK else 640
BATCH = 4 if QUICK else 16
# Name, side of the pictures.
MAIN = "yolo11n"
OTHERS = [("yolo11s", SIZE), ("yolo26n", SIZE), ("yolo11n-seg", SIZE), ("yolo11n-cls", 224)]
# Our precision, and what PyTorch may do in the same: kind of step, whether with the tuned allocator.
PRECISIONS = {
    "f32": {"default": ("default", False), "allocator": ("default", True), "channels_last": ("channels_last", True)},
    "mixed": {"bf16": ("bf16", True)},
}
BATCHES = [1, 2, 4, 8, 16, 32]
SIZES = ["yolo11n", "yolo11s", "yolo11m", "yolo11l", "yolo11x"]

bench = Bench("train-cpu")


def ours(model, size, batch=BATCH, threads=CORES, precision="f32", steps=STEPS):
    # As many classes as the package's own descriptions have.
    classes = 1000 if model.endswith("-cls") else 80
    return [FOVEA, "--json", "engine", "bench", "mode=train", f"model={model}", f"classes={classes}", f"imgsz={size}",
            f"batch={batch}", f"threads={threads}", f"steps={steps}", *rounds.precision(precision)]


def theirs(model, size, kind):
    return [sys.executable, HERE / "torch_step.py", model, size, BATCH, CORES, STEPS, kind]


def speed(side, **about):
    """Returns images per second at the median step."""
    seconds = bench.median(side, "seconds", **about)
    return about.get("batch", BATCH) / seconds if seconds else None


def steps_of(model, size, kinds):
    """Runs the steps of a model on both sides in turn; `kinds` are PyTorch's, by our precision."""
    for _ in range(ROUNDS):
        for precision, sides in kinds.items():
            bench.run(f"fovea {precision}", ours(model, size, precision=precision), model=model)
            for side, (kind, allocator) in sides.items():
                bench.run(f"torch {side}", theirs(model, size, kind), allocator, model=model)


def best(sides, model):
    """Returns the fastest of PyTorch's sides: its name and speed."""
    speeds = [(speed(f"torch {side}", model=model), f"torch {side}") for side in sides]
    return max((pair for pair in speeds if pair[0]), default=(None, None))


def step_alone():
    steps_of(MAIN, SIZE, PRECISIONS)
    for model, size in OTHERS:
        steps_of(model, size, {"f32": {"channels_last": ("channels_last", True)}, "mixed": {"bf16": ("bf16", True)}})
    rows = []
    for model, size in [(MAIN, SIZE), *OTHERS]:
        for precision, sides in PRECISIONS.items():
            for side in [f"fovea {precision}", *(f"torch {name}" for name in sides)]:
                value = speed(side, model=model)
                peak = bench.median(side, "peak_bytes", model=model)
                if value:
                    rows.append([model, size, BATCH, side, number(value), number(peak / 1e9)])
    bench.table("The step alone", ["model", "px", "batch", "side", "images/s", "peak GB"], rows)

    f32 = speed("fovea f32", model=MAIN)
    mixed = speed("fovea mixed", model=MAIN)
    best_f32, best_f32_side = best(PRECISIONS["f32"], MAIN)
    best_mixed, best_mixed_side = best(PRECISIONS["mixed"], MAIN)
    bench.goal("step-f32-over-torch-default", ratio(f32, speed("torch default", model=MAIN)), "×", 2.3)
    bench.goal("step-f32-over-torch-best", ratio(f32, best_f32), "×", 1.6)
    bench.goal("step-mixed-over-torch-best", ratio(mixed, best_mixed), "×", 1.6)
    for model, _ in OTHERS:
        for precision, sides in PRECISIONS.items():
            over = ratio(speed(f"fovea {precision}", model=model), best(sides, model)[0])
            bench.goal(f"step-{precision}-{model}-over-torch-best", over, "×", 1.5)
    for precision, side in [("f32", best_f32_side), ("mixed", best_mixed_side)]:
        memory = ratio(bench.median(f"fovea {precision}", "peak_bytes", model=MAIN),
                       side and bench.median(side, "peak_bytes", model=MAIN))
        bench.goal(f"step-{precision}-memory-of-torch", memory, "×", 0.5, higher_is_better=False)


def epochs(lines):
    """Makes a result of what `fovea engine train` tells: one line of JSON for each epoch, then one for the run."""
    told = [json.loads(line) for line in lines]
    reports = [line for line in told if "images_per_second" in line]
    return {"images_per_second": [line["images_per_second"] for line in reports],
            "data_wait_share": [line["data_wait_share"] for line in reports]}


def whole_trainer(folder):
    data = dataset("bccd-yolo", folder)
    for turn in range(TRAINER_ROUNDS):
        for precision in PRECISIONS:
            command = [FOVEA, "--json", "engine", "train", f"data={data}", f"model={MAIN}", f"imgsz={SIZE}",
                       f"batch={BATCH}", f"epochs={EPOCHS}", f"project={folder}/ours-{precision}-{turn}", "val=false",
                       "close_mosaic=0", *rounds.precision(precision)]
            bench.run(f"fovea {precision}", command, read=epochs, part="trainer")
        for side, threads in [("as shipped", 0), (f"with {CORES} threads", CORES)]:
            command = [sys.executable, HERE / "shipped_trainer.py", MAIN, data / "data.yaml", SIZE, BATCH, EPOCHS,
                       threads, folder]
            bench.run(f"trainer {side}", command, part="trainer")
    sides = ["fovea f32", "fovea mixed", "trainer as shipped", f"trainer with {CORES} threads"]
    rows = []
    for side in sides:
        wait = bench.median(side, "data_wait_share", part="trainer")
        rows.append([side, number(bench.median(side, "images_per_second", part="trainer")),
                     "–" if wait is None else f"{wait:.1%}"])
    bench.table(f"The whole trainer: {MAIN}, {SIZE} px, batch {BATCH}, BCCD", ["side", "images/s", "waits for data"], rows)
    shipped = bench.median("trainer as shipped", "images_per_second", part="trainer")
    for precision, goal in [("f32", 4.5), ("mixed", 7.0)]:
        own = bench.median(f"fovea {precision}", "images_per_second", part="trainer")
        bench.goal(f"trainer-{precision}-over-shipped", ratio(own, shipped), "×", goal)


def scales():
    """Our step by threads, batch and model size, and its share of what the machine multiplies at best."""
    cases = [(MAIN, batch, threads) for threads in sorted({1, CORES}) for batch in BATCHES]
    cases += [(model, 8, CORES) for model in SIZES[1:]]
    rows = []
    for threads in sorted({1, CORES}):
        bench.run("torch peak", [sys.executable, HERE / "torch_peak.py", threads], threads=threads)
    for model, batch, threads in cases:
        for precision, unit in [("f32", "f32"), ("mixed", "bf16")]:
            about = {"model": model, "batch": batch, "threads": threads, "part": "scales"}
            side = f"fovea {precision}"
            bench.run(side, ours(model, SIZE, batch, threads, precision, steps=2), **about)
            value = speed(side, **about)
            peak = bench.median("torch peak", unit, threads=threads)
            flops = bench.median(side, "flops", **about)
            if value:
                share = ratio(flops * value / batch, peak)
                rows.append([model, batch, threads, precision, number(value), f"{share:.0%}" if share else "–",
                             number(100_000 / value / 3600)])
    bench.table(f"Images per second at {SIZE} px", ["model", "batch", "threads", "precision", "images/s",
                "of GEMM peak", "hours for 100,000 images"], rows)


step_alone()
with tempfile.TemporaryDirectory() as folder:
    whole_trainer(folder)
if not QUICK:
    scales()
bench.finish()
