"""From a campaign to its cells: every target × attacker × attack × seed × batch, with controls and self-tests.

``attacks = "auto"`` climbs a ladder: closed forms, which take seconds and check themselves; then short optimisation,
and for a server with public images an inverter fitted to them; then tuned optimisation. What a lower rung settles,
higher ones need not repeat (:mod:`leakscope.audit.schedule`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from leakscope.attacks.analytic.scan import closed_forms
from leakscope.attacks.configure import configured
from leakscope.attacks.registry import known_to_leak
from leakscope.audit.campaign import NO_DEFENCE, UPDATE, Campaign, ImagesTable, ModelTable, TargetTable
from leakscope.audit.cell import Cell, Role
from leakscope.audit.images import count_images, image_files
from leakscope.client import threats
from leakscope.errors import BadInput
from leakscope.types import Knows

__all__ = ["RUNGS", "Rung", "cells_of", "ladder"]

RUNGS: Final = {
    "honest-server": threats.HONEST_SERVER,
    "labels": threats.WITH_LABELS,
    "statistics": threats.WITH_STATISTICS,
    "public-data": threats.WITH_PUBLIC_DATA,
    "defence": threats.WITH_DEFENCE,
}
"""What an attacker of a campaign knows, by the name of its rung."""

SELF_TEST: Final = "self-test"
_TOPS: Final = {"closed-forms": 0, "short": 2, "tuned": 3}
"""The height of the last rung of the ladder, by the name that a campaign's budget gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One attack of the ladder: the lower its ``height``, the earlier it is tried."""

    name: str
    attack: str
    options: dict[str, Any]
    height: int


def ladder(client: dict[str, Any], top: str = "tuned", *, public: bool = False) -> list[Rung]:
    """The attacks that ``auto`` stands for against this client, cheapest first, up to the rung named ``top``.

    ``public``: the server has images of its own, so it can fit an inverter as well.
    """
    rungs = [Rung(name=name, attack=name, options={}, height=0) for name in closed_forms()]
    rungs.append(Rung(name="token-separation", attack="token-separation", options={}, height=1))
    kind = str(client.get("type", "fedsgd"))
    if kind == "fedavg":
        short: dict[str, dict[str, Any]] = {"delta-as-gradient": {}, "data-leakage-fl": {}}
    elif kind == "fedsgd" and client.get("mode") == "train":
        short = {"train-mode": {}}
    else:
        short = {"inverting-gradients": {"search": "frequency"}}  # a picture comes in fewer steps
    for name, options in short.items():
        rungs.append(Rung(name=name, attack=name, options={"steps": 500, **options}, height=2))
    if public:
        learned = "dci" if kind == "split" else "git-coarse"
        rungs.append(Rung(name="learned", attack=learned, options={}, height=2))
    rungs.append(Rung(name="tuned", attack="tuned", options={}, height=3))
    return [rung for rung in rungs if rung.height <= _TOPS[top]]


def cells_of(campaign: Campaign, base: Path) -> tuple[Cell, ...]:
    """The cells of ``campaign`` in the order they should run; files are looked up from ``base``.

    A cell that two targets share stands once. Raises :class:`BadInput` if there are more than the budget allows.
    """
    found: dict[str, Cell] = {}
    for target in campaign.targets:
        for cell in _target_cells(campaign, target, base):
            found.setdefault(cell.key, cell)
    # Attacks by rung first; then what gives them meaning. A campaign that is broken off has answered the most it could.
    order = list(Role)
    cells = sorted(found.values(), key=lambda cell: (cell.rung, order.index(cell.role)))
    if campaign.budget.cells is not None and len(cells) > campaign.budget.cells:
        raise BadInput(
            f"The campaign has {len(cells)} cells; its budget allows {campaign.budget.cells}. Name fewer models, "
            "images, seeds or attacks, or raise budget.cells."
        )
    return tuple(cells)


