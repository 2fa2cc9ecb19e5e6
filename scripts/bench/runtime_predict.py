"""One side of infer-cpu: another runtime on our exported model, from the picture to the boxes.

usage: runtime_predict.py onnxruntime|openvino MODEL.onnx PICTURE THREADS STEPS f32|mixed CANDIDATES

Prints one line of JSON with the seconds of each prediction, whole and of the network alone.
"""

import json
import sys
import time

import cv2
import numpy as np

WARM_UP_STEPS = 5
IOU = 0.7
OBJECTS_MAX = 300
GREY = 114
# Moves the boxes of one class away from those of others.
CLASS_OFFSET = 7680


def onnxruntime(path, threads, precision):
    import onnxruntime as runtime

    if precision != "f32":
        raise SystemExit("ONNX Runtime's CPU kernels compute this model in f32 only")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images})[0]


def openvino(path, threads, precision):
    import openvino as runtime

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32" if precision == "f32" else "bf16"}
    model = runtime.Core().compile_model(path, "CPU", settings)
    return lambda images: model([images])[0]


def letterbox(picture, side):
    """Returns the picture in the middle of a grey square, as the network's input."""
    height, width = picture.shape[:2]
    scale = side / max(height, width)
    size = (round(width * scale), round(height * scale))
    if size != (width, height):
        picture = cv2.resize(picture, size)
    frame = np.full((side, side, 3), GREY, np.uint8)
    left, top = (side - size[0]) // 2, (side - size[1]) // 2
    frame[top:top + size[1], left:left + size[0]] = picture
    return cv2.dnn.blobFromImage(frame, 1 / 255, swapRB=True)


def suppress(output, confidence):
    """Returns the boxes that are kept, corners in pixels of the square, with score and class."""
    rows = output[0]
    scores = rows[4:].max(0)
    sure = np.flatnonzero(scores > confidence)
    boxes, scores = rows[:4, sure].T, scores[sure]
    classes = rows[4:, sure].argmax(0)
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, 2:]], 1)
    moved = corners.copy()
    moved[:, :2] += classes[:, None] * CLASS_OFFSET
    kept = cv2.dnn.NMSBoxes(moved.tolist(), scores.tolist(), confidence, IOU)[:OBJECTS_MAX]
    return corners[kept], scores[kept], classes[kept]


def main():
    name, path, picture, threads, steps, precision, candidates = sys.argv[1:]
    cv2.setNumThreads(int(threads))
    predict = {"onnxruntime": onnxruntime, "openvino": openvino}[name](path, int(threads), precision)
    picture = cv2.imread(picture)
    side = 640
    output = predict(letterbox(picture, side))
    confidence = float(np.sort(output[0, 4:].max(0))[-int(candidates) - 1])
    whole, alone, kept = [], [], 0
    for _ in range(WARM_UP_STEPS + int(steps)):
        began = time.perf_counter()
        images = letterbox(picture, side)
        middle = time.perf_counter()
        output = predict(images)
        after = time.perf_counter()
        kept = len(suppress(output, confidence)[0])
        whole.append(time.perf_counter() - began)
        alone.append(after - middle)
    print(json.dumps({"seconds": whole[WARM_UP_STEPS:], "network_seconds": alone[WARM_UP_STEPS:], "kept": kept}))


if __name__ == "__main__":
    main()
