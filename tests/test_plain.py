"""Plain data as values of declared types, from files and from what people type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from torch import Tensor

from leakscope.plain import Mismatch, accepts, convert


@pytest.mark.parametrize(
    ("value", "text", "kind", "expected"),
    [
        (3, "3", int, 3),
        (3, "3", float, 3.0),
        (True, "True", bool, True),
        ("a=b", "a=b", str, "a=b"),
        ("x/y", "x/y", Path, Path("x/y")),
        (None, "none", float | None, None),
        (2, "2", int | None, 2),
        ("b", "b", Literal["a", "b"], "b"),
        ([1, 2], "1, 2", tuple[float, ...], (1.0, 2.0)),
        ([1, "x"], "1,x", tuple[int, str], (1, "x")),
        (["x"], "x", list[str], ["x"]),
        ([], "", tuple[str, ...], ()),
    ],
)
def test_files_and_texts_give_the_same_values(value: object, text: str, kind: Any, expected: object) -> None:
    assert accepts(kind)
    for found in (convert(value, kind), convert(text, kind, text=True)):
        assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", int, "it must be a whole number"),
        (True, int, "it must be a whole number"),
        (False, float, "it must be a number"),
        (float("inf"), float, "it must be a finite number"),
        (1, bool, "it must be true or false"),
        (1, Literal["a", "b"], "accepted are a, b"),
        (1.5, int | None, "it must be a whole number or none"),
        ("abc", tuple[str, ...], "it must be a list, each a text"),
        ([1, 2], tuple[int, int, int], "it must be a list of 3: a whole number, a whole number, a whole number"),
        ([1, "x"], tuple[int, ...], "it must be a whole number"),
    ],
)
def test_what_does_not_fit_says_what_would(value: object, kind: Any, expected: str) -> None:
    with pytest.raises(Mismatch) as refusal:
        convert(value, kind)
    assert str(refusal.value) == expected


def test_tensors_and_functions_are_for_python_alone() -> None:
    assert not accepts(Tensor)
    assert not accepts(Tensor | None)
    assert not accepts(tuple[Tensor, ...])
    assert accepts(Tensor | str)
