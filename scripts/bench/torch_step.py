"""One side of train-cpu: PyTorch's own training step on tensors that are ready.

usage: torch_step.py MODEL IMGSZ BATCH THREADS STEPS default|channels_last|bf16

The model and its loss come from the `ultralytics` package, used as a library in a throw-away environment: forward,
loss, backward, clip, SGD. Prints one line of JSON with the seconds of each step.
"""

import json
import sys
import time

import torch

WARM_UP_STEPS = 2
OBJECTS = 8


def build(name, threads):
    from ultralytics import YOLO
    from ultralytics.cfg import get_cfg

    yolo = YOLO(f"{name}.yaml", verbose=False)
    # The package sets its own number on import.
    torch.set_num_threads(threads)
    model = yolo.model.train()
    model.args = get_cfg(overrides={"epochs": 100})
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(".dfl." not in parameter_name)
    return model, yolo.task


def batch_of(task, model, count, size):
    """Makes a batch of noise with boxes spread over each picture."""
    generator = torch.Generator().manual_seed(1)
    batch = {"img": torch.rand(count, 3, size, size, generator=generator)}
    classes = int(model.yaml["nc"])
    if task == "classify":
        return batch | {"cls": torch.arange(count) % classes}
    images = torch.arange(count).repeat_interleave(OBJECTS).float()
    objects = torch.arange(OBJECTS).repeat(count).float()
    boxes = torch.stack([.1 + .1 * objects, torch.full_like(objects, .5),
                         torch.full_like(objects, .1), torch.full_like(objects, .2)], 1)
    batch |= {"batch_idx": images, "cls": (objects % classes)[:, None], "bboxes": boxes}
    if task == "segment":
        side = size // 4
        places = (torch.arange(side) + .5) / side
        masks = torch.zeros(count, side, side)
        for index in range(OBJECTS):
            across = (places - (.1 + .1 * index)).abs() < .05
            down = (places - .5).abs() < .1
            masks[:, down[:, None] & across[None, :]] = index + 1
        batch |= {"masks": masks, "sem_masks": (masks - 1).clamp(min=0)}
    if task == "pose":
        count_points, dims = model.kpt_shape
        points = torch.full((len(objects), count_points, dims), 2.0)
        points[..., :2] = boxes[:, None, :2]
        batch["keypoints"] = points
    if task == "obb":
        batch["bboxes"] = torch.cat([boxes, torch.zeros(len(boxes), 1)], 1)
    return batch


def main():
    name, size, count, threads, steps, kind = sys.argv[1:]
    size, count, threads, steps = map(int, (size, count, threads, steps))
    model, task = build(name, threads)
    batch = batch_of(task, model, count, size)
    if kind != "default":
        model = model.to(memory_format=torch.channels_last)
        batch["img"] = batch["img"].contiguous(memory_format=torch.channels_last)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=.9, nesterov=True, weight_decay=5e-4)
    model.criterion = model.init_criterion()

    seconds = []
    for _ in range(WARM_UP_STEPS + steps):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16"):
            outputs = model(batch["img"])
        outputs = to_float(outputs) if kind == "bf16" else outputs
        loss, _ = model.loss(batch, outputs)
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    seconds = seconds[WARM_UP_STEPS:]
    print(json.dumps({"seconds": seconds, "images_per_second": [count / value for value in seconds],
                      "threads": torch.get_num_threads(), "torch": torch.__version__}))


def to_float(outputs):
    """Takes the outputs out of bf16 before the loss, as autocast's own users do."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float()
    if isinstance(outputs, dict):
        return {key: to_float(value) for key, value in outputs.items()}
    return type(outputs)(to_float(value) for value in outputs)


if __name__ == "__main__":
    main()
