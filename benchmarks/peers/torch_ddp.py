"""One process of PyTorch's contenders; runs in an environment that has PyTorch and not tfdist.

`python torch_ddp.py JSON`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; the JSON is that of
`work.Work`. The model is ResNet50 (He et al. 2016) with the strides of keras.applications.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32


class Block(nn.Module):
    """Three convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int, projects: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Identity()
        if projects:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50(classes: int) -> nn.Sequential:
    """The network."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Block(channels, width, stride if index == 0 else 1, index == 0))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


def torch_ddp(work: dict[str, Any]) -> float:
    """DistributedDataParallel over gloo."""
    model = DistributedDataParallel(resnet50(10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return timed(work, step)


def gloo(work: dict[str, Any]) -> float:
    """The sum of ResNet50's gradients in one piece, as DDP's buckets are."""
    flat = torch.ones(sum(p.numel() for p in resnet50(10).parameters()))
    return timed(work, lambda: dist.all_reduce(flat.fill_(1.0)))


def timed(work: dict[str, Any], step: Callable[[], Any]) -> float:
    """Seconds of the steps on the clock."""
    for _ in range(work["warm_up"]):
        step()
    began = time.perf_counter()
    for _ in range(work["steps"]):
        step()
    return time.perf_counter() - began


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    seconds = globals()[given["program"]](given)
    if dist.get_rank() == 0:
        Path(given["output"]).write_text(json.dumps({"seconds": seconds}))
    os._exit(0)
