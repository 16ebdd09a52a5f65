"""How leakage changes while a model is trained."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.audit.study import Point, Setup, register_study
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.testing.bundled import bundled_images, bundled_names

EPOCHS = (0, 1, 3, 10, 30)
CROPS = 24


@register_study("training-time", x="epoch")
def training_time(setup: Setup) -> Iterator[Point]:
    """The attacked model after 0, 1, 3, 10 and 30 epochs of training on crops of the bundled photographs.

    One class per photograph, as far as the model's classes go. The private images are not trained on; what counts is
    the scale and the sharpness that training gives a gradient. ``loss`` is the training loss at that time.
    """
    generator = fork(torch.Generator().manual_seed(setup.seed), "training-time")
    channels, height, width = setup.model.input.shape
    images, labels = crops(min(len(bundled_names()), setup.model.input.num_classes), channels, height, width, generator)
    state = {name: value.clone() for name, value in setup.model.state_dict().items()}
    epoch, loss = 0, float("nan")
    try:
        for wanted in EPOCHS:
            while epoch < wanted:
                loss = train_epoch(setup.model, images, labels, generator)
                epoch += 1
            yield Point(at={"epoch": wanted}, case=setup.case(), extra={} if loss != loss else {"loss": loss})
    finally:
        setup.model.load_state_dict(state)


def crops(classes: int, channels: int, height: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """:data:`CROPS` random crops of each photograph: (N, C, H, W) in [0, 1], and which photograph each is from."""
    side = 2 * max(height, width)
    photographs = bundled_images(list(bundled_names())[:classes], side, channels=channels)
    found: list[Tensor] = []
    for photograph in photographs:
        for _ in range(CROPS):
            top = int(torch.randint(side - height, (), generator=generator))
            left = int(torch.randint(side - width, (), generator=generator))
            found.append(photograph[:, top : top + height, left : left + width])
    return torch.stack(found), torch.arange(len(photographs)).repeat_interleave(CROPS)


def train_epoch(model: VisionModel, images: Tensor, labels: Tensor, generator: torch.Generator) -> float:
    """One epoch of SGD with momentum on the model itself, in train mode; returns the mean loss."""
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    losses: list[float] = []
    with model.mode(True), torch.enable_grad():
        for indices in torch.randperm(len(images), generator=generator).split(16):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(images[indices].to(model.dtype)), labels[indices])
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    optimiser.zero_grad()
    return sum(losses) / len(losses)
