"""Reading a campaign file: every mistake at once, each with its key, the reason and the nearest valid spelling."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from leakscope.audit.campaign import AUTO, NO_DEFENCE, UPDATE, Campaign
from leakscope.errors import BadInput, LeakscopeError

__all__ = ["parse_campaign", "read_campaign"]

_LARGEST: Final = 2_000_000
"""Bytes. A campaign is written by a person."""


def read_campaign(path: Path) -> Campaign:
    """The campaign in the TOML file at ``path``; raises :class:`BadInput` that lists everything wrong with it."""
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"'{path}' is larger than {_LARGEST // 1000} kB: this is no campaign file.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"The campaign file '{path}' cannot be read: {error.strerror or error}. `leakscope init` writes one."
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"'{path}' is not UTF-8 text, as TOML must be: {error}.") from error
    return parse_campaign(text, source=str(path))


def parse_campaign(text: str, *, source: str = "the campaign") -> Campaign:
    """The campaign in a TOML text; ``source`` names it in messages."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source} is not valid TOML: {error}.") from error
    try:
        campaign = Campaign.model_validate(content)
    except ValidationError as error:
        raise BadInput(_list(source, [_explain(dict(e), content) for e in error.errors()])) from error
    if problems := [*_wrong_names(campaign), *_wrong_pieces(campaign)]:
        raise BadInput(_list(source, problems))
    return campaign


def _list(source: str, problems: Sequence[str]) -> str:
    heading = f"{source} has {len(problems)} mistake{'s' if len(problems) > 1 else ''}:"
    return "\n".join([heading, *(f"- {problem}" for problem in problems)])


def _explain(error: dict[str, Any], content: Mapping[str, Any]) -> str:
    place = [part for part in error["loc"] if part not in ("literal['auto']", "dict[constrained-str,AttackTable]")]
    place = [part for part in place if not str(part).startswith(("literal[", "dict["))]
    key = _key(place)
    if error["type"] == "extra_forbidden":
        known = sorted(_known(place[:-1]))
        return f"{key}: there is no such key.{_near(str(place[-1]), known)} Accepted here: {', '.join(known)}."
    if error["type"] == "missing":
        return f"{key}: this is missing{_described(place)}."
    message = str(error["msg"]).removeprefix("Input ")
    given = error.get("input")
    if error["type"] == "literal_error":
        accepted = [str(value) for value in _literals(place)] or [AUTO]
        near = _near(given, accepted) if isinstance(given, str) else ""
        return f"{key}: it is {_shown(given)}; accepted: {', '.join(accepted)}.{near}"
    return f"{key}: it is {_shown(given)}, but it {message}."


def _key(place: Sequence[object]) -> str:
    """``targets[0].models`` for ("targets", 0, "models")."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _near(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def _table_at(place: Sequence[object]) -> type[BaseModel] | None:
    """The table that ``place`` leads to: names of pieces and numbers of targets are steps on the way."""
    table: type[BaseModel] = Campaign
    for part in place:
        field = _fields(table).get(str(part))
        if field is None:  # a name the operator chose, or an index
            continue
        inner = _tables_in(field)
        if inner is None:
            return None
        table = inner
    return table


def _fields(table: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in table.model_fields.items()}


def _tables_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _tables_in(arg)) is not None), None)


def _known(place: Sequence[object]) -> list[str]:
    table = _table_at(place)
    return list(_fields(table)) if table is not None else []


def _described(place: Sequence[object]) -> str:
    others = [name for name in _known(place[:-1]) if name != place[-1]]
    return f" (beside it there may be {', '.join(others)})" if others else ""


def _literals(place: Sequence[object]) -> list[object]:
    table = _table_at(place[:-1])
    annotation = _fields(table).get(str(place[-1])) if table is not None else None
    return [arg for arg in get_args(annotation) if isinstance(arg, str)]


def _wrong_names(campaign: Campaign) -> list[str]:
    """Targets may only name what the campaign has."""
    attacks = [] if isinstance(campaign.attacks, str) else list(campaign.attacks)
    problems: list[str] = []
    if NO_DEFENCE in campaign.defences:
        problems.append(f"defences.{NO_DEFENCE}: this name stands for no defence; choose another.")
    for index, target in enumerate(campaign.targets):
        pieces = {
            "models": (target.models, list(campaign.models)),
            "images": (target.images, list(campaign.images)),
            "clients": (target.clients, list(campaign.clients)),
            "defences": (target.defences, [NO_DEFENCE, *campaign.defences]),
            "attackers": (target.attackers or [], list(campaign.attackers)),
            "attacks": (target.attacks or [], attacks),
        }
        for kind, (named, known) in pieces.items():
            for name in named:
                if name not in known:
                    listed = ", ".join(known) or f"none: attacks is '{AUTO}'"
                    missing = f"there is no [{kind}.{name}].{_near(name, known)}"
                    problems.append(f"targets[{index}].{kind}: {missing} There are: {listed}.")
    return problems


def _wrong_pieces(campaign: Campaign) -> list[str]:
    """Clients, defences, attacks and the verdict's policy are tried out: what they say is said with its key."""
    from leakscope.attacks.configure import configured
    from leakscope.audit.policy import policy_from
    from leakscope.client.build import CLIENTS, client_from
    from leakscope.client.registry import defence_from
    from leakscope.metrics import METRICS

    problems: list[str] = []

    def tried(key: str, make: Any, *given: object) -> None:
        try:
            make(*given)
        except LeakscopeError as error:
            problems.append(f"{key}: {error}")

    for name, client in campaign.clients.items():
        if "type" in client:
            tried(f"clients.{name}", client_from, {key: value for key, value in client.items() if key != UPDATE})
            if not isinstance(client.get(UPDATE, ""), str):
                problems.append(
                    f"clients.{name}.{UPDATE}: it is {client[UPDATE]!r}; it must be a captured update's folder."
                )
        else:
            given = ", ".join(client) or "nothing"
            problems.append(f"clients.{name}.type: this is missing ({', '.join(CLIENTS)}); there is {given}.")
    for name, table in campaign.defences.items():
        for index, step in enumerate(table.steps):
            tried(f"defences.{name}.steps[{index}]", defence_from, step)
    for name, attack in {} if isinstance(campaign.attacks, str) else campaign.attacks.items():
        tried(f"attacks.{name}", configured, attack.type, attack.options)
    for name in campaign.metrics or []:
        tried("metrics", METRICS.__getitem__, name)
    tried("verdict", policy_from, campaign.verdict)
    for name, attacker in campaign.attackers.items():
        if attacker.rung in ("public-data",) and not attacker.public:
            problems.append(f"attackers.{name}.public: the rung '{attacker.rung}' needs public images.")
    return problems
