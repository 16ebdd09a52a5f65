"""The level of one reconstruction, from numbers alone: its scores, its control's, and the identification test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from leakscope.audit.findings import Level
from leakscope.audit.policy import Policy

__all__ = ["Decision", "Measured", "decide"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one reconstruction of one image.

    ``control_*`` are the best that prior-only controls of the same attack reached on this image; ``None`` where no
    control ran. ``blank_psnr`` is what the best single colour would reach. A metric that is not defined is NaN.
    """

    psnr: float
    ssim: float
    correlation: float
    p_value: float
    rank: int
    gallery: int
    kin_rank: int
    kin: int
    blank_psnr: float
    control_psnr: float | None = None
    control_ssim: float | None = None
    control_correlation: float | None = None
    control_refused: bool = False

    @property
    def controlled(self) -> bool:
        """Whether a control says what comes out without a leak; one that the attack refused says: nothing."""
        return self.control_refused or self.control_psnr is not None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A level, and the reason in plain words."""

    level: Level
    reason: str


def decide(measured: Measured, policy: Policy) -> Decision:
    """The level of one reconstruction; see :class:`~leakscope.audit.policy.Policy`.

    Without a control nothing is called recognisable (unless the policy waives it): it could be the attack's own prior.
    An exact copy needs none, since a prior cannot know an image to the last grey level.
    """
    m = measured
    if math.isnan(m.psnr) or math.isnan(m.correlation):
        return Decision(level=Level.NOTHING, reason="The attack brought back pixels that are no numbers.")
    floor = max(m.blank_psnr, -math.inf if m.control_psnr is None else m.control_psnr)
    if m.psnr >= policy.exact_psnr and m.psnr > floor and m.psnr >= floor + policy.margin_psnr:
        error = f"differs from the original by {255 * 10 ** (-m.psnr / 20):.1g} of 255 grey levels ({_psnr(m.psnr)})"
        return Decision(
            level=Level.EXACT,
            reason=f"The reconstruction {error if math.isfinite(m.psnr) else 'is the original, bit for bit'}; without "
            f"the signal, at most {_psnr(floor)} can be had.",
        )
    against = _against(m)
    picked = f"picked out of {m.gallery} pictures as number {m.rank} (p = {m.p_value:.2g})"
    identified = m.p_value <= policy.identified_p and m.kin_rank <= max(1.0, policy.identified_p * (m.kin + 1))
    alike = m.correlation >= policy.recognisable_correlation or m.ssim >= policy.recognisable_ssim
    if identified and _beyond_control(m, policy):
        if m.controlled or not policy.require_control:
            return Decision(
                level=Level.RECOGNISABLE,
                reason=f"The original is {picked}, and the layout agrees ({_quality(m)}; {against}).",
            )
        return Decision(
            level=Level.TRACES,
            reason=f"The original is {picked} and looks alike ({_quality(m)}), but no control was run: it may be the "
            "attack's own prior.",
        )
    if m.p_value <= policy.traces_p and _any_better(m):
        short = "but it is too far from it to be recognised" if not alike else "but no more than the control gives"
        return Decision(level=Level.TRACES, reason=f"The original is {picked}, {short} ({_quality(m)}; {against}).")
    return Decision(
        level=Level.NOTHING,
        reason=f"The reconstruction is no nearer to its original than chance: number {m.rank} of {m.gallery} pictures, "
        f"p = {m.p_value:.2g} ({_quality(m)}; {against}).",
    )


def _beyond_control(m: Measured, policy: Policy) -> bool:
    """Whether a score that makes the image recognisable is one that the control does not come near."""
    correlation, ssim = max(m.control_correlation or 0.0, 0.0), max(m.control_ssim or 0.0, 0.0)
    return (
        m.correlation >= policy.recognisable_correlation
        and 1 - m.correlation <= policy.margin_share * (1 - correlation)
    ) or (m.ssim >= policy.recognisable_ssim and 1 - m.ssim <= policy.margin_share * (1 - ssim))


def _any_better(m: Measured) -> bool:
    if m.control_psnr is None:
        return True
    return m.correlation > (m.control_correlation or 0.0) or m.ssim > _number(m.control_ssim) or m.psnr > m.control_psnr


def _number(value: float | None) -> float:
    return math.nan if value is None else value  # every comparison with NaN is false


def _quality(m: Measured) -> str:
    ssim = "" if math.isnan(m.ssim) else f", SSIM {m.ssim:.2f}"
    return f"{_psnr(m.psnr)}{ssim}, layout correlation {m.correlation:.2f}"


def _against(m: Measured) -> str:
    if m.control_psnr is None:
        return "the control was refused by the attack" if m.control_refused else "no control was run"
    return f"the control gives {_psnr(m.control_psnr)}, correlation {m.control_correlation or 0.0:.2f}"


def _psnr(value: float) -> str:
    return f"{value:.1f} dB"
