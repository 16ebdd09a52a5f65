"""Identifiability: is the information there at all? So that *information is missing* and *the attack is weak* differ.

Near the truth the signal is g(x + δ) ≈ g(x) + Jδ + ε, with ε what nobody can predict: the rounding of floats, and the
noise that defences add. With the rows of J divided by the noise of their tensor, A = Σ^(−½) J, a direction v of the
images moves the signal by ‖Av‖ standard deviations. Singular values of A thus say what is determined:

- a direction with singular value s is known to a standard deviation of 1/s at best (Cramér and Rao);
- knowing beforehand that pixels lie in [0, 1] (variance 1/12), it is 1/√(s² + 12) (van Trees);
- the mean of 1/(s² + 12) over all directions bounds the mean squared error of any attack that takes what it knows of
  the pictures from nowhere else. A prior on photographs may do better; that is not in the update.

It is a local statement, at the true images and labels, of a server that knows the defence: the most there is to get.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from leakscope.client.round import run_round
from leakscope.errors import BadInput, NotApplicable
from leakscope.functional.jacobian import Jacobian, dense_gram, ritz
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, ClientProtocol, Defence, Setting, Signal

__all__ = ["analyse"]

_PRIOR: Final = 12.0
"""One over the variance of a pixel that may be anything in [0, 1]."""
_DOUBLE: Final = 5_000_000
"""Parameters up to which the analysis runs in float64, which shows float32's own rounding."""
_LARGEST: Final = 120_000_000
_PRODUCTS: Final = 300_000_000
"""Entries of J up to which all of its singular values are computed: seconds, not minutes."""
_MUCH: Final = 0.5
_LITTLE: Final = 0.05


def analyse(
    model: VisionModel,
    batch: Batch,
    *,
    protocol: ClientProtocol,
    defences: Sequence[Defence] = (),
    others: Batch | None = None,
    generator: torch.Generator,
    resolution: float = 0.05,
    dense: int = 800,
    probes: int | None = None,
) -> dict[str, object]:
    """How much of ``batch`` the client's signal determines, as plain data with a ``summary`` in words.

    A direction counts as recoverable if its standard deviation is at most ``resolution`` (0.05: 13 of 255 grey levels).
    Up to ``dense`` unknowns all singular values are computed; beyond, ``probes`` of them are bounded from below, and
    their sum of squares is estimated. Shared running statistics are not counted: a replay does not differentiate them.
    """
    if not 0 < resolution < 1:
        raise BadInput(f"resolution is {resolution}; it is a share of the pixel range, between 0 and 1.")
    parameters = sum(p.numel() for p in model.parameters())
    if parameters > _LARGEST:
        raise NotApplicable(f"{model.name} has {parameters:,} parameters; the analysis is made up to {_LARGEST:,}.")
    setting, observed = _observed(model, batch, protocol, defences, others, generator)
    exact = parameters <= _DOUBLE
    if exact and setting.model.dtype != torch.float64:
        setting = _in_double(setting)

    def predicted(images: Tensor) -> Mapping[str, Tensor]:
        """What a server that knows the defences expects to see of these images."""
        with setting.model.differentiable_twice():
            signal: Signal = setting.aware.replay(setting.model, images, setting.labels, create_graph=True)
        for defence in defences:
            signal = defence.as_seen(signal, observed)
        return {name: value for name, value in signal.items() if name in observed and value.is_floating_point()}

    scales, relative = _noise(predicted(setting.images), observed, exact=exact)
    with setting.model.differentiable_twice():
        jacobian = Jacobian(predicted, setting.images, scales)
        facts: dict[str, object] = {
            "unknowns": jacobian.columns,
            "equations": jacobian.rows,
            "relative_noise": _short(relative),
            "resolution": resolution,
            "noise": 1.0,
        }
        if jacobian.columns <= dense and jacobian.rows * jacobian.columns <= _PRODUCTS:
            facts |= _dense(jacobian, len(setting.images), resolution)
        else:
            count = probes or (24 if parameters <= 10_000_000 else 8)
            facts |= _sketched(jacobian, count, resolution, fork(generator, "probes"))
    if setting.images.shape != batch.images.shape or not torch.equal(setting.images.cpu().float(), batch.images.cpu()):
        facts["of"] = "the images as the client's defences have changed them before training"
    return facts | _conclusion(facts)


def _observed(
    model: VisionModel,
    batch: Batch,
    protocol: ClientProtocol,
    defences: Sequence[Defence],
    others: Batch | None,
    generator: torch.Generator,
) -> tuple[Setting, dict[str, Tensor]]:
    setting = Setting(
        model=model,
        images=batch.images.to(device=model.device, dtype=model.dtype),
        labels=batch.labels.to(model.device),
        protocol=protocol,
        aware=protocol,
        unaware=protocol,
        others=others,
    )
    return run_round(setting, defences, generator=fork(generator, "client"))


