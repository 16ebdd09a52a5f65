"""What ``peers.py`` says about its measurements: means per tool, ratios, and the table."""

from __future__ import annotations

import math
from statistics import fmean, median, stdev
from typing import Any

from rich import box
from rich.table import Table

__all__ = ["AGREES", "METRICS", "TOOLS", "Row", "line", "summary", "table"]

TOOLS = ("leakscope", "breaching")
METRICS = ("psnr", "ssim", "lpips")
AGREES = 1e-5
"""The two tools' gradients of the same loss may differ by this much, relatively; more means another network."""
Row = dict[str, Any]
_RATIOS = (("time", "time_ratio"), ("median", "median_time_ratio"), ("CPU", "cpu_time_ratio"))
_DIGITS = (("psnr", 2), ("ssim", 3), ("lpips", 3))


def summary(rows: list[Row]) -> Row:
    """Means per tool over the images on which *both* tools finished, and how ours compares.

    ``time_ratio`` is the ratio of the total wall times (below 1: ours is faster); ``median_time_ratio`` the median over
    images. ``psnr_gain`` is the mean difference in dB, with its standard error over the images.
    """
    both = [row for row in rows if all("error" not in row[tool] for tool in TOOLS)]
    failed = {tool: sum("error" in row[tool] for row in rows) for tool in TOOLS}
    if not both:
        return {"images": 0, "failed": failed}
    tools = {tool: _means([row[tool] for row in both]) for tool in TOOLS}
    ours, theirs = tools["leakscope"], tools["breaching"]
    gains = [row["leakscope"]["scores"]["psnr"] - row["breaching"]["scores"]["psnr"] for row in both]
    spread = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None
    return {
        "images": len(both),
        "failed": failed,
        **tools,
        "time_ratio": ours["seconds"] / theirs["seconds"],
        "cpu_time_ratio": ours["cpu_seconds"] / theirs["cpu_seconds"],
        "median_time_ratio": median(row["leakscope"]["seconds"] / row["breaching"]["seconds"] for row in both),
        "attack_memory_ratio": ours["attack_bytes"] / max(theirs["attack_bytes"], 1),
        "psnr_gain": fmean(gains),
        "psnr_gain_standard_error": spread,
        "psnr_wins": sum(gain > 0 for gain in gains),
    }


def _means(answers: list[Row]) -> Row:
    means: Row = {name: fmean(a[name] for a in answers) for name in ("seconds", "cpu_seconds", "seconds_per_step")}
    means |= {name: max(a[name] for a in answers) for name in ("peak_bytes", "attack_bytes", "gradient_error")}
    for metric in METRICS:
        values = [a["scores"][metric] for a in answers if a["scores"][metric] is not None]
        means[metric] = fmean(values) if values else None
    means["exact_images"] = sum(a["scores"]["mse"] <= 1e-4 for a in answers)
    return means


def table(run: Row) -> Table:
    """One row per tool, with means per image and memory in MiB; the comparison stands below."""
    total = run["summary"]
    versions = " and ".join(f"{tool} {run['workers'][tool]['version']}" for tool in TOOLS)
    title = f"{run['attack']} on {run['model']}, {run['steps']} steps, {total['images']} images: {versions}"
    shown = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "s", "ms/step", "peak", "attack", "PSNR", "SSIM", "LPIPS", "exact"):
        shown.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    if not total["images"]:
        shown.caption = f"No image finished with both tools; failed: {total['failed']}."
        return shown
    for tool in TOOLS:
        mean = total[tool]
        shown.add_row(
            tool,
            f"{mean['seconds']:.1f}",
            f"{1e3 * mean['seconds_per_step']:.1f}",
            f"{mean['peak_bytes'] / 2**20:.0f}",
            f"{mean['attack_bytes'] / 2**20:.0f}",
            *(f"{mean[metric]:.{digits}f}" if mean[metric] is not None else "–" for metric, digits in _DIGITS),
            f"{mean['exact_images']}/{total['images']}",
        )
    error, own = total["psnr_gain_standard_error"], total["breaching"]["gradient_error"]
    ratios = [f"{name} ×{total[key]:.2f}" for name, key in _RATIOS]
    shown.caption = (
        f"{', '.join(ratios)} · memory of the attack ×{total['attack_memory_ratio']:.2f}"
        f"\nPSNR {total['psnr_gain']:+.2f} dB"
        + (f" ± {error:.2f}" if error is not None else "")
        + f", better on {total['psnr_wins']} of {total['images']}"
        + f"\ngradients agree to {own:.0e}"
        + ("" if own <= AGREES else " [red]— NOT the same network: this comparison is void[/red]")
        + "".join(f"\n[red]{tool} failed on {n} images[/red]" for tool, n in total["failed"].items() if n)
    )
    return shown


def line(row: Row) -> str:
    """One image, both tools."""
    parts = []
    for tool in TOOLS:
        answer = row[tool]
        if "error" in answer:
            parts.append(f"{tool}: {answer['error']}")
        else:
            parts.append(f"{tool} {answer['seconds']:.1f} s, {answer['scores']['psnr']:.2f} dB")
    return " | ".join(parts)
