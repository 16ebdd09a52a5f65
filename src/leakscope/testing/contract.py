"""The contract every plug-in keeps. A researcher's own attack can be put to it: ``check_attack(my_attack)``.

An attack on a tiny target must be deterministic for a seed, leave the model as it was, depend on nothing but the
observation, and say honestly when it does not apply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from leakscope.client import FedSGD, observe, threats
from leakscope.errors import MissingKnowledge, NotApplicable
from leakscope.models import VisionModel, load_model
from leakscope.testing.bundled import bundled_batch
from leakscope.types import Attack, Batch, Observation, Reconstruction, ThreatModel

__all__ = ["ContractBroken", "Target", "check_attack", "tiny_targets"]


class ContractBroken(AssertionError):
    """A plug-in does something that no plug-in may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model and a private batch, small enough to attack in a moment."""

    name: str
    model: VisionModel
    batch: Batch

    def observe(self, threat: ThreatModel = threats.WITH_LABELS) -> Observation:
        return observe(
            self.model, self.batch, protocol=FedSGD(), threat=threat, generator=torch.Generator().manual_seed(0)
        )


def tiny_targets() -> Iterator[Target]:
    """One target of each kind: smooth convolutions, ReLU with BatchNorm, fully connected, two transformers."""
    for name, size in (
        ("leakscope:lenet-dlg", 16),
        ("leakscope:resnet20", 16),
        ("leakscope:mlp?hidden=32&activation=tanh", 16),
        ("leakscope:mlp?hidden=32&activation=relu", 16),
        ("timm:vit_tiny_patch16_224", 32),
        ("leakscope:april-a", 8),
    ):
        model = load_model(name, num_classes=10, image_size=size, seed=0)
        batch = bundled_batch(["cat"], size=size)
        with model.mode(training=True), torch.no_grad():
            model(bundled_batch(["cat", "coffee"], size=size).images)  # BatchNorm: statistics that say something
        yield Target(name=name, model=model, batch=batch)


def check_attack(attack: Attack) -> int:
    """Put ``attack`` to the contract on every tiny target; returns on how many of them it applied.

    Raises :class:`ContractBroken` with what was broken.
    """
    applied = 0
    for target in tiny_targets():
        before = _state(target.model)
        seen = target.observe()
        try:
            first = attack(seen, generator=torch.Generator().manual_seed(1))
        except NotApplicable:
            _demand(_state(target.model) == before, "a refused attack changed the model", target)
            continue
        applied += 1
        _demand(_state(target.model) == before, "the model did not come back as it was", target)
        _demand(first.images.shape == target.batch.images.shape, "the images have the wrong shape", target)
        _demand(bool(((first.images >= 0) & (first.images <= 1)).all()), "pixels left [0, 1]", target)
        _demand(first.labels.shape == target.batch.labels.shape, "the labels have the wrong shape", target)
        # The truth is destroyed: what the attack sees must not reach it.
        target.batch.images.zero_()
        second = attack(seen, generator=torch.Generator().manual_seed(1))
        _demand(_same(first, second), "the same seed did not give the same bits, or the truth was used", target)
        _refuses_ignorance(attack, target)
    return applied


def _refuses_ignorance(attack: Attack, target: Target) -> None:
    """A server that knows nothing is either refused, or served with what the signal alone gives."""
    try:
        attack(target.observe(ThreatModel(name="knows nothing")), generator=torch.Generator().manual_seed(1))
    except MissingKnowledge as refusal:
        _demand("knows nothing" in str(refusal), "the refusal does not name the threat model", target)
    except NotApplicable:
        pass


def _same(one: Reconstruction, other: Reconstruction) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def _state(model: VisionModel) -> tuple[object, ...]:
    """Weights, buffers, modes, hooks and requires_grad, comparable."""
    modules = [m for _, m in model.named_modules()]
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = sum(len(vars(m)[kind]) for m in modules for kind in kinds)
    grads = tuple((p.requires_grad, p.grad is None) for p in model.parameters())
    digest = hashlib.blake2b(b"".join(t.detach().cpu().numpy().tobytes() for t in model.state_dict().values()))
    return digest.hexdigest(), tuple(m.training for m in modules), hooks, grads


def _demand(kept: bool, broken: str, target: Target) -> None:
    if not kept:
        raise ContractBroken(f"On {target.name}: {broken}.")