def _in_double(setting: Setting) -> Setting:
    """The same in float64. Only the predictions are: the observed signal keeps the rounding of the model's own type."""
    labels = setting.labels.double() if setting.labels.is_floating_point() else setting.labels
    model = copy.deepcopy(setting.model).to(dtype=torch.float64)
    return Setting(
        model=model,
        images=setting.images.double(),
        labels=labels,
        protocol=setting.protocol,
        aware=setting.aware,
        unaware=setting.unaware,
        others=setting.others,
    )


def _noise(predicted: Signal, observed: Signal, *, exact: bool) -> tuple[dict[str, float], float]:
    """The standard deviation of each tensor's entries around the prediction at the truth, and ‖noise‖ / ‖signal‖.

    It holds everything that cannot be predicted: noise, quantisation, dropout masks and rounding. Rounding is measured
    where the prediction is more precise than the signal, else taken to be two units in the last place.
    """
    scales: dict[str, float] = {}
    noise = power = 0.0
    for name, value in predicted.items():
        value, seen = value.detach().double(), observed[name].double()
        size, rest = float(value.square().mean().sqrt()), float((seen - value).square().mean().sqrt())
        last = torch.finfo(observed[name].dtype).eps * max(size, float(seen.square().mean().sqrt()))
        scale = max(rest, (0.1 if exact else 2.0) * last)
        if scale > 0 and size > 0:
            scales[name] = scale
            noise, power = noise + scale**2 * value.numel(), power + size**2 * value.numel()
    return scales, math.sqrt(noise / power) if power else 0.0


def _dense(jacobian: Jacobian, images: int, resolution: float) -> dict[str, object]:
    values, vectors = torch.linalg.eigh(dense_gram(jacobian))
    squares = values.clamp_min(0)
    errors = 1 / (squares + _PRIOR)  # (n,), along each direction
    per_image = (vectors.square() @ errors).view(images, -1).mean(1)
    singular = squares.sqrt().flip(0)
    count = int((singular * resolution >= 1).sum())
    return {
        "method": "all singular values",
        "singular_values": [_short(value * resolution) for value in singular.tolist()],
        "recoverable": count,
        "recoverable_at_most": count,
        "psnr_at_most": _short(-10 * math.log10(float(errors.mean()))),
        "psnr_at_most_by_image": [_short(-10 * math.log10(value)) for value in per_image.tolist()],
    }


def _sketched(jacobian: Jacobian, probes: int, resolution: float, generator: torch.Generator) -> dict[str, object]:
    n = jacobian.columns
    singular, frobenius = ritz(jacobian, min(probes, n), generator)
    # At most ‖A‖²_F / t² singular values reach t; and the mean of the convex 1/(s² + 12) is at least its value at the
    # mean of s², so that the sum of squares bounds the error of any attack.
    at_most = min(n, jacobian.rows, math.floor(frobenius * resolution**2))
    return {
        "method": f"{len(singular)} random probes: singular values are lower bounds, their number is cut off",
        "singular_values": [_short(value * resolution) for value in singular.tolist()],
        "probes": len(singular),
        "recoverable": int((singular * resolution >= 1).sum()),
        "recoverable_at_most": at_most,
        "psnr_at_most": _short(10 * math.log10(frobenius / n + _PRIOR)),
    }


def _conclusion(facts: Mapping[str, object]) -> dict[str, object]:
    """In words. ``conclusion`` is one of: there, partly there, missing, not settled."""
    unknowns, low, high = (_whole(facts[name]) for name in ("unknowns", "recoverable", "recoverable_at_most"))
    bound, share = facts["psnr_at_most"], f"within {facts['resolution']:.0%} of the pixel range"
    if high < _LITTLE * unknowns:
        found = "missing"
        words = (
            f"The information is missing: the update determines at most {high:,} of {unknowns:,} pixel values {share}; "
            f"without knowing what the pictures look like, no attack gets beyond {bound:.1f} dB."
        )
    elif low >= _MUCH * unknowns:
        found = "there"
        words = (
            f"The information is there: the update determines {low:,} of {unknowns:,} pixel values {share}. An attack "
            "that finds nothing is a weak attack."
        )
    elif "probes" in facts and low == facts["probes"]:
        found = "not settled"
        words = (
            f"Information is there: each of the {low:,} directions that were probed is determined {share}. How many of "
            f"the {unknowns:,} pixel values follow was not computed; an attack that finds nothing may be a weak attack."
        )
    elif "probes" in facts:
        found = "not settled"
        words = (
            f"Of {facts['probes']} directions that were probed, {low:,} are determined {share}; between that and "
            f"{high:,} of {unknowns:,} pixel values may be."
        )
    else:
        found = "partly there"
        words = (
            f"Part of the information is there: the update determines {low:,} of {unknowns:,} pixel values {share}; "
            f"without knowing what the pictures look like, no attack gets beyond {bound:.1f} dB."
        )
    return {"conclusion": found, "summary": words}


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _short(value: float) -> float:
    """Four digits: more would be rounding."""
    return float(f"{value:.4g}")
