"""What the position embedding gives away, and what is left when its gradient is missing."""

from collections.abc import Iterator
from typing import Final

from leakscope.attacks.configure import configured
from leakscope.audit.study import Point, Setup, register_study
from leakscope.audit.twins import explained
from leakscope.client.registry import defence
from leakscope.errors import BadInput
from leakscope.types import Defence, Knows

CLOSED_FORMS: Final = ("patch-embedding", "patch-embedding-blind")
"""With the position gradient, and for when it is withheld."""


@register_study("position", x="position gradient", series="attack", cites="lu2022")
def position(setup: Setup) -> Iterator[Point]:
    """The position embedding's gradient shared, withheld, and its table fixed: by optimisation and in closed form.

    APRIL's twin data: without that gradient the loss may fall as low, and the picture is another. A small distance of
    gradients beside a wrong picture is reported as ``twin``. The server knows what is missing.
    """
    if setup.model.anatomy.position_embedding is None:
        raise BadInput(f"{setup.model.name} has no position embedding that is known: this study has nothing to vary.")
    cases: dict[str, tuple[Defence, ...]] = {
        "shared": (),
        "withheld": (defence("withhold", what="position-embedding"),),
        "fixed table": (defence("fixed-position-embedding"),),
    }
    threat = setup.threat.plus(Knows.DEFENCE)
    for shown, defences in cases.items():
        for attack in (setup.attack, *(name for name in CLOSED_FORMS if name != setup.attack)):
            made = configured(attack, setup.options if attack == setup.attack else {})
            case = setup.case(attack_name=attack, attack=made, defences=defences, threat=threat)
            yield Point(at={"position gradient": shown, "attack": attack}, case=case, after=explained)
