"""Checks an exported model and runs it: check.py MODEL INPUT OUTPUT BATCH HEIGHT WIDTH.

INPUT holds float32 pictures (batch, 3, height, width); OUTPUT gets output0 as float32. Prints the metadata and the
output's shape as JSON.
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
(output,) = session.run(["output0"], {"images": images})
output.astype("<f4").tofile(target)
properties = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
print(json.dumps({"shape": list(output.shape), "names": properties["names"], "imgsz": properties["imgsz"],
                  "task": properties["task"], "stride": properties["stride"]}))
