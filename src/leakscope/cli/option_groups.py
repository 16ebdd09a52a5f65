"""Options that several commands take together: a dataclass whose fields become one option each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, cast, get_type_hints

__all__ = ["with_options"]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: each parameter of the command that is a dataclass becomes one option for each of its fields."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], set[str]]] = {}
    for parameter in signature.parameters.values():
        if not is_dataclass(parameter.annotation):
            parameters.append(parameter)
            continue
        group = cast("type[Any]", parameter.annotation)
        hints = get_type_hints(group, include_extras=True)
        groups[parameter.name] = (group, {field.name for field in fields(group)})
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=field.default, annotation=hints[field.name]
            )
            for field in fields(group)
        ]

    def run(**given: Any) -> None:
        made = {
            name: group(**{key: given.pop(key) for key in list(given) if key in names})
            for name, (group, names) in groups.items()
        }
        command(**made, **given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    cast(Any, run).__signature__ = signature.replace(parameters=parameters)
    return run
