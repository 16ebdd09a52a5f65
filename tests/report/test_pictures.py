"""Contact sheets and loss curves: drawn from the record and its pictures alone, with the right pixels in place."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leakscope.audit.record import RECORD, Picture, Record, Target
from leakscope.errors import BadInput
from leakscope.report.caption import client_line, number, picture_caption, run_line, title
from leakscope.report.pictures import contact_sheet, loss_curve, overview

RED, BLUE = (250, 10, 10), (10, 10, 250)


def _record(count: int = 1, **changes: object) -> Record:
    record = Record(
        run="r",
        status="finished",
        message="All 2 steps done.",
        target=Target(name="leakscope:mlp", fingerprint="f", parameters=1, shape=(3, 8, 8), num_classes=10),
        client={"type": "FedSGD", "mode": "train", "share_buffers": True},
        threat="honest server",
        knows=(),
        attack="dlg",
        settings={},
        seed=0,
        stream="batch/0",
        created="2025-01-01T00:00:00+00:00",
        versions={},
        energy=0.01,
        steps=120,
        seconds=31.4,
        restart=0,
        scores={"metrics": {"psnr": ["inf"] * count, "ssim": [-0.0286] * count, "lpips": ["nan"] * count}},
        pictures=tuple(
            Picture(name=f"p{i}", label=i, recovered_label=1, original=f"o{i}.png", reconstruction=f"r{i}.png")
            for i in range(count)
        ),
        trace=((1.0, 0.1, 0.01),),
    )
    return replace(record, **changes)  # pyright: ignore[reportArgumentType]


def _folder(path: Path, record: Record, size: tuple[int, int] = (8, 8)) -> Path:
    path.mkdir(exist_ok=True)
    for picture in record.pictures:
        Image.new("RGB", size, RED).save(path / picture.original)
        Image.new("RGB", size, BLUE).save(path / picture.reconstruction)
    (path / RECORD).write_text(record.to_text(), encoding="utf-8")
    return path


def _count(path: Path, colour: tuple[int, int, int]) -> int:
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    return int((pixels == np.array(colour)).all(-1).sum())


def test_every_pair_is_on_the_sheet_enlarged_without_smoothing(tmp_path: Path) -> None:
    for count in (1, 2, 5, 9, 25):
        sheet = contact_sheet(_folder(tmp_path / str(count), _record(count)))
        assert sheet.name == "contact-sheet.png"
        # Tiles of 8 px are enlarged 24 times, and nothing covers or blurs them: not one pixel of another colour.
        assert _count(sheet, RED) == _count(sheet, BLUE) == count * 192 * 192


def test_the_original_is_on_the_left(tmp_path: Path) -> None:
    with Image.open(contact_sheet(_folder(tmp_path, _record()))) as opened:
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    assert (
        np.abs(pixels - RED).sum(-1).argmin() % pixels.shape[1]
        < np.abs(pixels - BLUE).sum(-1).argmin() % pixels.shape[1]
    )


@pytest.mark.parametrize(("size", "tile"), [((224, 224), 224 * 224), ((1000, 500), 448 * 224), ((5, 10), 100 * 200)])
def test_tiles_are_never_too_small_and_never_huge(tmp_path: Path, size: tuple[int, int], tile: int) -> None:
    assert _count(contact_sheet(_folder(tmp_path, _record(), size)), RED) == tile


def test_the_worst_names_and_titles_stay_on_the_sheet(tmp_path: Path) -> None:
    record = _record(2)
    long = replace(record.pictures[0], name="x" * 300)
    record = replace(record, pictures=(long, record.pictures[1]), threat="a very long threat model " * 20)
    with Image.open(contact_sheet(_folder(tmp_path, record))) as sheet:
        assert sheet.width < 1000
        border = np.asarray(sheet.convert("RGB"))[:, -20:]
    assert (border == 255).all()


def test_an_overview_holds_all_records(tmp_path: Path) -> None:
    parts = [_folder(tmp_path / name, _record(count)) for name, count in (("a", 1), ("b", 3))]
    assert _count(overview(tmp_path, parts), RED) == 4 * 192 * 192


def test_captions_say_what_happened() -> None:
    record = _record(2)
    assert title(record) == "dlg on leakscope:mlp"
    assert client_line(record) == "FedSGD, batch of 2, train mode, buffers shared, honest server"
    assert run_line(record) == "120 steps in 31 s, finished"
    assert (
        run_line(replace(record, trace=((1.0,), (1.0,)), seconds=7200.0))
        == "120 steps over 2 restarts in 2.0 h, finished"
    )
    assert run_line(replace(record, steps=0, seconds=0.24)) == "0.2 s, finished"
    assert picture_caption(record, 0) == ["p0 (label 0, taken for 1)", "PSNR ∞ dB   SSIM −0.029"]
    assert picture_caption(record, 1)[0] == "p1 (label 1, recovered)"


@pytest.mark.parametrize(
    ("value", "text"), [(-0.0001, "0.000"), (-0.0286, "−0.029"), (math.inf, "∞"), (-math.inf, "−∞"), (17.5, "17.500")]
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value, ".3f") == text


def test_a_run_without_pictures_or_losses_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path, _record(0, error="RuntimeError: boom", trace=()))
    with pytest.raises(BadInput, match="no pictures: RuntimeError: boom"):
        contact_sheet(folder)
    with pytest.raises(BadInput, match="no losses"):
        loss_curve(folder)
    with pytest.raises(BadInput, match="no record"):
        contact_sheet(tmp_path / "nowhere")


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path, _record())
    (folder / "r0.png").write_text("damaged")
    with pytest.raises(BadInput, match=r"r0\.png' cannot be read"):
        contact_sheet(folder)


@pytest.mark.parametrize(
    "trace",
    [
        ((1.0, 0.1, 0.01),),
        ((0.5,),),
        ((1.0, 0.2), (0.9, 0.1, 0.01), (2.0,)),
        ((1.0, math.nan),),
        ((math.nan,),),
        ((1.0, -0.5),),
        ((0.0, 0.0),),
        ((1e3, 1e-9),),
        ((), (1.0, 0.5)),
    ],
)
@pytest.mark.parametrize("energy", [0.01, math.inf])
def test_any_trace_gives_a_curve(tmp_path: Path, trace: tuple[tuple[float, ...], ...], energy: float) -> None:
    curve = loss_curve(_folder(tmp_path, _record(trace=trace, energy=energy, restart=len(trace) - 1)))
    with Image.open(curve) as picture:
        assert picture.size == (1080, 630)


def test_the_kept_restart_is_drawn_over_the_others(tmp_path: Path) -> None:
    rows = tuple(tuple(1.0 / (step + 1) for step in range(50)) for _ in range(4))
    blue = (31, 78, 140)
    seen = [_count(loss_curve(_folder(tmp_path, _record(trace=rows, restart=kept))), blue) for kept in range(4)]
    alone = _count(loss_curve(_folder(tmp_path, _record(trace=rows[:1], restart=0))), blue)
    assert min(seen) > 0.9 * alone  # the rows coincide: were the kept one below, grey would hide it


def test_no_half_drawn_picture_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path, _record())

    def fails(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", fails)
    with pytest.raises(BadInput, match="No space left"):
        contact_sheet(folder)
    assert not list(folder.glob(".*"))
