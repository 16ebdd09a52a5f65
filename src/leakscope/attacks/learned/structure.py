"""A model as a chain of links, from the pixels to the classifier: layers of small models, blocks of deep ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.analytic.chain import IDENTITY, Activation, find_chain
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel
from leakscope.models.watch import catching

__all__ = ["STEM", "Link", "assumed", "inputs_of", "links_of"]

STEM: Final = "stem"
"""Whatever stands before the first block: the first convolution, a patch embedding with its position table."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One step of the forward pass: its module, the parameters that are its own, the shape of one image's input to it.

    ``before`` is the activation that made its input, where the chain is plain enough to know. ``mistaken``: two links
    that are taken for one, or half of one that is taken for two; what a layer's gradient is made of says nothing then.
    """

    name: str
    parameters: tuple[str, ...]
    input: tuple[int, ...]
    before: Activation = IDENTITY
    mistaken: bool = False


def links_of(model: VisionModel) -> tuple[Link, ...]:
    """The chain of ``model``, pixels first, the classifier last; every parameter belongs to one link.

    A model whose blocks are known is cut into them: convolutions of a LeNet, layers of an MLP, residual blocks,
    transformer blocks. One that no adapter knows is cut into layers if it is a plain chain, and refused if not.
    """
    head = model.anatomy.classifier
    if head is None:
        raise NotApplicable(f"The classifier of {model.name} is not known, so there is nowhere to start from.")
    chain = find_chain(model)
    plain = chain.broken is None
    blocks = [block for block in model.anatomy.blocks if block != head.module]
    if not blocks and plain:
        blocks = [link.module for link in chain.links[:-1]]
    if not blocks and len(chain.links) != 1:
        raise NotApplicable(f"The blocks of {model.name} are not known, and it is no plain chain: {chain.broken}")
    owners = _owners(model, blocks, head.module)
    names = [STEM, *blocks, head.module] if STEM in owners.values() else [*blocks, head.module]
    shapes = {name: tuple(value.shape[1:]) for name, value in inputs_of(model, names, _blank(model)).items()}
    activations = {link.module: link.activation for link in chain.links} if plain else {}
    before = [IDENTITY, *(activations.get(name, IDENTITY) for name in names[:-1])]
    return tuple(
        Link(
            name=name,
            parameters=tuple(parameter for parameter, owner in owners.items() if owner == name),
            input=shapes[name],
            before=activation,
        )
        for name, activation in zip(names, before, strict=True)
    )


def assumed(links: Sequence[Link], extra: int) -> tuple[Link, ...]:
    """The chain as a server sees it that takes the model for ``extra`` links deeper than it is, or shallower.

    In the middle, below the classifier, two neighbours become one link with the parameters of both; or one becomes two
    that share its gradient, its input standing for the state between them as well.
    """
    chain = list(links)
    for _ in range(abs(extra)):
        below = len(chain) - 1
        if below < (2 if extra < 0 else 1):
            raise NotApplicable(f"{below} links below the classifier are too few to be taken for {below + extra}.")
        place = (below - 1) // 2
        one = replace(chain[place], mistaken=True)
        if extra > 0:
            chain[place : place + 1] = [one, one]
        else:
            both = one.parameters + chain[place + 1].parameters
            chain[place : place + 2] = [replace(one, parameters=both)]
    return tuple(chain)


def inputs_of(model: VisionModel, names: Sequence[str], pixels: Tensor) -> dict[str, Tensor]:
    """What goes into these links for images (B, C, H, W), {name: (B, …)}; into the first, the normalised images."""
    with catching(model.module, list(names[1:])) as caught, model.mode(False), torch.no_grad():
        model(pixels)
    return {names[0]: model.normalise(pixels), **{name: caught[name] for name in names[1:]}}


def _blank(model: VisionModel) -> Tensor:
    return torch.zeros((1, *model.input.shape), device=model.device, dtype=model.dtype)


def _owners(model: VisionModel, blocks: list[str], head: str) -> dict[str, str]:
    """Parameter → link. What belongs to no block goes to the stem if it is declared before them, else to the head."""
    owners: dict[str, str] = {}
    reached = not blocks
    for name, _ in model.named_parameters():
        own = next((block for block in blocks if name.startswith(f"{block}.")), None)
        reached = reached or own is not None
        owners[name] = own or (head if reached or name.startswith(f"{head}.") else STEM)
    return owners
