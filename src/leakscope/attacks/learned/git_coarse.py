"""Coarse GIT: Gradient Inversion Transcript with one shallow module for each link of the leaked model (2025).

Backpropagation through a chain A_i = f_i(A_{i−1}) gives each link a gradient G_i that is made of its input and of what
came back from the link above. The transcript runs the other way: a bootstrap module reads the classifier's gradient and
estimates the classifier's input; then, from head to pixels, module i takes [G_i, G_{i+1}, Â_i] to Â_{i−1}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from leakscope.attacks.learned.evidence import ConvEvidence
from leakscope.attacks.learned.git_module import INVERTIBLE
from leakscope.attacks.learned.git_network import RESIDUAL, GITNetwork, Step
from leakscope.attacks.learned.hashing import Hash
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.attacks.learned.reading import LinearInput, Reading, gather, linear_input
from leakscope.attacks.learned.structure import Link, assumed, links_of
from leakscope.attacks.learned.training import Training
from leakscope.attacks.parts import cosine_decay
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import BadInput, NotApplicable
from leakscope.models import VisionModel
from leakscope.models.anatomy import Classifier, Layer
from leakscope.types import Knows

__all__ = ["CoarseGIT", "git_coarse"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseGIT:
    """The network for a model: modules of ``hidden`` units, gradients hashed into ``bins``, states into ``width``.

    ``evidence``: weigh the gradients of convolutions in, where the chain is plain enough to know what they are made of.
    ``extra_links``: for how many links deeper than it is the model is taken, see
    :func:`~leakscope.attacks.learned.structure.assumed`.
    """

    hidden: int
    bins: int
    width: int
    evidence: bool = True
    extra_links: int = 0

    def __post_init__(self) -> None:
        for name, value in (("hidden", self.hidden), ("bins", self.bins), ("width", self.width)):
            if value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")

    def build(
        self, model: VisionModel, shapes: Mapping[str, tuple[int, ...]], batch_size: int, generator: torch.Generator
    ) -> GITNetwork:
        links = assumed(links_of(model), self.extra_links)
        reads: dict[str, Reading] = {}
        for link in links:
            sent = [name for name in link.parameters if name in shapes]
            if sent:
                reads[link.name] = gather(link.name, sent, shapes, bins=self.bins, unit=True, signed=True)
        if not reads:
            raise NotApplicable(f"The signal holds no gradient of {model.name}: coarse GIT reads nothing else.")
        plan: list[Step] = []
        for place in reversed(range(len(links))):
            link = links[place]
            near = list(dict.fromkeys(one.name for one in links[place : place + 2] if one.name in reads))
            if not near and not plan:
                continue  # nothing is known up here: the chain starts at the last link whose gradient was sent
            closed = self._closed(model, link, shapes, place=place, head=place == len(links) - 1)
            if closed is not None:
                reads[closed.name] = closed
            size = batch_size * torch.Size(link.input).numel()
            undo = links[place + 1].before if plan and plan[-1].out.size <= self.width else None
            undo = undo if undo is not None and undo.name in INVERTIBLE else None
            raw = None
            known = not any(one.mistaken for one in links[place:])  # D comes down through all links above
            if self.evidence and known and batch_size == 1 and undo is not None and (size <= self.width or place == 0):
                raw = self._raw(model, link, shapes, reads)
            plan.append(
                Step(
                    link=link,
                    gradients=tuple(near) or tuple(reads)[:1],
                    closed=None if closed is None else closed.name,
                    undo=undo,
                    raw=raw,
                    # The pixels are what is wanted: they are never hashed.
                    out=Hash(size=size, bins=self.width if place else size, signed=True),
                )
            )
        return GITNetwork(model, tuple(plan), reads, batch_size=batch_size, hidden=self.hidden, generator=generator)

    def _raw(
        self,
        model: VisionModel,
        link: Link,
        shapes: Mapping[str, tuple[int, ...]],
        reads: dict[str, Reading],
    ) -> str | None:
        """The reading of a convolution's gradient as it was sent, where it can be weighed as evidence."""
        weight, head = f"{link.name}.weight", model.anatomy.classifier
        layer = dict(model.named_modules()).get(link.name)
        if weight not in shapes or head is None or head.bias is None or head.bias not in shapes or head.others:
            return None
        if layer is None or not ConvEvidence.takes(layer):
            return None
        for name, tensor in ((RESIDUAL, head.bias), (f"raw {link.name}", weight)):
            reads[name] = gather(name, [tensor], shapes, bins=torch.Size(shapes[tensor]).numel())
        return f"raw {link.name}"

    def _closed(
        self, model: VisionModel, link: Link, shapes: Mapping[str, tuple[int, ...]], *, place: int, head: bool
    ) -> LinearInput | None:
        """The closed form of a link's input, if the link is a linear layer that takes all of it as one row."""
        if link.mistaken:
            return None
        classifier, name = model.anatomy.classifier, f"input of {link.name}"
        layer: Layer | Classifier = Layer(weight=f"{link.name}.weight", bias=f"{link.name}.bias", module=link.name)
        if head and classifier is not None and not classifier.others:
            layer = classifier
        found = linear_input(layer, shapes, name=name, unbiased=head)
        size = torch.Size(link.input).numel()
        return found if found is not None and found.width == size <= (self.width if place else size) else None


@register_attack(
    "git-coarse",
    cites="git2025",
    leaky=Leaky(
        model={"name": "leakscope:mlp?hidden=64&activation=tanh", "image_size": 8, "num_classes": 10},
        knows=(Knows.BATCH_SIZE.value, Knows.HYPERPARAMETERS.value, Knows.PUBLIC_DATA.value),
        public={"from": ["bundled:astronaut,coffee,temple,flower,raccoon,retina"]},
        options={"steps": 20, "pairs": 0},
        psnr=40,
    ),
)
def git_coarse(
    *,
    steps: int = 300,
    pairs: int = 0,
    hidden: int = 256,
    bins: int = 4096,
    width: int = 3072,
    evidence: bool = True,
    extra_links: int = 0,
    lr: float = 3e-4,
    batch: int = 128,
    patience: int | None = 2,
    seed: int = 0,
    cache: Path | None = None,
) -> LearnedAttack:
    """A shallow module for each layer or block of the target, from its head to the pixels, fitted on public images.

    The paper gives no sizes. Here a module is a linear map in closed form and a perceptron on top; the bootstrap starts
    from the classifier's input as its gradient gives it, Gᵀ g_b / ‖g_b‖².

    ``extra_links`` asks what a wrong idea of the architecture costs: the server reads the client's real gradients, but
    its chain of modules has so many links more (or, below 0, fewer) than the client's model. A module for two links
    estimates nothing between them, two modules for one link share its gradient; neither has closed forms.
    """
    return LearnedAttack(
        name="git-coarse",
        architecture=CoarseGIT(hidden=hidden, bins=bins, width=width, evidence=evidence, extra_links=extra_links),
        training=Training(lr=lr, schedule=cosine_decay, batch=batch, patience=patience, clip=1.0),
        steps=steps,
        options={"hidden": hidden, "bins": bins, "width": width, "evidence": evidence, "extra_links": extra_links},
        pairs=pairs,
        seed=seed,
        cache=cache,
    )
