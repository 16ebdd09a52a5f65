"""How leakage changes while a model is trained."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from leakscope.audit.labelled import Labelled
from leakscope.audit.study import Point, Setup, register_study
from leakscope.audit.training import train_epoch
from leakscope.errors import BadInput
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
    if setup.model.input.boxes:
        raise BadInput("This study trains on classes of photographs: a detector has none. See leakscope train.")
    photographs = bundled_names()[: setup.model.input.num_classes]
    images, labels = crops(photographs, channels, height, width, generator)
    data = Labelled(images=images, labels=labels)
    state = {name: value.clone() for name, value in setup.model.state_dict().items()}
    epoch, loss = 0, float("nan")
    try:
        for wanted in EPOCHS:
            while epoch < wanted:
                # A fresh optimiser for each epoch: what a point sees does not depend on which points came before.
                optimiser = torch.optim.SGD(
                    [p for p in setup.model.parameters() if p.requires_grad], 0.02, momentum=0.9
                )
                found = train_epoch(setup.model, data, optimiser, batch_size=16, generator=fork(generator, f"{epoch}"))
                loss, epoch = loss if found is None else found, epoch + 1
            yield Point(at={"epoch": wanted}, case=setup.case(), extra={} if loss != loss else {"loss": loss})
    finally:
        setup.model.load_state_dict(state)


def crops(
    names: Sequence[str], channels: int, height: int, width: int, generator: torch.Generator, *, each: int = CROPS
) -> tuple[Tensor, Tensor]:
    """Random crops of each photograph: (N, C, H, W) in [0, 1], and which photograph each is from."""
    side = 2 * max(height, width)
    photographs = bundled_images(list(names), side, channels=channels)
    found: list[Tensor] = []
    for photograph in photographs:
        for _ in range(each):
            top = int(torch.randint(side - height, (), generator=generator))
            left = int(torch.randint(side - width, (), generator=generator))
            found.append(photograph[:, top : top + height, left : left + width])
    return torch.stack(found), torch.arange(len(photographs)).repeat_interleave(each)
