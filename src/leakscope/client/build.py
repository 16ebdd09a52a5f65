"""A client from plain data, as a campaign file or a command line gives it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast, get_type_hints

from leakscope.client.aggregation import SecureAggregation
from leakscope.client.augmentation import Augmentation, Augmented
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import Adam, LocalOptimiser, Sgd
from leakscope.client.split import Split
from leakscope.errors import BadInput, UnknownName
from leakscope.plain import Mismatch, convert
from leakscope.types import ClientProtocol

__all__ = ["CLIENTS", "OPTIMISERS", "client_from"]

T = TypeVar("T")

CLIENTS: Final[Mapping[str, type[FedSGD | FedAvg | Split]]] = {"fedsgd": FedSGD, "fedavg": FedAvg, "split": Split}
"""What ``type`` may be. Options are the fields of the class; those of a FedAvg client's optimiser stand beside them."""

OPTIMISERS: Final[Mapping[str, tuple[type[Sgd | Adam], Mapping[str, object]]]] = {
    "sgd": (Sgd, {}),
    "adam": (Adam, {"decoupled": False}),
    "adamw": (Adam, {"decoupled": True, "weight_decay": 0.01}),
}
"""What ``optimiser`` may be: the class, and what it is given where nothing else is said."""


_WRAPPERS: Final = ("augmentation", "aggregation")


def client_from(settings: Mapping[str, object]) -> ClientProtocol:
    """The client described by ``settings``, its ``type`` first of all (``fedsgd`` if none is given).

    ``{"type": "fedavg", "steps": 5, "batch_size": 4, "optimiser": "sgd", "lr": 0.1, "mode": "train"}``. An option that
    the client does not have is refused, and so is a value of the wrong kind. Two tables may stand beside the options:
    ``augmentation`` (``{"flip": 0.5, "pad": 4}``) and ``aggregation`` (``{"sizes": [4, 4]}``, one for each client).
    """
    tables = {key: settings[key] for key in _WRAPPERS if key in settings}
    for key, table in tables.items():
        if not isinstance(table, Mapping):
            raise BadInput(f"'{key}' is {table!r}; it must be a table of options.")
    client = _plain({key: value for key, value in settings.items() if key not in _WRAPPERS})
    if "augmentation" in tables:
        options = cast(Mapping[str, object], tables["augmentation"])
        client = Augmented(client=client, augmentation=_filled(Augmentation, options, "augmentation"))
    if "aggregation" in tables:
        options = cast(Mapping[str, object], tables["aggregation"])
        client = _filled(SecureAggregation, options, "aggregation", client=client)
    return client


def _plain(options: dict[str, object]) -> ClientProtocol:
    kind = options.pop("type", "fedsgd")
    if not isinstance(kind, str) or kind not in CLIENTS:
        raise UnknownName("client", str(kind), CLIENTS)
    made, name = CLIENTS[kind], f"a {kind} client"
    if made is not FedAvg:
        return _filled(made, options, name)
    # The optimiser's options stand beside the client's own.
    chosen = options.pop("optimiser", "sgd")
    if not isinstance(chosen, str) or chosen not in OPTIMISERS:
        raise UnknownName("optimiser", str(chosen), OPTIMISERS)
    optimiser, defaults = OPTIMISERS[chosen]
    own = _names(made) - {"optimiser"}
    theirs = _names(optimiser) - {"decoupled"}
    for key in options:
        if key not in own | theirs:
            elsewhere = [n for n, (c, _) in OPTIMISERS.items() if key in _names(c) - {"decoupled"}]
            if elsewhere:
                raise BadInput(f"'{key}' is no option of {chosen}, but of {' and '.join(elsewhere)}.")
            raise UnknownName(f"option of {name} with {chosen}", key, own | theirs)
    stepping = {key: value for key, value in options.items() if key in theirs}
    local: LocalOptimiser = _filled(optimiser, {**defaults, **stepping}, chosen)
    mine = {key: value for key, value in options.items() if key in own}
    return dataclasses.replace(_filled(FedAvg, mine, name), optimiser=local)


def _names(made: type) -> set[str]:
    return {field.name for field in dataclasses.fields(made)}


def _filled(made: Callable[..., T], options: Mapping[str, object], name: str, **given: object) -> T:
    """``made`` from these options, each checked against the type of its field, and from what is ``given`` already."""
    hints = get_type_hints(made)
    fields = {field.name: field for field in dataclasses.fields(cast(Any, made)) if field.name not in given}
    for key in options:
        if key not in fields:
            raise UnknownName(f"option of {name}", key, fields)
    needed = [
        key
        for key, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [key for key in needed if key not in options]
    if missing:
        raise BadInput(f"{name[0].upper()}{name[1:]} needs {' and '.join(missing)}.")
    return made(**given, **{key: _value(key, value, hints[key], name) for key, value in options.items()})


def _value(key: str, value: object, kind: Any, name: str) -> object:
    try:
        return convert(value, kind)
    except Mismatch as problem:
        raise BadInput(f"'{key}' of {name} is {value!r}; {problem}.") from problem
