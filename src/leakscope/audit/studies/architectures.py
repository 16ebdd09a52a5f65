"""Is it feasible on this architecture? The feasibility study's Table 1, beside the closed forms that it lacks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from leakscope.attacks.analytic.scan import closed_forms
from leakscope.attacks.configure import configured
from leakscope.audit.study import Point, Setup, register_study
from leakscope.errors import LeakscopeError, UnknownName
from leakscope.models import load_model

__all__ = ["FEASIBILITY", "SMALL", "architectures", "beside"]

SMALL: Final = (
    "leakscope:convnet64",
    "leakscope:resnet20",
    "leakscope:april-b",
    "timm:vit_tiny_patch16_224",
    "timm:convnext_atto",
)
"""Architectures that take images of any size, and are small enough for a laptop."""

FEASIBILITY: Final = (
    "leakscope:resnet18",
    "leakscope:resnet18-preact",
    "leakscope:swin-t-32",
    "leakscope:swinv2-t-32",
    "leakscope:convnext-t-32",
    "leakscope:maxvit-t-32",
    "leakscope:vit-b-32",
)
"""The architectures of Valadi et al., adapted to 32 px: 11 to 85 million parameters."""


@register_study("architectures", x="model", series="attack", cites="valadi2025")
def architectures(setup: Setup) -> Iterator[Point]:
    """The same images and client on several architectures, by the chosen attack and by every closed form.

    A model of the feasibility study stands beside the others of that study, any other model beside small ones. The
    client decides on train or evaluation mode, and on shared buffers; the table says which mode it was.
    """
    _, height, _ = setup.model.input.shape
    mode = str(getattr(setup.client, "mode", "eval"))
    for name in (setup.model.name, *beside(setup.model.name)):
        try:
            model = (
                setup.model
                if name == setup.model.name
                else load_model(name, num_classes=setup.model.input.num_classes, image_size=height, seed=setup.seed)
            )
        except UnknownName:
            raise
        except LeakscopeError:  # an architecture that does not take this size says nothing about the others
            continue
        there = replace(setup, model=model)
        for attack in (setup.attack, *closed_forms()):
            made = configured(attack, setup.options if attack == setup.attack else {})
            at = {"model": name, "attack": attack, "mode": mode}
            yield Point(at=at, case=there.case(attack_name=attack, attack=made))


def beside(name: str) -> tuple[str, ...]:
    """What the model ``name`` is compared with."""
    return tuple(other for other in (FEASIBILITY if name in FEASIBILITY else SMALL) if other != name)
