"""Which statistics help in train mode? The feasibility study's Figure 2, over several images and seeds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from leakscope.attacks.configure import configured, options_of
from leakscope.audit.images import pieces
from leakscope.audit.study import Conclusion, Point, Setup, register_study
from leakscope.audit.study_models import subjects
from leakscope.audit.study_rows import Row
from leakscope.client import FedSGD
from leakscope.errors import BadInput
from leakscope.types import Knows

__all__ = ["SEEDS", "SOURCES", "statistics"]

SOURCES: Final = ("running", "proxy", "exact")
"""Huang's target, that of a server with public images, and what shared buffers give away."""
SEEDS: Final = 3


def _means(rows: Sequence[Row], out: Path) -> list[Conclusion]:
    """For every model and source, the means over images and seeds, and what is gained over running statistics."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row.metrics:
            place = groups.setdefault((str(row.at["model"]), str(row.at["statistics"])), {})
            place[f"{row.extra['image']} {row.extra['seed']}"] = row
    found: list[Conclusion] = []
    for (model, source), runs in groups.items():
        line: dict[str, str | float] = {"model": model, "statistics": source, "runs": len(runs)}
        for name in ("ssim", "psnr"):
            if any(name not in row.metrics for row in runs.values()):  # SSIM has no meaning below 11 px
                continue
            values = [row.metrics[name] for row in runs.values()]
            line[name] = sum(values) / len(values)
            base = groups.get((model, SOURCES[0]), {})
            gains = [row.metrics[name] - base[run].metrics[name] for run, row in runs.items() if run in base]
            if source != SOURCES[0] and len(gains) > 1:
                mean = sum(gains) / len(gains)
                spread = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1) / len(gains))
                line |= {f"{name} gained": mean, f"{name} error": spread}
        found.append(line)
    return found


@register_study(
    "statistics",
    x="statistics",
    series="model",
    metric="ssim",
    cites="valadi2025",
    conclude=_means,
    costly=True,
    several=True,
)
def statistics(setup: Setup) -> Iterator[Point]:
    """Running, proxy and exact BatchNorm statistics as the target of an attack in train mode, three seeds each.

    Every image is a client's batch of its own; clients train in train mode and share their buffers. ``running`` is the
    attack of Huang et al., ``proxy`` needs public images. The conclusions hold means over images and seeds, and by
    how much a target beats running statistics on the same images and seeds, with the standard error.
    """
    name = "feasibility" if setup.attack == "huang" else setup.attack
    if "statistics" not in options_of(name):
        raise BadInput(f"This study compares targets of statistics, as 'feasibility' has; '{setup.attack}' has none.")
    if not isinstance(setup.client, FedSGD):
        raise BadInput("This study is for clients that send one gradient (FedSGD).")
    client = replace(setup.client, mode="train", share_buffers=True)
    threat = setup.threat.plus(Knows.BN_STATS)
    for subject in subjects(setup):
        for source in SOURCES:
            attack = configured(name, {**setup.options, "statistics": source})
            for index, batch in enumerate(pieces(setup.batch, 1)):
                for seed in range(setup.seed, setup.seed + SEEDS):
                    image = " ".join((str(index + 1), *batch.names))  # files of several folders may share a name
                    case = setup.case(
                        model=subject.model,
                        batch=batch,
                        client=client,
                        threat=threat,
                        attack_name=name,
                        attack=attack,
                        stream=f"batch/{index}",
                        seed=seed,
                    )
                    yield Point(
                        at={"model": subject.label, "statistics": source},
                        run=f"image-{index}_seed-{seed}",
                        case=case,
                        extra={"image": image, "seed": seed, **subject.extra},
                    )
