"""What a few forward passes show about a model: no layer is taken for anything because of its position or its name.

A few small passes of fixed noise, after which hooks are gone and flags, buffers and torch's generator as they were:

1. one image, evaluation mode: what comes out, which layer's output *is* the logits, which layer sees the pixels first,
   which layer feeds which;
2. two images, evaluation mode: whether an image's features depend on its neighbour;
3. two images, train mode: which modules draw random numbers (the generator's state moves while they run), and whether
   train mode changes anything that BatchNorm and those do not explain.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from leakscope.errors import BadInput
from leakscope.models.detector import Detector
from leakscope.models.text import as_names
from leakscope.models.watch import Pass, is_active_dropout, watched

__all__ = ["Probe", "probe"]

_SEED = 20240229
# Two passes sum in different orders; a real dependence is orders of magnitude above this.
_SAME = 1e-3
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The findings, by module name. ``notes`` are sentences about what could not be determined.

    ``feeds`` maps a module with parameters to the one whose output it took as it was.
    """

    classifier: str | None
    first_layer: str | None
    sees_pixels: bool
    feeds: Mapping[str, str]
    stochastic: tuple[str, ...]
    mixes_samples: tuple[str, ...]
    mixes_in_evaluation: bool
    notes: tuple[str, ...]


def probe(module: nn.Module, shape: tuple[int, int, int], num_classes: int) -> Probe:
    """Look at ``module``, a classifier or detector of normalised images (B, C, H, W); it comes back as it was.

    Raises :class:`BadInput` when it does not take such images, or is a classifier and does not answer with (B, K)
    logits.
    """
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(()))
    images = torch.rand((3, *shape), generator=torch.Generator().manual_seed(_SEED)).to(like)
    notes: list[str] = []
    with _put_back(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        module.eval()
        alone = _run(module, images[:1])
        if isinstance(module, Detector):
            _checked_detector(alone.answer)
            classifier = None
            notes.append("A detector: its labels are boxes, and no single layer's output is the class of the image.")
        else:
            classifier = _classifier(alone, _checked(alone.answer, num_classes), notes)
        first = next((n for n in alone.called if n in alone.inputs and alone.has_weight(n)), None)
        sees_pixels = first is not None and torch.equal(alone.inputs[first].flatten(), images[:1].flatten())
        if first is None:
            notes.append("No layer with weights was seen to run first.")
        elif not sees_pixels:
            notes.append(f"The pixels are changed before they reach '{first}', the first layer with weights.")
        if alone.drew:
            notes.append(f"Draws random numbers even in evaluation mode: {as_names(sorted(alone.drew))}.")
        together = _run(module, images[:2])
        mixes = not _agree(alone, together, classifier)
        if mixes:
            notes.append("In evaluation mode an image's output depends on the other images of the batch.")
        stochastic, mixers = _train_mode(module, images, together, classifier, notes)
    names = [name for name, _ in module.named_modules()]
    return Probe(
        classifier=classifier,
        first_layer=first,
        sees_pixels=sees_pixels,
        feeds=alone.feeds(),
        stochastic=tuple(name for name in names if name in stochastic),
        mixes_samples=mixers,
        mixes_in_evaluation=mixes,
        notes=tuple(notes),
    )


def _run(module: nn.Module, images: Tensor) -> Pass:
    try:
        with watched(module) as seen:
            seen.answer = module(images)
    except _FAILURES as error:
        raise BadInput(
            f"The model could not be run on {tuple(images.shape)} images: {error} "
            "Give the image size and channels it was built for."
        ) from error
    return seen


def _checked(output: object, num_classes: int) -> Tensor:
    """The logits of one image, or an error that says what came out instead."""
    wanted = "A classifier must answer one image with a (1, K) tensor of logits"
    if not isinstance(output, Tensor):
        raise BadInput(f"{wanted}; this module returned {_described(output)}. Wrap it so that it returns the logits.")
    if output.ndim != 2 or output.shape[0] != 1:
        raise BadInput(f"{wanted}; this module returned a tensor of shape {tuple(output.shape)}.")
    if output.shape[1] != num_classes:
        raise BadInput(f"{wanted}; this one has K = {output.shape[1]}, not {num_classes} classes.")
    if not bool(torch.isfinite(output).all()):
        raise BadInput(f"{wanted}; this module answered noise with NaN or infinite values.")
    return output


def _checked_detector(output: object) -> None:
    if not isinstance(output, Tensor) or output.ndim < 2 or output.shape[0] != 1:
        raise BadInput(f"A detector must answer one image with one tensor (1, …); this one gave {_described(output)}.")
    if not bool(torch.isfinite(output).all()):
        raise BadInput("A detector must answer noise with finite values; this one did not.")


def _described(output: object) -> str:
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with keys {as_names([str(k) for k in output])}"
    if isinstance(output, (tuple, list)):
        inner = as_names([str(tuple(o.shape)) if isinstance(o, Tensor) else type(o).__name__ for o in output])
        return f"a {type(output).__name__} of {len(output)} ({inner})"
    return f"a tensor {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def _classifier(seen: Pass, logits: Tensor, notes: list[str]) -> str | None:
    """The linear layer (or 1×1 convolution) whose output is the logits: the same memory, else the same numbers."""
    same = [n for n in seen.of_kind(nn.Linear, nn.Conv2d) if seen.outputs[n].numel() == logits.numel()]
    for name in reversed(same):
        if seen.is_output(name, logits):
            return name
    varied = float(logits.max() - logits.min()) > 0
    same = [n for n in same if varied and seen.unwritten(n)]
    equal = [n for n in same if torch.equal(seen.outputs[n].flatten(), logits.flatten())]
    if len(equal) == 1:
        return equal[0]
    notes.append("No single linear layer's output is the logits, so the classifier is not known.")
    return None


def _agree(one: Pass, other: Pass, classifier: str | None) -> bool:
    """Whether two passes that share their first image gave it the same features (logits if there is no classifier)."""
    pair = (one.answer, other.answer)
    if classifier is not None:
        pair = (one.inputs[classifier], other.inputs.get(classifier))
    a, b = pair
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.ndim == 0 or a.shape[1:] != b.shape[1:]:
        return False
    return bool((a[0] - b[0]).abs().max() <= _SAME * a[0].abs().max().clamp(min=1e-12))


def _train_mode(
    module: nn.Module, images: Tensor, evaluated: Pass, classifier: str | None, notes: list[str]
) -> tuple[set[str], tuple[str, ...]]:
    """Names of the modules that are stochastic, and that mix samples, in train mode; notes on what else changes."""
    by_type = {n for n, m in module.named_modules() if is_active_dropout(m)}
    mixers = tuple(n for n, m in module.named_modules() if isinstance(m, _BatchNorm))
    module.train()
    try:
        seen = _run(module, images[:2])
        stochastic = by_type | seen.drew
        if stochastic:
            for name in stochastic:
                module.get_submodule(name).training = False
            seen = _run(module, images[:2])
            if seen.drew:
                notes.append(f"Draws random numbers whatever its mode: {as_names(sorted(seen.drew))}.")
        if type(seen.answer) is not type(evaluated.answer):
            notes.append(f"In train mode it returns {_described(seen.answer)}, not logits.")
        elif not mixers and not _agree(evaluated, seen, classifier):
            if not _agree(seen, _run(module, images[[0, 2]]), classifier):
                mixers = ("",)
                notes.append("In train mode an image's output depends on the other images of the batch.")
            else:
                notes.append("Train mode changes its output, beyond its stochastic layers.")
    except BadInput as error:
        notes.append(f"Could not be run in train mode, so stochastic layers are listed by type only. ({error})")
        return by_type, mixers
    return stochastic, mixers


@contextmanager
def _put_back(module: nn.Module) -> Generator[None]:
    """Restore every train flag and buffer, whatever happens."""
    flags = [(m, m.training) for m in module.modules()]
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    try:
        yield
    finally:
        for m, flag in flags:
            m.training = flag
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
