"""Is it feasible on this architecture? The feasibility study's Table 1, beside the closed forms that it lacks."""

from collections.abc import Iterator
from dataclasses import replace

from leakscope.attacks.analytic.scan import closed_forms
from leakscope.attacks.configure import configured
from leakscope.audit.study import Point, Setup, register_study
from leakscope.errors import LeakscopeError
from leakscope.models import load_model

SMALL = (
    "leakscope:convnet64",
    "leakscope:resnet20",
    "leakscope:preact-resnet18",
    "leakscope:april-b",
    "timm:vit_tiny_patch16_224",
    "timm:convnext_atto",
)
"""Architectures that take images of any size, and are small enough for a laptop."""


@register_study("architectures", x="model", series="attack", cites="valadi2025")
def architectures(setup: Setup) -> Iterator[Point]:
    """The same images and client on several architectures, by the chosen attack and by every closed form."""
    _, height, _ = setup.model.input.shape
    names = [setup.model.name, *(name for name in SMALL if name != setup.model.name)]
    for name in names:
        try:
            model = (
                setup.model
                if name == setup.model.name
                else load_model(name, num_classes=setup.model.input.num_classes, image_size=height, seed=setup.seed)
            )
        except LeakscopeError:  # an architecture that does not take this size says nothing about the others
            continue
        there = replace(setup, model=model)
        for attack in (setup.attack, *closed_forms()):
            made = configured(attack, setup.options if attack == setup.attack else {})
            yield Point(at={"model": name, "attack": attack}, case=there.case(attack_name=attack, attack=made))
