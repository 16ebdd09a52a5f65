"""Pre-activation ResNet-18 for small images, as in the feasibility study of Valadi et al."""

from __future__ import annotations

from torch import Tensor, nn

from leakscope.models.blueprint import CIFAR10, model

__all__ = ["PreActBlock", "PreActResNet", "resnet18_preact"]


class PreActBlock(nn.Module):
    """o = relu(BN x); conv(relu(BN(conv o))) + shortcut, two 3×3 convolutions (He et al. 2016b).

    The shortcut is x itself, or a strided 1×1 convolution of o where the shape changes.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        changes = stride != 1 or before != after
        self.shortcut = nn.Conv2d(before, after, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        o = self.relu1(self.bn1(x))
        kept = x if self.shortcut is None else self.shortcut(o)
        return self.conv2(self.relu2(self.bn2(self.conv1(o)))) + kept


class PreActResNet(nn.Module):
    """Stem conv 3×3 → BN → ReLU, four stages of two pre-activation blocks, mean over the image, linear; no final BN.

    Logits (B, K) of (B, C, H, W). Convolutions start as He normal (fan out).
    """

    def __init__(self, *, num_classes: int, channels: int, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(PreActBlock(width, width, 1), PreActBlock(width, width, 1))
        self.layer2 = nn.Sequential(PreActBlock(width, 2 * width, 2), PreActBlock(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(PreActBlock(2 * width, 4 * width, 2), PreActBlock(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(PreActBlock(4 * width, 8 * width, 2), PreActBlock(8 * width, 8 * width, 1))
        self.linear = nn.Linear(8 * width, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(x.mean((2, 3)))


@model("resnet18-preact", cites="valadi2025", normalisation=CIFAR10)
def resnet18_preact(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ResNet-18 for 32 px images, pre-activation: norm and ReLU before each convolution, no final norm."""
    del image_size  # pooled over whatever is left
    return PreActResNet(num_classes=num_classes, channels=channels)
