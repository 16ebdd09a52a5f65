"""The network of the federation, and how an audit sees it."""

from torch import nn

import leakscope as ls


class Net(nn.Sequential):
    """A convolution, BatchNorm, ReLU and a linear layer, for 16 px images."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10)
        )


def audited() -> ls.VisionModel:
    """For ``leakscope check --model net.py:audited``: these clients do not normalise pixels, so mean 0 and std 1."""
    spec = ls.InputSpec(shape=(3, 16, 16), num_classes=10)
    return ls.VisionModel(Net(), input=spec, mean=(0.0,) * 3, std=(1.0,) * 3, name="net")
