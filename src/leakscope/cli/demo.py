"""``leakscope demo``: three targets, from wide open to tough, in about a minute, with nothing but the package."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.console import OUT, notice, say, where
from leakscope.cli.options import SEEDS
from leakscope.cli.running import run_cases
from leakscope.cli.tables import cell

if TYPE_CHECKING:
    from leakscope.audit.record import Record
    from leakscope.audit.run import Case

__all__ = ["demo"]

_SECONDS: Final = 35.0
"""The most time one target may take, so that a slow machine shows something as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """One target of the demonstration."""

    folder: str
    title: str
    model: str
    photographs: tuple[str, ...]
    attack: str
    mode: Literal["train", "eval"] = "eval"
    options: dict[str, int] = field(default_factory=dict[str, int])


_SCENES: Final = (
    _Scene(
        folder="1-mlp",
        title="A fully connected network, a batch of four photographs",
        model="leakscope:mlp",
        photographs=("astronaut", "cat", "coffee", "raccoon"),
        attack="inverting-gradients",
        options={"steps": 300},
    ),
    _Scene(
        folder="2-lenet",
        title="A small convolutional network, one photograph",
        model="leakscope:lenet-dlg",
        photographs=("cat",),
        attack="dlg",
        options={"steps": 120},
    ),
    _Scene(
        folder="3-resnet",
        title="A residual network that trains with BatchNorm, a batch of four photographs",
        model="leakscope:resnet20",
        photographs=("astronaut", "cat", "coffee", "raccoon"),
        attack="inverting-gradients",
        mode="train",
        options={"steps": 150},
    ),
)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder; an earlier demo in it is replaced.")] = Path(
        "out/demo"
    ),
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of weights and attacks.")] = 0,
) -> None:
    """Attack three clients that train on photographs, and show what a curious server gets to see: about a minute.

    Two of the clients give their photographs away; the third holds out against this attack.
    """
    from leakscope.audit.store import ensure_writable
    from leakscope.report.pictures import overview
    from leakscope.types import Status

    ensure_writable(out)
    folders = [out / scene.folder for scene in _SCENES]
    with _one_thread():
        cases = [_case(scene, seed) for scene in _SCENES]
        titles = [f"{number}. {scene.title}" for number, scene in enumerate(_SCENES, start=1)]
        records = run_cases(list(zip(cases, folders, strict=True)), fresh=True, titles=titles, brief=True)
    sheet = overview(out, folders[: len(records)])
    OUT.print()
    OUT.print(_summary(records))
    say("The third is no proof of safety: more steps, more restarts or another attack may still get through.")
    OUT.print()
    for folder in folders[: len(records)]:
        where("record", folder / "record.json")
    where("contact sheet", sheet)
    if records[-1].status == Status.INTERRUPTED:
        notice("Interrupted: the remaining targets were left out.")
        raise typer.Exit(130)


def _case(scene: _Scene, seed: int) -> Case:
    from dataclasses import replace

    from leakscope.attacks import Optimisation, attack
    from leakscope.audit.run import Case
    from leakscope.client import FedSGD, threats
    from leakscope.models import load_model
    from leakscope.testing.bundled import bundled_batch

    model = load_model(scene.model, seed=seed)
    made = attack(scene.attack, **scene.options)
    if isinstance(made, Optimisation):
        made = replace(made, stop=replace(made.stop, seconds=_SECONDS))
    return Case(
        model=model,
        batch=bundled_batch(scene.photographs, size=model.input.shape[1]),
        client=FedSGD(mode=scene.mode),
        threat=threats.HONEST_SERVER,
        attack_name=scene.attack,
        attack=made,
        seed=seed,
    )


def _summary(records: Sequence[Record]) -> Table:
    """What came back from each target, in one row."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("target", "client", "attack"):
        table.add_column(heading, no_wrap=True)
    for heading in ("PSNR in dB", "identified"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        hits = record.metric("iip") or []
        table.add_row(
            Text(record.target.name.partition(":")[2]),
            f"{record.client['mode']}, batch of {len(record.pictures)}",
            record.attack,
            _span(record.metric("psnr")),
            f"{sum(hits):.0f} of {len(hits)}",
        )
    return table


def _span(values: list[float] | None) -> str:
    if not values:
        return ""
    low, high = cell(min(values)), cell(max(values))
    return low if low == high else f"{low} to {high}"


@contextmanager
def _one_thread() -> Generator[None]:
    """These networks are too small to gain from several threads, and lose much where other programs are running."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
