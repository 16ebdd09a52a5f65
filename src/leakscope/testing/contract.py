"""The contract every plug-in keeps. A researcher's own attack can be put to it: ``check_attack(my_attack)``.

An attack on a tiny target must be deterministic for a seed, leave the model as it was, depend on nothing but the
observation, and say honestly when it does not apply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from leakscope.client import FedSGD, Split, observe, threats
from leakscope.errors import MissingKnowledge, NotApplicable
from leakscope.models import VisionModel, load_model
from leakscope.testing.bundled import bundled_batch, bundled_names
from leakscope.types import Attack, Batch, ClientProtocol, Observation, Reconstruction, ThreatModel

__all__ = ["ContractBroken", "Target", "check_attack", "tiny_targets"]


class ContractBroken(AssertionError):
    """A plug-in does something that no plug-in may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model and a private batch, small enough to attack in a moment."""

    name: str
    model: VisionModel
    batch: Batch
    public: Batch
    protocol: ClientProtocol = field(default_factory=FedSGD)

    def observe(self, threat: ThreatModel = threats.WITH_LABELS) -> Observation:
        return observe(
            self.model,
            self.batch,
            protocol=self.protocol,
            threat=threat,
            public=self.public,
            generator=torch.Generator().manual_seed(0),
        )


def tiny_targets() -> Iterator[Target]:
    """Smooth convolutions, ReLU with BatchNorm, fully connected, two transformers; a client that sends features."""
    gradient = FedSGD()
    for name, size, protocol in (
        ("leakscope:lenet-dlg", 16, gradient),
        ("leakscope:resnet20", 16, gradient),
        ("leakscope:mlp?hidden=32&activation=tanh", 16, gradient),
        ("leakscope:mlp?hidden=32&activation=relu", 16, gradient),
        ("timm:vit_tiny_patch16_224", 32, gradient),
        ("leakscope:april-a", 8, gradient),
        ("leakscope:lenet-dlg", 8, Split(cut="act2")),
    ):
        model = load_model(name, num_classes=10, image_size=size, seed=0)
        batch = bundled_batch(["cat"], size=size)
        with model.mode(training=True), torch.no_grad():
            model(bundled_batch(["cat", "coffee"], size=size).images)  # BatchNorm: statistics that say something
        public = bundled_batch([name for name in bundled_names() if name != "cat"], size=size)
        yield Target(name=name, model=model, batch=batch, public=public, protocol=protocol)


def check_attack(attack: Attack) -> int:
    """Put ``attack`` to the contract on every tiny target; returns on how many of them it applied.

    Raises :class:`ContractBroken` with what was broken.
    """
    applied = 0
    for target in tiny_targets():
        before = _state(target.model)
        seen = target.observe()
        try:
            try:
                first = attack(seen, generator=torch.Generator().manual_seed(1))
            except MissingKnowledge:  # some attacks are for servers that know more
                seen = target.observe(threats.WITH_PUBLIC_DATA)
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
