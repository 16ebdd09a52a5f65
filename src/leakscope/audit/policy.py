"""The policy of a verdict: where the lines between exact, recognisable, traces and nothing are drawn.

Every threshold can be set in a campaign's ``[verdict]`` table. ``docs/verdicts.md`` gives the reasons. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, final

from scipy import special

from leakscope.errors import BadInput, UnknownName

__all__ = ["Policy", "clopper_pearson", "policy_from"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Thresholds. Correlation is that of the images shrunk to 16 × 16 with their mean removed: their layout.

    - **exact**: at least ``exact_psnr`` dB, and ``margin_psnr`` more than the control and the best blank reach.
    - **recognisable**: picked out of the gallery with p ≤ ``identified_p`` and before every picture of its kind; *and*
      a layout correlation of ``recognisable_correlation`` or an SSIM of ``recognisable_ssim``, which leaves at most a
      ``margin_share`` of what the control leaves unexplained: 1 − r ≤ share · (1 − r of the control).
    - **traces**: picked out with p ≤ ``traces_p``, in itself and in what it adds to the control.
    """

    exact_psnr: float = 40.0
    recognisable_correlation: float = 0.8
    recognisable_ssim: float = 0.5
    margin_psnr: float = 3.0
    margin_share: float = 0.5
    identified_p: float = 0.01
    traces_p: float = 0.001
    confidence: float = 0.95
    require_self_test: bool = True
    require_control: bool = True

    def __post_init__(self) -> None:
        for f in fields(self):
            value: object = getattr(self, f.name)
            if f.name.startswith("require_"):
                if not isinstance(value, bool):
                    raise BadInput(f"verdict.{f.name} is {value!r}; accepted: true or false.")
                continue
            low, high = _RANGES[f.name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not low < value <= high:  # pyright: ignore[reportOperatorIssue, reportArgumentType]
                raise BadInput(f"verdict.{f.name} is {value!r}; accepted: a number above {low:g}, up to {high:g}.")
        if self.traces_p > self.identified_p:
            raise BadInput(
                f"verdict.traces_p is {self.traces_p:g}, above identified_p, {self.identified_p:g}: traces rest on the "
                "identification alone, so it must be at least as strict there."
            )

    def plain(self) -> dict[str, object]:
        return asdict(self)


_RANGES: dict[str, tuple[float, float]] = {
    "exact_psnr": (25.0, 200.0),  # 25 dB are errors of 14 grey levels, which nobody would call exact
    "recognisable_correlation": (0.3, 1.0),
    "recognisable_ssim": (0.1, 1.0),
    "margin_psnr": (0.0, 60.0),
    "margin_share": (0.0, 0.9),
    "identified_p": (0.0, 0.1),
    "traces_p": (0.0, 0.1),
    "confidence": (0.5, 0.9999),
}


def policy_from(settings: Mapping[str, Any]) -> Policy:
    """The policy of a campaign's ``[verdict]`` table; an unknown key is refused with the nearest known one."""
    known = [f.name for f in fields(Policy)]
    for key in settings:
        if key not in known:
            raise UnknownName("setting of [verdict]", key, known)
    return Policy(**settings)


def clopper_pearson(successes: float, trials: int, confidence: float) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934): at least ``confidence`` of such intervals hold it.

    The ends are quantiles of Beta(k, n − k + 1) and Beta(k + 1, n − k). Without trials nothing is known: (0, 1).
    """
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if successes <= 0 else _beta_quantile(successes, trials - successes + 1, tail)
    high = 1.0 if successes >= trials else _beta_quantile(successes + 1, trials - successes, 1 - tail)
    return low, high


def _beta_quantile(a: float, b: float, share: float) -> float:
    return float(special.betaincinv(a, b, share))
