"""Kills and resumes; started by resume.sh."""

import hashlib
import pathlib
import random
import signal
import subprocess
import tempfile
import time

from rounds import FOVEA, QUICK, Bench, dataset, log

KILLS = 2 if QUICK else 10
EPOCHS = 6 if QUICK else 20
SIZE = 96 if QUICK else 160
BATCH = 16

bench = Bench("resume")


def begin(folder, data):
    return [FOVEA, "--json", "engine", "train", f"data={data}", "model=yolo11n", f"imgsz={SIZE}", f"batch={BATCH}",
            f"epochs={EPOCHS}", f"project={folder}", "seed=3"]


def resume(folder):
    return [FOVEA, "--json", "engine", "train", f"resume={folder}"]


def tensors(path):
    """Returns the hash of a checkpoint's tensors: all but the header, which holds times of day."""
    content = pathlib.Path(path).read_bytes()
    header = int.from_bytes(content[:8], "little")
    return hashlib.sha256(content[8 + header:]).hexdigest()


def run(command, seconds=None):
    """Runs a command, and kills it after some seconds. Returns how it ended."""
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=seconds)
        return process.returncode, errors[-500:]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return -signal.SIGKILL, ""


def main(folder):
    data = dataset("bccd-yolo", folder)
    whole, killed = f"{folder}/whole", f"{folder}/killed"
    began = time.monotonic()
    code, errors = run(begin(whole, data))
    seconds = time.monotonic() - began
    bench.runs.append({"side": "left alone", "exit": code, "seconds": seconds, "error": errors if code else ""})
    moments = random.Random(1)
    has_begun = False
    for number in range(KILLS):
        # Between half an epoch and two: work since the last checkpoint is done again.
        wait = moments.uniform(0.5, 2.5) * seconds / EPOCHS
        command = resume(killed) if has_begun else begin(killed, data)
        code, errors = run(command, wait)
        log(f"  kill {number + 1}: after {wait:.1f} s, exit {code}")
        bench.runs.append({"side": "killed", "after_seconds": wait, "exit": code, "error": errors if code > 0 else ""})
        has_begun = any(pathlib.Path(killed).glob("weights/last.fovea*"))
    code, errors = run(resume(killed) if has_begun else begin(killed, data))
    bench.runs.append({"side": "resumed to the end", "exit": code, "error": errors if code else ""})
    rows, same = [], True
    for name in ["last", "best"]:
        try:
            sums = [tensors(f"{run}/weights/{name}.fovea") for run in (whole, killed)]
        except OSError as error:
            sums = [str(error), ""]
        same &= sums[0] == sums[1]
        rows.append([name, *(text[:16] for text in sums), "the same" if sums[0] == sums[1] else "different"])
    kills = sum(run["exit"] == -signal.SIGKILL for run in bench.runs)
    bench.table(f"Tensors after {kills} kills", ["checkpoint", "left alone", "killed and resumed", ""], rows)
    bench.goal("same-bytes", int(same), "yes or no", 1)
    bench.goal("kills", kills, "kills", KILLS)
    bench.finish()


with tempfile.TemporaryDirectory() as folder:
    main(folder)
