"""Where a split model is cut against what its features give away."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from leakscope.audit.cell import Cell, Role
from leakscope.audit.record import Record
from leakscope.report import figures
from leakscope.report.album import Album, Shot
from leakscope.report.caption import number
from leakscope.report.load import Audit
from leakscope.report.view import main_metric, shown_name

__all__ = ["CutCurve", "cut_curves"]

_SPLIT: Final = "split"
_MOST: Final = 100.0
"""What an infinite score counts as: an image that came back to the last bit has no finite PSNR."""
_SIDE: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCurve:
    """One model, images, defence and attacker, with the client's cut at several places; ``strip`` is one image:
    the original, then what came back of it at every place, with a caption each."""

    title: str
    metric: str
    figure: Markup
    image: str
    strip: tuple[tuple[str, str, Shot], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """A cell that brought something back, and the scores of its images: the higher, the more leaked."""

    key: str
    cell: Cell
    record: Record
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)


def cut_curves(audit: Audit, album: Album) -> list[CutCurve]:
    """Every group of set-ups that differ in where their client is cut; one that sends gradients stands beside them."""
    metric = _metric(audit)
    groups: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for key, cell in audit.cells.items():
        if cell.role is Role.ATTACK:
            group = (cell.model_name, cell.images_name, cell.defence_name, cell.attacker)
            groups.setdefault(group, {}).setdefault(cell.client_name, []).append(key)
    made = [_curve(audit, album, metric, group, by) for group, by in groups.items()] if metric else []
    return [curve for curve in made if curve is not None]


def _metric(audit: Audit) -> str:
    """The main metric of those for which more is more leakage."""
    higher: dict[str, bool] = {}
    for record in audit.records.values():
        higher |= record.scores.get("higher_is_better", {})
    return main_metric([name for name, better in higher.items() if better])


def _curve(
    audit: Audit, album: Album, metric: str, group: tuple[str, ...], clients: Mapping[str, Sequence[str]]
) -> CutCurve | None:
    ran = {client: _ran(audit, keys, metric) for client, keys in clients.items()}
    ran = {client: found for client, found in ran.items() if found}
    cut = [client for client, found in ran.items() if found[0].cell.client.get("type") == _SPLIT]
    cut.sort(key=lambda client: ran[client][0].record.depth or 0)  # stable: without depths, the campaign's own order
    whole = [client for client in ran if client not in cut]
    if not cut or len(ran) < 2:
        return None
    places = dict(zip([*cut, *whole], _names(ran, cut, whole), strict=True))
    names = dict.fromkeys(one.cell.attack_name for client in places for one in ran[client])
    series = [
        figures.Series(
            name=name,
            values=[_mean(one.mean for one in ran[client] if one.cell.attack_name == name) for client in places],
        )
        for name in names
    ]
    without = audit.controls()
    control = [_mean(c.mean for c in _ran(audit, [without.get(o.key, "") for o in ran[p]], metric)) for p in places]
    series.append(figures.Series(name="control: noise in its place", values=control, plain=True))
    image, strip = _strip(album, {place: ran[client] for client, place in places.items()}, metric)
    return CutCurve(
        title=" · ".join(group),
        metric=shown_name(metric),
        figure=figures.curves(list(places.values()), series, shown_name(metric), below="cut", apart=len(whole)),
        image=image,
        strip=strip,
    )


def _ran(audit: Audit, keys: Iterable[str], metric: str) -> list[_Ran]:
    found: list[_Ran] = []
    for key in keys:
        record = audit.records.get(key)
        values = (record.metric(metric) if record is not None else None) or []
        scores = tuple(min(value, _MOST) for value in values)
        if record is not None and scores and not any(math.isnan(score) for score in scores):
            found.append(_Ran(key=key, cell=audit.cells[key], record=record, scores=scores))
    return found


def _names(ran: Mapping[str, Sequence[_Ran]], cut: Sequence[str], whole: Sequence[str]) -> list[str]:
    """The cut, or what is sent in place of features; with the client's name where that alone would not tell two
    apart."""
    plain = [str(ran[client][0].cell.client.get("cut", client)) for client in cut]
    plain += ["update" if ran[client][0].cell.client.get("type") == "fedavg" else "gradient" for client in whole]
    return [
        f"{name} ({client})" if plain.count(name) > 1 else name
        for name, client in zip(plain, [*cut, *whole], strict=True)
    ]


def _strip(
    album: Album, ran: Mapping[str, Sequence[_Ran]], metric: str
) -> tuple[str, tuple[tuple[str, str, Shot], ...]]:
    """The image that came back best anywhere: as it was, and the best of it at every place."""
    best: dict[tuple[int, int], dict[str, _Ran]] = {}
    for place, found in ran.items():
        for one in found:
            for index in range(min(len(one.scores), len(one.record.pictures))):
                known = best.setdefault((one.cell.batch, index), {})
                if place not in known or one.scores[index] > known[place].scores[index]:
                    known[place] = one
    if not best:
        return "", ()
    # One that came back everywhere tells most; of those, the most exposed.
    (_, index), by = max(
        best.items(), key=lambda item: (len(item[1]), max(one.scores[item[0][1]] for one in item[1].values()))
    )
    first = next(iter(by.values()))
    picture = first.record.pictures[index]
    strip = [("original", "", album.original(first.key, picture, side=_SIDE))]
    for place, one in by.items():
        shot = album.reconstruction(one.key, one.record.pictures[index], side=_SIDE)
        strip.append((place, f"{shown_name(metric)} {number(one.scores[index])}, {one.cell.attack_name}", shot))
    return picture.name, tuple(strip)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
