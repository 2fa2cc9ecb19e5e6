"""One side of train-cpu: the `ultralytics` trainer as it ships, on a folder of pictures.

usage: shipped_trainer.py MODEL DATA_YAML IMGSZ BATCH EPOCHS THREADS FOLDER

THREADS 0 leaves what the package chooses. Prints one line of JSON with the images per second of each epoch: from the
first batch's loading to the last one's step, without validation.
"""

import json
import sys
import time

import torch


def main():
    name, data, size, count, epochs, threads, folder = sys.argv[1:]
    from ultralytics import YOLO

    marks = {"speeds": [], "began": 0.0}

    def on_train_start(_):
        if int(threads):
            torch.set_num_threads(int(threads))
        marks["threads"] = torch.get_num_threads()

    def on_train_epoch_start(_):
        marks["began"] = time.perf_counter()

    def on_train_epoch_end(trainer):
        images = len(trainer.train_loader.dataset)
        marks["speeds"].append(images / (time.perf_counter() - marks["began"]))

    yolo = YOLO(f"{name}.yaml", verbose=False)
    for callback in (on_train_start, on_train_epoch_start, on_train_epoch_end):
        yolo.add_callback(callback.__name__, callback)
    yolo.train(data=data, imgsz=int(size), batch=int(count), epochs=int(epochs), pretrained=False, device="cpu",
               val=False, plots=False, close_mosaic=0, project=folder, name="run", exist_ok=True, verbose=False)
    print()
    print(json.dumps({"images_per_second": marks["speeds"], "threads": marks.get("threads"),
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
