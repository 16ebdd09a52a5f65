"""The one way leakscope sees a model: pixels in [0, 1] outside, normalisation inside, parameters by name."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call  # pyright: ignore[reportUnknownVariableType]
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from leakscope.errors import BadInput
from leakscope.models.anatomy import Anatomy
from leakscope.models.detector import Detector
from leakscope.models.families import find_anatomy
from leakscope.models.weights import load_into
from leakscope.types import InputSpec

__all__ = ["VisionModel"]


@final
class VisionModel:
    """A classifier or detector ``module`` with its input described: outputs = module((pixels − mean) / std).

    Not itself an ``nn.Module``: it holds one and delegates, so parameters and buffers keep the names their owner gave
    them, and ``mean`` and ``std`` (C, 1, 1) are part of neither. ``anatomy`` is found automatically when not given.

    A module that brings its own loss on boxes (:class:`Detector`) is a detector; every other one is a classifier.

    Raises :class:`BadInput` for a classifier that does not answer (B, C, H, W) images with (B, K) logits, and for
    weights that are not finite.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        input: InputSpec,
        mean: Sequence[float],
        std: Sequence[float],
        name: str,
        anatomy: Anatomy | None = None,
    ) -> None:
        channels = input.shape[0]
        if len(mean) != channels or len(std) != channels:
            raise BadInput(f"mean and std need one value per channel ({channels}); got {len(mean)} and {len(std)}.")
        if not all(math.isfinite(v) for v in (*mean, *std)):
            raise BadInput(f"mean and std must be finite; got {list(mean)} and {list(std)}.")
        if min(std) <= 0:
            raise BadInput(f"Every std must be positive; got {list(std)}.")
        _check_finite(module)
        like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(()))
        self.module = module
        self.input = replace(input, batch_size=None, boxes=isinstance(module, Detector))
        self.name = name
        self.mean = torch.tensor(mean, dtype=torch.float64).to(like).view(-1, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float64).to(like).view(-1, 1, 1)
        self._identity = all(m == 0 for m in mean) and all(s == 1 for s in std)
        self._tied = len(list(module.named_parameters())) != len(list(module.named_parameters(remove_duplicate=False)))
        self._modules = list(module.modules())
        # A module may have its own idea of train mode (say, keep its BatchNorm frozen); then it is asked.
        self._own_train = any(type(m).train is not nn.Module.train for m in self._modules)
        self.anatomy = anatomy or find_anatomy(module, self.input.shape, self.input.num_classes)
        self._stochastic = [module.get_submodule(n) for n in self.anatomy.stochastic]

    def __call__(self, pixels: Tensor) -> Tensor:
        return self.forward(pixels)

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        return f"VisionModel({self.name!r}, {self.input.shape} → {self.input.num_classes}, {count:,} parameters)"

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits (B, K) of pixels (B, C, H, W); a detector's own predictions (B, …)."""
        return self.module(self.normalise(pixels))

    def functional(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
        """Logits (B, K) with these parameters and buffers in place of the model's own, which stand in for absent ones.

        In train mode BatchNorm writes its running statistics into whichever buffers it is given, the model's own
        included: pass clones to keep them.
        """
        return functional_call(
            self.module, {**parameters, **buffers}, (self.normalise(pixels),), tie_weights=self._tied
        )

    def loss(self, outputs: Tensor, labels: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """The training loss, a scalar: a detector's own on boxes (B, M, 5), else cross-entropy.

        A classifier's labels are (B,) indices or (B, K) probabilities. A detector averages over its boxes, so for it
        the sum is the mean times the number of images, which is what YOLOv8's own training steps on.
        """
        if (labels.ndim == 3) != self.input.boxes:
            takes = "boxes (B, M, 5)" if self.input.boxes else "classes of images, (B,) or (B, K)"
            raise BadInput(f"{self.name} learns from {takes}; got labels {tuple(labels.shape)}.")
        if isinstance(self.module, Detector):
            found = self.module.detection_loss(outputs, labels)
            return found * len(labels) if reduction == "sum" else found
        return F.cross_entropy(outputs, labels, reduction=reduction)

    def normalise(self, pixels: Tensor) -> Tensor:
        """What the module takes, from pixels in [0, 1]."""
        if pixels.shape[-3:] != self.input.shape:
            raise BadInput(f"{self.name} takes images of shape {self.input.shape}; got {tuple(pixels.shape)}.")
        return pixels if self._identity else (pixels - self.mean) / self.std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Pixels from what the module takes."""
        return inputs if self._identity else inputs * self.std + self.mean

    @contextmanager
    def mode(self, training: bool, *, stochastic: bool = False) -> Generator[None]:
        """Inside: every submodule in train or evaluation mode, stochastic layers active only when ``stochastic``.

        Every flag is as it was afterwards, also after an exception.
        """
        flags = [m.training for m in self._modules]
        try:
            if self._own_train:
                self.module.train(training)
            else:
                _set_training(self._modules, itertools.repeat(training))
            _set_training(self._stochastic, itertools.repeat(stochastic))
            yield
        finally:
            _set_training(self._modules, flags)

    @contextmanager
    def differentiable_twice(self) -> Generator[None]:
        """Inside: attention is computed so that its gradient can be differentiated again.

        Fused attention kernels have no second derivative on CPU; here they give way to the plain formula
        softmax(QKᵀ/√d)V, with the same values up to rounding. Forward *and* backward belong inside.
        """
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The wrapped module's parameters."""
        return self.module.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The wrapped module's parameters under its own names."""
        return self.module.named_parameters()

    def buffers(self) -> Iterator[Tensor]:
        """The wrapped module's buffers."""
        return self.module.buffers()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The wrapped module's buffers under its own names."""
        return self.module.named_buffers()

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The wrapped module's submodules under its own names, itself as ``""``."""
        return self.module.named_modules()

    def state_dict(self) -> dict[str, Tensor]:
        """The wrapped module's state, by its own names; the tensors are the model's own, not copies."""
        return dict(self.module.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a complete state in; raises :class:`BadInput` naming what does not fit or is not finite."""
        load_into(self.module, state, source="The state")

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> VisionModel:
        """Move the module, mean and std, in place; returns itself."""
        self.module.to(device=device, dtype=dtype)
        self.mean, self.std = self.mean.to(device=device, dtype=dtype), self.std.to(device=device, dtype=dtype)
        return self

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.mean.device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type it computes in."""
        return self.mean.dtype

    def fingerprint(self) -> str:
        """A digest of name, normalisation, parameters and buffers: equal exactly when the models compute the same."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=16)
        for key, tensor in [("mean", self.mean), ("std", self.std), *self.module.state_dict().items()]:
            digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _set_training(modules: Iterable[nn.Module], flags: Iterable[bool]) -> None:
    for m, flag in zip(modules, flags, strict=False):
        if m.training is not flag:
            object.__setattr__(m, "training", flag)  # nn.Module's own is ten times slower, and this is an inner loop


def _check_finite(module: nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise BadInput(f"'{name}' has no shape yet (a lazy layer). Run the module on one image first.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadInput(f"'{name}' holds NaN or infinite values; a model with such weights cannot be audited.")
