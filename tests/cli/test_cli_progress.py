"""The bar: what it shows of a run, resumed, restarted or spread over processes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from leakscope.cli import progress as module
from leakscope.cli.progress import Watch, clock
from leakscope.types import Progress


class _Time:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Time:
    fake = _Time()
    monkeypatch.setattr(module, "time", fake)
    return fake


def _at(step: int, *, restart: int = 0, restarts: int = 1, seconds: float = 0.0) -> Progress:
    return Progress(step=step, steps=100, loss=0.5, best=0.25, seconds=seconds, restart=restart, restarts=restarts)


def _log(time: _Time, watch_options: dict[str, object], *news: tuple[float, Progress]) -> list[str]:
    """The lines written where there is no terminal."""
    console = Console(file=io.StringIO(), width=200)
    with Watch(console, title="dlg", **watch_options) as watch:  # pyright: ignore[reportArgumentType]
        for now, one in news:
            time.now = now
            watch(one)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_log_gets_a_line_every_half_minute(time: _Time) -> None:
    lines = _log(time, {}, *((100.0 + step, _at(step)) for step in range(1, 101)))
    assert len(lines) == 3
    assert lines[0] == "dlg: step 30/100, loss 0.5, best 0.25, 1:10 left"
    assert lines[2].endswith("step 90/100, loss 0.5, best 0.25, 10 s left")


def test_a_resumed_run_is_not_taken_for_a_fast_one(time: _Time) -> None:
    lines = _log(time, {}, (101, _at(50)), (131, _at(60)))
    assert lines == ["dlg: step 60/100, loss 0.5, best 0.25, 2:00 left"]  # 3 s a step, 40 to go


def test_restarts_one_after_the_other_count_as_one_way(time: _Time) -> None:
    # The first ended early, at step 20: when the second begins, it is behind us all the same.
    lines = _log(time, {}, (101, _at(1, restarts=2)), (120, _at(20, restarts=2)), (140, _at(1, restart=1, restarts=2)))
    assert lines[0].startswith("dlg: step 101/200")
    assert "restart 2/2" in lines[0]


def test_restarts_side_by_side_are_added_up(time: _Time) -> None:
    lines = _log(
        time, {"jobs": 2}, (101, _at(10, restarts=2)), (102, _at(10, restart=1, restarts=2)), (140, _at(30, restarts=2))
    )
    assert lines[0].startswith("dlg: step 40/200")


def test_a_budget_bounds_the_time_left(time: _Time) -> None:
    lines = _log(time, {"seconds": 50.0}, (101, _at(1, seconds=1)), (141, _at(5, seconds=41)))
    assert lines[0].endswith(", 9 s left")


def test_a_terminal_gets_a_bar(time: _Time) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Watch(console, title="dlg") as watch:
        for step in range(1, 101):
            time.now += 1
            watch(_at(step))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "100/100" in text
    assert "loss 0.5, best 0.25" in text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (61, "1:01"), (3750, "1:02:30")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
