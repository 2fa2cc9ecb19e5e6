"""Judges detections with pycocotools and prints the average precisions as JSON.

usage: judge.py FILE, which holds {"kind", "sigmas", "dataset", "detections"} in COCO's own terms.
Prints, for each area range ("all" first) and each class, the average precision at each of the ten overlaps; null where
a class has no object of the range."""

import contextlib
import io
import json
import sys

import numpy
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

with open(sys.argv[1], encoding="utf-8") as file:
    task = json.load(file)
with contextlib.redirect_stdout(io.StringIO()):
    truth = COCO()
    truth.dataset = task["dataset"]
    truth.createIndex()
    judge = COCOeval(truth, truth.loadRes(task["detections"]), task["kind"])
    if task["kind"] == "keypoints":
        judge.params.kpt_oks_sigmas = numpy.array(task["sigmas"])
    judge.evaluate()
    judge.accumulate()
# Overlaps, recalls, classes, areas, the largest number of detections last.
precision = judge.eval["precision"][..., -1]
areas = [
    [
        None if (curve := precision[:, :, index, area]).min() < 0 else curve.mean(axis=1).tolist()
        for index in range(precision.shape[2])
    ]
    for area in range(precision.shape[3])
]
print(json.dumps(areas))
