"""Records: strict JSON, nothing lost on the way to disk and back, bad files refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from leakscope.audit.record import RECORD, SCHEMA, Picture, Record, Target, read_record
from leakscope.errors import BadInput


def _record() -> Record:
    return Record(
        run="abc",
        status="diverged",
        message="Not a number at step 3: nothing was ever measured.",
        target=Target(name="leakscope:mlp", fingerprint="ff", parameters=12, shape=(3, 8, 9), num_classes=10),
        client={"type": "FedSGD", "mode": "train"},
        threat="honest server",
        knows=("batch size",),
        attack="dlg",
        settings={"steps": 3, "lr": 1.0, "nested": {"list": [1, 2.5, None, True]}},
        seed=2**62,
        stream="batch/0",
        created="2025-01-01T00:00:00+00:00",
        versions={"leakscope": "0", "torch": "2", "python": "3"},
        energy=math.inf,
        energies=(math.inf, 0.1 + 0.2),
        restart=1,
        evidence={"labels": "joint", "error": math.nan},
        scores={"metrics": {"psnr": ["inf", 12.5]}, "notes": {}},
        pictures=(Picture(name="a “b”.png", label=1, recovered_label=2, original="o.png", reconstruction="r.png"),),
        trace=((1.0, math.nan), (0.1 + 0.2,)),
    )


def _write(folder: Path, text: str) -> Path:
    (folder / RECORD).write_text(text, encoding="utf-8")
    return folder


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = _record()
    back = read_record(_write(tmp_path, record.to_text()))
    assert math.isnan(back.trace[0][1])
    assert back.evidence["error"] == "nan"  # evidence is free-form: what is not a number stays as it was written
    # NaN differs from itself; everything else must be equal to the last bit.
    plain = replace(back, trace=(), evidence={})
    assert plain == replace(record, trace=(), evidence={})
    assert back.trace[1] == record.trace[1]
    assert back.energies == (math.inf, 0.1 + 0.2)
    assert back.metric("psnr") == [math.inf, 12.5]
    assert back.metric("lpips") is None


def test_the_text_is_strict_json_with_non_finite_numbers_as_strings() -> None:
    def refuse(constant: str) -> object:
        raise AssertionError(constant)

    data = json.loads(_record().to_text(), parse_constant=refuse)
    assert data["energy"] == "inf"
    assert data["trace"] == [[1.0, "nan"], [0.1 + 0.2]]
    assert next(iter(data)) == "schema"


def test_lists_of_numbers_stay_on_one_line() -> None:
    record = replace(_record(), trace=((0.5,) * 1000, (0.25,) * 1000))
    assert len(record.to_text().splitlines()) < 100


def test_what_is_no_plain_value_is_refused() -> None:
    with pytest.raises(TypeError, match="plain values only"):
        replace(_record(), settings={"x": object()}).to_text()


def test_fields_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    data = json.loads(_record().to_text())
    data["verdict"] = "leaks"
    assert read_record(_write(tmp_path, json.dumps(data))).run == "abc"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a record"),
        ("[1, 2]", "no schema version"),
        ('{"run": "x"}', "no schema version"),
        (f'{{"schema": {SCHEMA + 1}}}', "Update leakscope"),
        (f'{{"schema": {SCHEMA}}}', "is damaged"),
    ],
)
def test_bad_files_are_refused_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_record(_write(tmp_path, text))


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no record\.json"):
        read_record(tmp_path)
