"""Checks an exported model and runs it: check.py MODEL INPUT OUTPUT BATCH HEIGHT WIDTH.

INPUT holds float32 pictures (batch, 3, height, width); OUTPUT0, OUTPUT1 … get the outputs as float32. Prints the
metadata and the outputs' shapes as JSON.
"""
import json
import sys

import numpy
import onnx
import onnxruntime

model, source, target = sys.argv[1:4]
batch, height, width = map(int, sys.argv[4:7])
onnx.checker.check_model(model, full_check=True)
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
images = numpy.fromfile(source, dtype="<f4").reshape(batch, 3, height, width)
names = [output.name for output in session.get_outputs()]
outputs = session.run(names, {"images": images})
for index, output in enumerate(outputs):
    output.astype("<f4").tofile(f"{target}{index}")
properties = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
print(json.dumps(properties | {"outputs": names, "shapes": [list(output.shape) for output in outputs]}))
