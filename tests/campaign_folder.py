"""A campaign's folder made by hand, for the tests of reports: no attack runs, every kind of cell is there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from leakscope.audit.cell import CELLS, MANIFEST, Cell, Manifest, Role
from leakscope.audit.findings import (
    FINDINGS,
    Attempt,
    Evidence,
    Finding,
    Findings,
    ImageFinding,
    Level,
    SelfTest,
)
from leakscope.audit.record import RECORD, Picture, Record, Target

HOSTILE = "<script>alert('x')</script>\"'&\u202e<img src=x onerror=alert(1)>"
"""What a careless page would run."""
NAMES = ("alice-ward-3.png", "bob-ward-7.png")
"""Names that must not be in a redacted report."""
TARGETS = {
    # model, client, defence: verdict, cost
    ("vit", "sgd", "none"): Level.EXACT,
    ("vit", "sgd", "noise"): Level.TRACES,
    ("vit", "sgd", "strong-noise"): Level.NOTHING,
    ("convnet", "sgd", "none"): Level.RECOGNISABLE,
    ("convnet", "train-mode", "none"): Level.NOTHING,
    ("resnet", "sgd", "none"): Level.UNKNOWN,
}
_SCORES = {
    Level.EXACT: (58.3, 0.999),
    Level.RECOGNISABLE: (21.4, 0.72),
    Level.TRACES: (14.2, 0.31),
    Level.NOTHING: (9.6, 0.03),
}
_COST = {"noise": {"accuracy_lost": 0.012, "bytes": 1.0}, "strong-noise": {"accuracy_lost": 0.083, "bytes": 1.0}}
Mark = Callable[[str], str]


def build(folder: Path, *, hostile: bool = False, size: int = 24, sources: tuple[Path, ...] = ()) -> Path:
    """Write a finished campaign with six set-ups below ``folder``; ``hostile`` puts markup into every free text.

    Pictures are drawn, or taken from ``sources``. Returns ``folder``.
    """
    mark: Mark = (lambda text: text + HOSTILE) if hostile else (lambda text: text)
    names = tuple(mark(name) for name in NAMES)
    truth = [_picture(size, index, sources) for index in range(len(names))]
    cells: list[Cell] = []
    findings: list[Finding] = []
    for (model, client, defence), level in TARGETS.items():
        own = _target_cells(model, client, defence, mark)
        cells += own.values()
        for kind, cell in own.items():
            _write_cell(folder, cell, kind, level, truth, names, mark)
        findings.append(_finding(own, level, names, mark))
    cells = list({cell.key: cell for cell in cells}.values())
    manifest = Manifest(
        name=mark("ward photographs"),
        created="2026-01-02T03:04:05+00:00",
        campaign={
            "name": mark("ward photographs"),
            "question": mark("Could the coordinating server see our patients' photographs?"),
            "seeds": [0],
            "models": {"vit": {"name": "leakscope:april-a"}, mark("odd"): {"name": mark("x")}},
            "images": {"photos": {"from": [f"/secret/{NAMES[0]}"], "labels": [3, 4], "batch_size": 2}},
            "targets": [{"models": ["vit"], "images": ["photos"], "clients": ["sgd"]}],
        },
        cells=tuple(cells),
    )
    findings.sort(key=lambda finding: -finding.level.severity)
    verdicts = Findings(
        campaign=manifest.name,
        policy={"recognisable_ssim": 0.5, "note": mark("p below 0.05")},
        done=len(cells),
        total=len(cells),
        findings=tuple(findings),
    )
    (folder / MANIFEST).write_text(manifest.to_text(), encoding="utf-8")
    write_findings(folder, verdicts)
    return folder


def write_findings(folder: Path, findings: Findings) -> None:
    (folder / FINDINGS).write_text(json.dumps(_plain(asdict(findings))), encoding="utf-8")


def _target_cells(model: str, client: str, defence: str, mark: Mark) -> dict[str, Cell]:
    attack = Cell(
        role=Role.ATTACK,
        target=mark("/".join([model, "photos", client, *([] if defence == "none" else [defence])])),
        model_name=model,
        images_name="photos",
        client_name=client,
        defence_name=defence,
        attacker=mark("server"),
        attack_name=mark("inverting-gradients"),
        model={"name": "leakscope:april-a" if model == "vit" else f"leakscope:{model}64"},
        images={"from": [f"/secret/{NAMES[0]}"], "batch_size": 2},
        batch=0,
        client={"type": "fedsgd", "mode": client},
        defences=()
        if defence == "none"
        else ({"type": "gaussian-noise", "scale": 0.1 if defence == "noise" else 1.0},),
        knows=("batch size", "hyper-parameters"),
        attack="inverting-gradients",
        options={"steps": 500},
        files={f"/secret/{NAMES[0]}": "d1935700"},
    )
    refused = replace(attack, attack="linear-layer", attack_name=mark("linear-layer"), options={})
    made = {
        "attack": attack,
        "control": replace(attack, role=Role.CONTROL),
        "self-test": replace(attack, role=Role.SELF_TEST, target="self-test", attacker="", defences=()),
        "refused": refused,
        "analysis": replace(attack, role=Role.IDENTIFIABILITY, attack="", attack_name="", options={}, attacker=""),
    }
    if model == "resnet":
        made["failed"] = replace(attack, attack="dlg", attack_name="dlg")
    return made


def _write_cell(
    folder: Path, cell: Cell, kind: str, level: Level, truth: list[np.ndarray], names: tuple[str, ...], mark: Mark
) -> None:
    place = folder / CELLS / cell.key
    place.mkdir(parents=True, exist_ok=True)
    record = Record(
        run="0123abcd",
        status={"refused": "refused", "failed": "failed"}.get(kind, "finished"),
        message=mark({"refused": "The model has no linear layer at its input."}.get(kind, "All 500 steps done.")),
        target=Target(
            name=mark(str(cell.model["name"])), fingerprint="f00d", parameters=12345, shape=(3, 24, 24), num_classes=10
        ),
        client=cell.client,
        threat=mark("honest server"),
        knows=cell.knows,
        attack=cell.attack,
        settings={"steps": 500, "note": mark("a setting")},
        seed=0,
        stream="batch/0",
        created="2026-01-02T03:05:00+00:00",
        versions={"leakscope": "0.1.0", "torch": mark("2.13")},
        cell=cell.key,
        role=str(cell.role),
        defences=cell.defences,
    )
    if kind == "failed" or (kind == "attack" and level is Level.UNKNOWN):
        trace = f'Traceback (most recent call last):\n  File "/secret/{NAMES[0]}"\nRuntimeError: boom {mark("")}'
        record = replace(record, status="failed", message=f"Failed: boom on {NAMES[0]}", error=trace)
    elif kind in ("attack", "control", "self-test"):
        shown = {"control": Level.NOTHING, "self-test": Level.EXACT}.get(kind, level)
        record = _with_pictures(record, place, shown, truth, names)
        if kind == "attack" and cell.defence_name in _COST:
            record = replace(record, evidence={"cost": _COST[cell.defence_name]})
    (place / RECORD).write_text(record.to_text(), encoding="utf-8")


def _with_pictures(
    record: Record, place: Path, level: Level, truth: list[np.ndarray], names: tuple[str, ...]
) -> Record:
    psnr, ssim = _SCORES[level]
    for index, original in enumerate(truth):
        Image.fromarray(original).save(place / f"original-{index}.png")
        Image.fromarray(_degraded(original, level, index)).save(place / f"reconstruction-{index}.png")
    steps = np.arange(400)
    return replace(
        record,
        energy=0.01,
        steps=500,
        seconds=12.5,
        restart=1,
        energies=(0.03, 0.01),
        scores={
            "images": list(names),
            "metrics": {"psnr": [psnr, "inf" if level is Level.EXACT else psnr - 1], "ssim": [ssim, ssim]},
            "assignment": [0, 1],
            "labels_correct": [True, False],
            "higher_is_better": {"psnr": True, "ssim": True},
        },
        pictures=tuple(
            Picture(
                name=name,
                label=73 + index,
                recovered_label=73,
                original=f"original-{index}.png",
                reconstruction=f"reconstruction-{index}.png",
            )
            for index, name in enumerate(names)
        ),
        trace=tuple(tuple((scale * np.exp(-steps / 60) + 0.003).tolist()) for scale in (1.0, 0.7)),
    )


def _finding(cells: dict[str, Cell], level: Level, names: tuple[str, ...], mark: Mark) -> Finding:
    attack = cells["attack"]
    known = level is not Level.UNKNOWN
    psnr, ssim = _SCORES.get(level, (math.nan, math.nan))
    images = tuple(
        ImageFinding(
            name=name,
            level=level,
            reason=mark(
                f"Of {name}: the reconstruction is {'closer than' if known else 'not there beside'} its control."
            ),
            cell=attack.key if known else "",
            index=index,
            attack=mark("inverting-gradients") if known else "",
            scores={"psnr": psnr, "ssim": ssim} if known else {},
            control={"psnr": 9.1, "ssim": 0.02} if known else {},
            rank=1 if level.severity > 1 else 23,
            gallery=64,
            p_value=0.0156 if level.severity > 1 else 0.36,
        )
        for index, name in enumerate(names)
    )
    leaked = float(level.severity >= Level.RECOGNISABLE.severity)
    attempts = [
        Attempt(
            cell=cell.key,
            attack=cell.attack_name,
            role=str(cell.role),
            seed=0,
            status="refused" if kind == "refused" else ("finished" if known else "failed"),
            message=mark("The model has no linear layer." if kind == "refused" else "All 500 steps done."),
            level=level if kind == "attack" and known else None,
            steps=500,
            seconds=12.5,
        )
        for kind, cell in cells.items()
        if cell.role in (Role.ATTACK, Role.CONTROL)
    ]
    summaries = {
        Level.EXACT: "Both photographs came back pixel for pixel.",
        Level.RECOGNISABLE: "Both photographs can be recognised.",
        Level.TRACES: "Outlines and colours came back, not enough to recognise anyone.",
        Level.NOTHING: "Nothing came back that the attack would not have drawn anyway.",
        Level.UNKNOWN: "The attack failed, so nothing can be said.",
    }
    return Finding(
        target=attack.target,
        model=mark(attack.model_name),
        images_name="photos",
        client=mark(attack.client_name),
        defence=attack.defence_name,
        attacker=attack.attacker,
        level=level,
        summary=mark(summaries[level]),
        images=images,
        leaked=leaked,
        interval=(0.34, 1.0) if leaked else (0.0, 0.66),
        evidence=Evidence(
            attempts=tuple(attempts),
            self_tests=(
                SelfTest(
                    cell=cells["self-test"].key,
                    attack=mark("inverting-gradients"),
                    passed=True,
                    message=mark("The known leak came back exactly."),
                ),
            ),
            identifiability=_analysis(mark) if known else {},
            budget={"steps": 500},
        ),
    )


def _analysis(mark: Mark) -> dict[str, Any]:
    return {
        "singular_values": [float(10 ** (4 - index / 50)) for index in range(300)],
        "resolution": 0.05,
        "relative_noise": 0.2,
        "recoverable": 200,
        "unknowns": 300,
        "summary": mark("200 of 300 dimensions of the images are determined by the update."),
    }


def _picture(size: int, index: int, sources: tuple[Path, ...]) -> np.ndarray:
    if sources:
        with Image.open(sources[index]) as opened:
            return np.asarray(opened.convert("RGB").resize((size, size)))
    y, x = np.mgrid[0:size, 0:size] / size
    rows = [x, y, 0.5 + 0.5 * np.sin(9 * (x + index) * y)]
    return (255 * np.stack(rows, -1)).astype(np.uint8)


def _degraded(original: np.ndarray, level: Level, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).uniform(0, 255, original.shape)
    keep = {Level.EXACT: 1.0, Level.RECOGNISABLE: 0.6, Level.TRACES: 0.2}.get(level, 0.0)
    return (keep * original + (1 - keep) * noise).astype(np.uint8)


def _plain(value: Any) -> Any:
    """JSON has no infinity: the same words as in records."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
