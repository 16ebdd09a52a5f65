"""One case from images to record: the same seed the same bits, resumed, reused, or refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import leakscope as ls
from leakscope.audit.record import FAILED, RECORD, read_record
from leakscope.audit.run import Case, invert
from leakscope.errors import BadInput


def _case(**changes: object) -> Case:
    case = Case(
        model=ls.load_model("leakscope:mlp?hidden=16", image_size=12),
        batch=ls.bundled_batch(["astronaut", "cat"], size=12),
        client=ls.FedSGD(),
        threat=ls.threats.HONEST_SERVER,
        attack_name="inverting-gradients",
        attack=ls.attack("inverting-gradients", steps=6),
        seed=1,
    )
    return replace(case, **changes)  # pyright: ignore[reportArgumentType]


def _images(folder: Path) -> torch.Tensor:
    return load_file(folder / "reconstruction.safetensors")["images"]


@dataclass(frozen=True)
class _Attack:
    """An attack that does what a test tells it."""

    error: Exception | None = None

    def __call__(
        self, observation: ls.Observation, *, generator: torch.Generator, callback: object = None
    ) -> ls.Reconstruction:
        if self.error is not None:
            raise self.error
        shape = (observation.batch_size, *observation.input.shape)
        return ls.Reconstruction(
            images=torch.rand(shape, generator=generator),
            labels=torch.zeros(shape[0], dtype=torch.long),
            energy=0.0,
            outcome=ls.Outcome(status=ls.Status.FINISHED, message="done"),
        )


def test_the_same_case_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    first, second = (invert(_case(), tmp_path / name).record for name in "ab")
    other = invert(_case(seed=2), tmp_path / "c").record
    later = invert(_case(stream="batch/1"), tmp_path / "d").record
    assert first.run == second.run
    assert len({first.run, other.run, later.run}) == 3
    assert torch.equal(_images(tmp_path / "a"), _images(tmp_path / "b"))
    assert first.trace == second.trace
    assert not torch.equal(_images(tmp_path / "a"), _images(tmp_path / "c"))
    assert not torch.equal(_images(tmp_path / "a"), _images(tmp_path / "d"))


def test_a_run_that_ended_is_not_run_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def count(progress: ls.Progress) -> None:
        calls.append(progress.step)

    assert not invert(_case(), tmp_path, callback=count).reused
    assert len(calls) == 6
    again = invert(_case(), tmp_path, callback=count)
    assert again.reused
    assert again.record == read_record(tmp_path)
    assert len(calls) == 6
    assert not invert(_case(), tmp_path, fresh=True, callback=count).reused
    assert len(calls) == 12


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"threat": ls.threats.WITH_LABELS},
        {"client": ls.FedSGD(reduction="sum")},
        {"attack": ls.attack("inverting-gradients", steps=5)},
        {"batch": ls.bundled_batch(["astronaut", "coffee"], size=12)},
        {"model": ls.load_model("leakscope:mlp?hidden=16", image_size=12, seed=5)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_case_is_kept_out_of_the_folder(tmp_path: Path, changes: dict[str, object]) -> None:
    invert(_case(), tmp_path)
    before = (tmp_path / RECORD).read_bytes()
    with pytest.raises(BadInput, match="holds another run: inverting-gradients on leakscope:mlp"):
        invert(_case(**changes), tmp_path)
    assert (tmp_path / RECORD).read_bytes() == before
    assert not invert(_case(**changes), tmp_path, fresh=True).reused


def test_how_a_run_is_spread_over_processes_does_not_make_it_another(tmp_path: Path) -> None:
    invert(_case(), tmp_path)
    spread = replace(_case().attack, workers=2)  # pyright: ignore[reportArgumentType,reportCallIssue]
    assert invert(_case(attack=spread), tmp_path).reused


def test_an_interrupted_run_keeps_its_best_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = invert(_case(), tmp_path / "whole").record

    def stop(progress: ls.Progress) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    broken = invert(_case(), tmp_path / "broken", every=0.0, callback=stop).record
    assert broken.status == "interrupted"
    assert (tmp_path / "broken" / "reconstruction-1.png").exists()
    steps: list[int] = []
    resumed = invert(_case(), tmp_path / "broken", callback=lambda progress: steps.append(progress.step)).record
    assert steps[0] == 4  # the step that was broken off is done again, those before it are not
    assert resumed.status == "finished"
    assert resumed.trace == whole.trace
    assert torch.equal(_images(tmp_path / "whole"), _images(tmp_path / "broken"))


def test_fresh_forgets_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    invert(_case(), tmp_path)
    (tmp_path / "checkpoint" / "notes.txt").write_text("mine")
    steps: list[int] = []
    invert(_case(), tmp_path, fresh=True, callback=lambda progress: steps.append(progress.step))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "checkpoint" / "notes.txt").exists()


def test_a_crash_is_recorded_then_raised_and_tried_again(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        invert(_case(attack=_Attack(RuntimeError("out of memory"))), tmp_path)
    record = read_record(tmp_path)
    assert (record.status, record.message, record.pictures) == (FAILED, "Failed: RuntimeError: out of memory", ())
    assert record.error is not None
    assert record.error.startswith("Traceback")
    assert record.error.rstrip().endswith("RuntimeError: out of memory")
    with pytest.raises(BadInput, match="another run"):
        invert(_case(), tmp_path)
    with pytest.raises(RuntimeError):
        invert(_case(attack=_Attack(RuntimeError("out of memory"))), tmp_path)


def test_misuse_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(ls.NotApplicable):
        invert(_case(attack=_Attack(ls.NotApplicable("not here"))), tmp_path)
    assert not (tmp_path / RECORD).exists()


def test_an_attack_without_a_loop_is_recorded_as_well(tmp_path: Path) -> None:
    record = invert(_case(attack=_Attack(), attack_name="closed"), tmp_path).record
    assert (record.status, record.trace, record.energies, record.restart) == ("finished", (), (), None)
    assert record.settings == {"type": "_Attack", "error": None}
