"""What may differ between the client that an inverter was fitted for and the one it meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import torch
from torch import Tensor

from leakscope.attacks.configure import configured
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.audit.studies.training_time import crops
from leakscope.audit.study import Setup
from leakscope.client.registry import defence
from leakscope.errors import BadInput, UnknownName
from leakscope.random import fork
from leakscope.testing.bundled import bundled_names
from leakscope.types import Batch, Defence

__all__ = ["QUESTIONS", "Condition", "Robustness", "conditions", "photographs"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """What is asked: the client, its private images and the attack (``setup``); the server's ``public`` images; and
    ``elsewhere``, images of another source, by default crops of the bundled photographs.

    ``noises``: deviations of what is added to every entry. ``epochs`` and ``shares``: how long clients were trained
    since the fit, and on which share of the public images, by SGD at ``lr``. ``fewer``: the smaller share of the public
    images to fit on. ``depths``: links more or fewer than the model has.
    """

    setup: Setup
    public: Batch
    elsewhere: Batch | None = None
    questions: tuple[str, ...] = ("noise", "weights", "shift", "pairs", "architecture")
    noises: tuple[float, ...] = (0.0, 0.01, 0.1)
    epochs: tuple[int, ...] = (1, 10, 50)
    shares: tuple[float, ...] = (0.01, 0.1, 1.0)
    fewer: float = 0.1
    depths: tuple[int, ...] = (-1, 1)
    lr: float = 0.05

    def __post_init__(self) -> None:
        for question in self.questions:
            if question not in QUESTIONS:
                raise UnknownName("question", question, QUESTIONS)
        for name, shares in (("share", self.shares), ("fewer", (self.fewer,))):
            for share in shares:
                if not 0 < share <= 1:
                    raise BadInput(f"{name} is {share}; it must be above 0 and at most 1.")
        if any(epochs < 1 for epochs in self.epochs):
            raise BadInput(f"The epochs are {self.epochs}; each must be at least 1.")
        known = {image.tobytes() for image in _bytes(self.public)}
        if same := sum(image.tobytes() in known for image in _bytes(self.setup.batch)):
            raise BadInput(f"{same} private images are among the public ones: what was fitted on cannot be attacked.")
        _ = self.method()

    def method(self, options: Mapping[str, Any] | None = None) -> LearnedAttack:
        """The attack, with more ``options``."""
        method = configured(self.setup.attack, {**self.setup.options, **(options or {})})
        if not isinstance(method, LearnedAttack):
            raise BadInput(f"'{self.setup.attack}' is not fitted on public images: this is for lti, git-coarse, dci.")
        return method

    def draws(self, stream: str) -> torch.Generator:
        return fork(torch.Generator().manual_seed(self.setup.seed), f"robustness/{stream}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One line of the table: what the inverter is fitted on (``public``, ``expected`` defences, ``options``), and what
    it meets: the private images ``rows``, the client's ``defences``, its weights after ``trained`` = (epochs, share).
    """

    question: str
    name: str
    public: Batch
    rows: Tensor
    expected: tuple[Defence, ...] = ()
    defences: tuple[Defence, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trained: tuple[int, float] | None = None


def conditions(asked: Robustness) -> list[Condition]:
    """Every condition of the questions that were asked; each question begins with its own reference."""
    return [one for question in asked.questions for one in QUESTIONS[question](asked)]


def _noise(asked: Robustness) -> Iterator[Condition]:
    """Gaussian noise of a given deviation in every entry; the fit knows of it, or saw clean gradients only."""
    plain = _plain(asked, "noise", "none")
    for deviation in asked.noises:
        if deviation == 0:
            yield plain
            continue
        noise = (defence("gaussian-noise", scale=deviation, per="entry"),)
        yield replace(plain, name=f"{deviation:g}, fitted with it", defences=noise, expected=noise)
        yield replace(plain, name=f"{deviation:g}, fitted without", defences=noise)


def _weights(asked: Robustness) -> Iterator[Condition]:
    """Clients at other weights of the model: trained further since the inverter was fitted.

    The server knows the weights it sends out, so whatever an inverter reads off the model itself is of the client's
    weights; everything that was fitted is of the first ones.
    """
    plain = _plain(asked, "weights", "as fitted")
    yield plain
    for share in asked.shares:
        for epochs in asked.epochs:
            count = f"{epochs} epoch{'s' if epochs > 1 else ''}"
            yield replace(plain, name=f"{count} on {100 * share:g} %", trained=(epochs, share))


def _shift(asked: Robustness) -> Iterator[Condition]:
    """Fitted on one half of the classes, and on another source of images."""
    classes = asked.public.labels.unique()
    if asked.public.labels.ndim == 1 and len(classes) > 1:
        first = classes[: len(classes) // 2]
        half = _part(asked.public, torch.isin(asked.public.labels, first).nonzero().flatten())
        own = torch.isin(asked.setup.batch.labels, first)
        for name, rows in (("own half of classes", own), ("other half of classes", ~own)):
            yield Condition(question="shift", name=name, public=half, rows=rows.nonzero().flatten())
    name = "crops of photographs" if asked.elsewhere is None else "another source"
    other = photographs(asked) if asked.elsewhere is None else asked.elsewhere
    yield replace(_plain(asked, "shift", name), public=other)


def _pairs(asked: Robustness) -> Iterator[Condition]:
    """All public images, and a share of them."""
    plain = _plain(asked, "pairs", f"all {len(asked.public)} images")
    yield plain
    count = max(2, round(asked.fewer * len(asked.public)))
    fewer = _part(asked.public, torch.randperm(len(asked.public), generator=asked.draws("fewer"))[:count])
    yield replace(plain, name=f"{count} of them", public=fewer)


def _architecture(asked: Robustness) -> Iterator[Condition]:
    """An inverse network for a model of another depth, on the real client's gradients.

    An inverter that was fitted on another model is refused: the shapes of what it reads differ. What a server can get
    wrong is the chain that it takes the model for, ``extra_links`` of coarse GIT. LTI assumes nothing of the kind.
    """
    if "extra_links" not in asked.method().options:
        return
    plain = _plain(asked, "architecture", "as it is")
    yield plain
    for extra in asked.depths:
        what = f"{abs(extra)} link{'s' if abs(extra) > 1 else ''} {'more' if extra > 0 else 'fewer'}"
        yield replace(plain, name=what, options={"extra_links": extra})


QUESTIONS: Final[Mapping[str, Callable[[Robustness], Iterator[Condition]]]] = {
    "noise": _noise,
    "weights": _weights,
    "shift": _shift,
    "pairs": _pairs,
    "architecture": _architecture,
}


def photographs(asked: Robustness) -> Batch:
    """About as many crops of the bundled photographs as there are public images; none of a private photograph."""
    names = [name for name in bundled_names() if name not in asked.setup.batch.names]
    each = max(1, len(asked.public) // len(names))
    images, labels = crops(names, *asked.setup.model.input.shape, asked.draws("photographs"), each=each)
    return Batch(images=images, labels=labels % asked.setup.model.input.num_classes)


def _plain(asked: Robustness, question: str, name: str) -> Condition:
    """Nothing differs from what was fitted for."""
    return Condition(question=question, name=name, public=asked.public, rows=torch.arange(len(asked.setup.batch)))


def _part(batch: Batch, rows: Tensor) -> Batch:
    return Batch(images=batch.images[rows], labels=batch.labels[rows])


def _bytes(batch: Batch) -> Any:
    return (batch.images * 255).round().to(torch.uint8).numpy()
