"""What this machine multiplies at best: square matrices in PyTorch.

usage: torch_peak.py THREADS. Prints one line of JSON with floating-point operations per second in f32 and bf16.
"""

import json
import sys
import time

import torch

SIDE = 2048
REPEATS = 5


def speed(kind):
    left, right = (torch.rand(SIDE, SIDE, dtype=kind) for _ in range(2))
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return 2 * SIDE**3 / min(seconds)


torch.set_num_threads(int(sys.argv[1]))
print(json.dumps({"f32": speed(torch.float32), "bf16": speed(torch.bfloat16)}))
