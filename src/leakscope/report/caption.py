"""A record in a few words: titles and captions."""

from __future__ import annotations

import math

from leakscope.audit.record import Record

__all__ = ["client_line", "number", "picture_caption", "run_line", "title"]

# What a caption shows, how, and in which unit; the record holds the rest.
_SHOWN = (("psnr", "PSNR", ".1f", " dB"), ("ssim", "SSIM", ".3f", ""), ("lpips", "LPIPS", ".3f", ""))


def title(record: Record) -> str:
    """``inverting-gradients on leakscope:convnet64``."""
    return f"{record.attack} on {record.target.name}"


def client_line(record: Record) -> str:
    """What the client did and what the server knows: ``FedSGD, batch of 2, eval mode, mean, honest server``."""
    client = dict(record.client)
    words = [str(client.pop("type", "client")), f"batch of {len(record.pictures)}"]
    if "mode" in client:
        words.append(f"{client['mode']} mode")
    if client.get("share_buffers"):
        words.append("buffers shared")
    return ", ".join([*words, record.threat])


def run_line(record: Record) -> str:
    """How the run went: ``200 steps in 31 s, finished``; closed-form attacks have no steps."""
    if not record.steps:
        return f"{_duration(record.seconds)}, {record.status}"
    restarts = f" over {len(record.trace)} restarts" if len(record.trace) > 1 else ""
    return f"{record.steps} steps{restarts} in {_duration(record.seconds)}, {record.status}"


def picture_caption(record: Record, index: int) -> list[str]:
    """Two lines under a pair: the image with its label, and its scores."""
    picture = record.pictures[index]
    right = picture.label == picture.recovered_label
    what = picture.label if isinstance(picture.label, str) else f"label {picture.label}"
    label = f"{what}, " + ("recovered" if right else f"taken for {picture.recovered_label}")
    scores: list[str] = []
    for name, shown, form, unit in _SHOWN:
        values = record.metric(name)
        if values is not None and not math.isnan(values[index]):
            scores.append(f"{shown} {number(values[index], form)}{unit}")
    return [f"{picture.name} ({label})", "   ".join(scores)]


def number(value: float, form: str = ".3g") -> str:
    """For people: a true minus, and ∞ for what has no end."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:{form}}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
