"""Trains and validates; started by learn.sh."""

import json
import statistics
import tempfile

import rounds
from rounds import FOVEA, QUICK, Bench, dataset, number

# The reference trainer on the same data, size and epochs, seeds 0, 1, 2: mAP50-95 on the test split.
REFERENCE_MAP = [0.488, 0.532, 0.502]
SEEDS = [0] if QUICK else [0, 1, 2]
EPOCHS = 1 if QUICK else 60
BATCH = 16
# Model, data, side, epochs on the train split, epochs of a run that is to know its train split by heart.
TASKS = [
    ("yolo11n-seg", "nuts-yolo-seg", 320, 300, 600),
    ("yolo11n-cls", "clothing-cls", 224, 30, 60),
    ("yolo11n-pose", "mouse-yolo-pose", 320, 100, 200),
    ("yolo11n-obb", "nuts-yolo-obb", 320, 300, 600),
]
BY_HEART = 0.95
# Pictures as they are: nothing between a model and its train split.
NO_AUGMENTATION = ["mosaic=0", "translate=0", "scale=0", "fliplr=0", "hsv_h=0", "hsv_s=0", "hsv_v=0", "erasing=0"]

bench = Bench("learn")


def last(lines):
    """Makes a result of a program that tells one JSON document, on one line or on many."""
    text = "\n".join(lines)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(lines[-1])


def train(side, folder, model, data, size, epochs, arguments=()):
    command = [FOVEA, "--json", "engine", "train", f"data={data}", f"model={model}", f"imgsz={size}", f"batch={BATCH}",
               f"epochs={epochs}", f"project={folder}", *arguments]
    return bench.run(side, command, read=last, part="train")


def validate(side, folder, data, size, split):
    """Returns what the best model of a run reaches on a split, by metric."""
    command = [FOVEA, "--json", "engine", "val", f"model={folder}/weights/best.fovea", f"data={data}", f"imgsz={size}",
               f"split={split}"]
    run = bench.run(side, command, read=last, part="val", split=split)
    return metrics(run.get("result", {}))


def metrics(result):
    """Returns the numbers of a validation, whatever its task, without those of single classes."""
    found = {}
    for key, value in result.items():
        if isinstance(value, dict):
            found |= metrics(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = value
    return found


def fitness(found):
    """Returns the number by which models are compared: top-1 accuracy or mAP50-95."""
    return next((found[key] for key in ("top1", "accuracy_top1", "map50_95") if key in found), None)


def blood_cells(folder):
    data = dataset("bccd-yolo", folder)
    floor = statistics.mean(REFERENCE_MAP) - 2 * statistics.stdev(REFERENCE_MAP)
    rows = [["reference", "mean of 3", "–", number(statistics.mean(REFERENCE_MAP))]]
    for precision in ["f32", "mixed"]:
        scores = []
        for seed in SEEDS:
            run = f"{folder}/bccd-{precision}-{seed}"
            side = f"yolo11n {precision} seed {seed}"
            train(side, run, "yolo11n", data, 320, EPOCHS, [f"seed={seed}", *rounds.precision(precision)])
            found = validate(side, run, data, 320, "test")
            rows.append([precision, f"seed {seed}", number(found.get("map50")), number(found.get("map50_95"))])
            scores += [found["map50_95"]] if "map50_95" in found else []
        mean = statistics.mean(scores) if len(scores) == len(SEEDS) else None
        bench.goal(f"bccd-map50-95-{precision}", mean, "mAP50-95", floor)
    bench.table(f"yolo11n from random weights, BCCD, 320 px, {EPOCHS} epochs, test split",
                ["side", "run", "mAP50", "mAP50-95"], rows)


def other_tasks(folder):
    rows = []
    for model, name, size, epochs, epochs_by_heart in TASKS:
        data = dataset(name, folder)
        cases = [
            ("untrained", 1, ["optimizer=SGD", "lr0=0", "warmup_epochs=0", "warmup_bias_lr=0"], ["val", "test"]),
            ("trained", epochs, [], ["val", "test"]),
            ("by heart", epochs_by_heart, [*NO_AUGMENTATION, "patience=0"], ["train"]),
        ]
        reached = {}
        for case, count, arguments, splits in cases:
            run = f"{folder}/{name}-{case.replace(' ', '-')}"
            side = f"{model} {case}"
            train(side, run, model, data, size, 1 if QUICK else count, arguments)
            for split in splits:
                reached[case, split] = fitness(validate(side, run, data, size, split))
        rows.append([model, name, *(number(reached[key]) for key in reached)])
        held_out = [reached["trained", split] for split in ("val", "test")]
        before = [reached["untrained", split] for split in ("val", "test")]
        if None not in held_out + before:
            bench.goal(f"{name}-climbs", statistics.mean(held_out) - statistics.mean(before), "metric", 0.1)
        bench.goal(f"{name}-by-heart", reached["by heart", "train"], "metric", BY_HEART)
    bench.table("Other tasks: mAP50-95, or top-1", ["model", "data", "untrained val", "test", "trained val", "test",
                "by heart on train"], rows)


with tempfile.TemporaryDirectory() as folder:
    blood_cells(folder)
    other_tasks(folder)
bench.finish()
