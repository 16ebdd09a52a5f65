"""Our worker for ``peers.py``: the same conversation as the peer's, with leakscope's public API behind it."""

from __future__ import annotations

import json

import torch
from torch import Tensor

import leakscope as ls
from _peer_worker import Job, Run, numbered, relative_error, serve

CLIENT_KEEPS_LABELS = {"dlg"}
"""DLG estimates the labels together with the image, on both sides."""


def prepare(job: Job, weights: dict[str, Tensor], sample: dict[str, Tensor]) -> Run:
    """Our model and observation for one job, up to the point where the attack starts."""
    model = ls.load_model(f"leakscope:{job.model}", num_classes=job.num_classes, seed=0)
    with torch.no_grad():
        for target, source in zip(model.parameters(), numbered(weights, "p"), strict=True):
            target.copy_(source)
        for target, source in zip(model.buffers(), numbered(weights, "b"), strict=True):
            target.copy_(source)
    seen = observe(model, sample["image"], sample["label"], job.attack)
    options = {name: json.loads(value) for name, _, value in (option.partition("=") for option in job.options)}
    found: dict[str, object] = {"options": options}

    def go(steps: int) -> tuple[Tensor, int]:
        attack = ls.attack(job.attack, steps=steps, init=lambda shape, generator: sample["start"], **options)
        result = attack(seen, generator=torch.Generator().manual_seed(job.seed))
        found.update(status=str(result.outcome.status), evidence=_plain(result.evidence))
        return result.images, result.steps

    error = relative_error(list(seen.gradients.values()), numbered(sample, "g"))
    return Run(go=go, gradient_error=error, notes=found)


def observe(model: ls.VisionModel, image: Tensor, label: Tensor, attack: str) -> ls.Observation:
    """What the server sees: the gradient in evaluation mode, and the label unless the attack is to find it."""
    threat = ls.threats.HONEST_SERVER
    return ls.observe(
        model,
        ls.Batch(images=image, labels=label),
        protocol=ls.FedSGD(mode="eval"),
        threat=threat if attack in CLIENT_KEEPS_LABELS else threat.plus(ls.Knows.LABELS),
        generator=torch.Generator().manual_seed(0),
    )


def _plain(evidence: object) -> object:
    """What JSON can carry of an attack's evidence."""
    if isinstance(evidence, dict) or hasattr(evidence, "items"):
        return {str(name): _plain(value) for name, value in evidence.items()}
    return evidence if isinstance(evidence, (bool, int, float, str, type(None))) else str(evidence)


if __name__ == "__main__":
    serve(prepare, {"tool": "leakscope", "version": ls.__version__})
