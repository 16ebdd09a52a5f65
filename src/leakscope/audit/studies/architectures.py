"""Is it feasible on this architecture? The feasibility study's Table 1, beside the closed forms that it lacks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from leakscope.attacks import Optimisation
from leakscope.attacks.analytic.scan import closed_forms
from leakscope.attacks.configure import configured
from leakscope.audit.feasible import CONTROL, feasible
from leakscope.audit.study import Point, Setup, register_study
from leakscope.audit.study_models import subjects
from leakscope.client import FedAvg, FedSGD
from leakscope.models import VisionModel
from leakscope.types import ClientProtocol

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


@register_study(
    "architectures", x="model", series="attack", cites="valadi2025", conclude=feasible, costly=True, several=True
)
def architectures(setup: Setup) -> Iterator[Point]:
    """The same images and client on several architectures, by the chosen attack and by every closed form.

    A model of the feasibility study stands beside the others of that study, any other model beside small ones, unless
    others are named. Where
    train and evaluation mode differ (BatchNorm), both are tried, the client's own first. Beside every optimisation
    attack runs its control: the same attack, the update replaced by noise. The conclusions say, for each model and
    mode, whether reconstruction was feasible, by what evidence, and what the closed forms make of it.
    """
    for subject in subjects(setup, beside(setup.model.name)):
        model = subject.model
        for mode, client in _clients(setup.client, model):
            there = replace(setup, model=model, client=client)
            for attack in (setup.attack, *(form for form in closed_forms() if form != setup.attack)):
                made = configured(attack, setup.options if attack == setup.attack else {})
                at = {"model": subject.label, "attack": attack, "mode": mode}
                yield Point(at=at, case=there.case(attack_name=attack, attack=made), extra=subject.extra)
                if isinstance(made, Optimisation):
                    control = there.case(attack_name=attack, attack=made, control=True, role="control")
                    yield Point(at=at | {"attack": f"{attack}{CONTROL}"}, case=control, extra=subject.extra)


def _clients(client: ClientProtocol, model: VisionModel) -> Iterator[tuple[str, ClientProtocol]]:
    """The client as it is and, where the mode makes a difference to this model, in the other one."""
    if not isinstance(client, FedSGD | FedAvg):
        yield str(getattr(client, "mode", "eval")), client
        return
    yield client.mode, client
    if model.anatomy.mixes_samples:
        other = "eval" if client.mode == "train" else "train"
        yield other, replace(client, mode=other)


def beside(name: str) -> tuple[str, ...]:
    """What the model ``name`` is compared with."""
    return tuple(other for other in (FEASIBILITY if name in FEASIBILITY else SMALL) if other != name)