def _target_cells(campaign: Campaign, target: TargetTable, base: Path) -> Iterator[Cell]:
    for model, images, client, defence in product(target.models, target.images, target.clients, target.defences):
        model_table, images_table = campaign.models[model], campaign.images[images]
        blank = Cell(
            role=Role.ATTACK,
            target="/".join([model, images, client, *([] if defence == NO_DEFENCE else [defence])]),
            model_name=model,
            images_name=images,
            client_name=client,
            defence_name=defence,
            attacker="",
            attack_name="",
            model=model_table.plain(),
            images=images_table.plain(),
            batch=0,
            client=campaign.clients[client],
            defences=() if defence == NO_DEFENCE else tuple(campaign.defences[defence].steps),
            seconds=campaign.budget.seconds,
            files=_digests(model_table, images_table, campaign.clients[client], base),
        )
        batches = _batches(images_table, base)
        if campaign.controls.identifiability:
            # The first batch stands for the others: the analysis costs as much as an attack.
            yield replace(blank, role=Role.IDENTIFIABILITY, seed=campaign.seeds[0], rung=_RUNG_OF_ANALYSIS)
        if campaign.controls.costs and blank.defences:
            yield replace(blank, role=Role.COST, rung=_RUNG_OF_ANALYSIS)
        for attacker in target.attackers or list(campaign.attackers):
            rung = campaign.attackers[attacker]
            known = replace(
                blank,
                attacker=attacker,
                knows=tuple(sorted(str(k) for k in RUNGS[rung.rung].knows)),
                public={"from": rung.public} if rung.public else {},
                rounds=rung.rounds,
            )
            if not rung.public:
                known = replace(known, knows=tuple(k for k in known.knows if k != str(Knows.PUBLIC_DATA)))
            for batch, seed in product(range(batches), campaign.seeds):
                yield from _attack_cells(campaign, target, replace(known, batch=batch, seed=seed))


_RUNG_OF_ANALYSIS: Final = 1
"""After the closed forms, which may make it needless."""


def _attack_cells(campaign: Campaign, target: TargetTable, blank: Cell) -> Iterator[Cell]:
    for rung in _rungs(campaign, target, dict(blank.client), public=bool(blank.public)):
        options = _within_budget(rung, campaign)
        cell = replace(blank, attack_name=rung.name, attack=rung.attack, options=options, rung=rung.height)
        yield cell
        if campaign.controls.prior_only:
            yield replace(cell, role=Role.CONTROL)
        if campaign.controls.self_tests and (test := _self_test(rung)) is not None:
            yield test


def _rungs(campaign: Campaign, target: TargetTable, client: dict[str, Any], *, public: bool) -> list[Rung]:
    if isinstance(campaign.attacks, str):
        return ladder(client, campaign.budget.ladder, public=public)
    named = target.attacks or list(campaign.attacks)
    tables = {name: campaign.attacks[name] for name in named}
    forms = closed_forms()
    return [
        Rung(name=name, attack=table.type, options=table.options, height=0 if table.type in forms else 2)
        for name, table in tables.items()
    ]


def _within_budget(rung: Rung, campaign: Campaign) -> dict[str, Any]:
    """The attack's options, with no more steps than the campaign allows."""
    limit = campaign.budget.steps
    steps = getattr(configured(rung.attack, rung.options), "steps", None)
    if limit is None or not isinstance(steps, int) or steps <= limit:
        return rung.options
    return rung.options | {"steps": limit}


def _self_test(rung: Rung) -> Cell | None:
    """The same method on a target that it is known to get through, at the settings known to get through."""
    leaky = known_to_leak(rung.attack)
    if leaky is None:
        return None
    return Cell(
        role=Role.SELF_TEST,
        target=SELF_TEST,
        model_name=str(leaky.model["name"]),
        images_name=SELF_TEST,
        client_name=SELF_TEST,
        defence_name=NO_DEFENCE,
        attacker=SELF_TEST,
        attack_name=rung.attack,
        model=dict(leaky.model),
        images=dict(leaky.images),
        batch=0,
        client=dict(leaky.client),
        knows=leaky.knows,
        public=dict(leaky.public),
        attack=rung.attack,
        options=leaky.settings(rung.options),
        seed=leaky.seed,
        rung=rung.height,
    )


def _batches(images: ImagesTable, base: Path) -> int:
    count = count_images(images.sources, base)
    size = images.batch_size or count
    return -(-count // size)


def _digests(model: ModelTable, images: ImagesTable, client: dict[str, Any], base: Path) -> dict[str, str]:
    """The files that the tables name, by content: a changed file makes another cell."""
    paths = [base / model.weights] if model.weights else []
    file, _, factory = model.name.rpartition(":")
    if factory and file.endswith(".py"):
        paths.append(base / file)
    paths += image_files(images.sources, base)
    if images.labels_file:
        paths.append(base / images.labels_file)
    if UPDATE in client:
        paths += sorted(path for path in (base / client[UPDATE]).glob("*") if path.is_file())
    return {f"{index}/{path.name}": _digest(path) for index, path in enumerate(paths)}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise BadInput(f"'{path}' cannot be read: {error.strerror or error}.") from error
