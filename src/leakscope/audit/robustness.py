"""How far an inverter carries: fitted for one client on public images, and put to another.

A study's point is one batch that is attacked once. Here one fit meets many clients with one image each, and the two
sides differ; tables and figures are those of studies. Fits, trained clients and finished lines are kept in the output
folder, so the same call goes on where it was broken off.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from leakscope.attacks import Checkpoint
from leakscope.attacks.learned.inverter import Inverter
from leakscope.attacks.learned.learned import digest_of
from leakscope.attacks.learned.load import load_inverter
from leakscope.attacks.settings import settings
from leakscope.audit.images import pieces
from leakscope.audit.labelled import Labelled
from leakscope.audit.record import REFUSED
from leakscope.audit.robustness_conditions import Condition, Robustness, conditions
from leakscope.audit.store import ensure_writable, replacing
from leakscope.audit.study_rows import Row, plain_row, write_rows
from leakscope.audit.training import Epoch, TrainingPlan, mean_loss, train, training_key
from leakscope.audit.training_files import save_trained, trained_by
from leakscope.errors import BadInput, MissingExtra, NotApplicable
from leakscope.metrics import METRICS
from leakscope.metrics.base import image_shape
from leakscope.models import VisionModel
from leakscope.models.weights import load_into, read_weights
from leakscope.types import Callback, Knows, Progress, Status

__all__ = ["BLANK", "SHOWN", "run_robustness"]

SHOWN: Final = ("mse", "psnr", "ssim", "lpips")
BLANK: Final = "of the mean image"
"""What a metric's column is called for the mean of the public images: what is known without any update."""
_EVERY: Final = 30.0
_FEWEST: Final = 2


class _Stopped(Exception):
    """Someone asked to stop."""


def run_robustness(
    asked: Robustness,
    out: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[Condition, int, int], None] = lambda condition, number, count: None,
    callback: Callback | None = None,
) -> list[Row]:
    """A row for every condition, written to ``out`` as a study's are; fewer when ``stop`` says so."""
    ensure_writable(out)
    for folder in ("fits", "clients", "points"):
        (out / folder).mkdir(exist_ok=True)

    def watched(progress: Progress) -> None:
        if callback is not None:
            callback(progress)
        if stop():
            raise _Stopped

    rows: list[Row] = []
    planned = conditions(asked)
    for number, condition in enumerate(planned):
        if stop():
            break
        told(condition, number, len(planned))
        try:
            rows.append(_row(asked, condition, out, stop, watched))
        except _Stopped:
            break
        write_rows(asked.setup, rows, out, study="robustness", x="condition", series=None, metric="psnr")
    return rows


def _row(asked: Robustness, condition: Condition, out: Path, stop: Callable[[], bool], callback: Callback) -> Row:
    """The line of one condition, from its file if it is there."""
    client, about = _client(asked, condition, out / "clients", stop, callback)
    fit = _fit_key(asked, condition)
    private = asked.setup.batch
    met = [client.fingerprint(), settings(asked.setup.client), settings(condition.defences), condition.rows.tolist()]
    key = digest_of([fit, met, asked.setup.threat.name], private, asked.draws("private"))
    slug = re.sub(r"[^\w.=-]+", "-", f"{condition.question}-{condition.name}").strip("-")
    path = out / "points" / f"{slug}.json"
    if path.exists():
        return _earlier(path, key)
    at = {"question": condition.question, "condition": condition.name}
    row = Row(
        at=at,
        status=Status.FINISHED,
        message="",
        metrics={},
        best={},
        extra={"public images": len(condition.public), "private images": len(condition.rows), **about},
        folder=f"points/{path.name}",
    )
    try:
        if not len(condition.rows):
            raise NotApplicable("No private image is of these classes.")
        inverter = _fitted(asked, condition, fit, client, out / "fits", callback)
        found, truth, diverged = _inverted(asked, condition, inverter, client, stop)
    except NotApplicable as refusal:
        row = replace(row, status=REFUSED, message=str(refusal))
    else:
        scores = _scores(found, truth)
        blank = _scores(inverter.mean.clamp(0, 1).to(found).expand_as(truth), truth)
        row = replace(
            row,
            metrics={name: float(values.mean()) for name, values in scores.items()},
            best={
                name: float(values.max() if METRICS[name].value.higher_is_better else values.min())
                for name, values in scores.items()
            },
            extra={
                **{f"{name} {BLANK}": float(values.mean()) for name, values in blank.items()},
                "held out": inverter.held_out,
                **row.extra,
            },
            message=f"{diverged} images drive the inverter out of all bounds." if diverged else "",
        )
    with replacing(path) as part:
        part.write_text(json.dumps({"key": key, "row": plain_row(row)}, indent=1) + "\n", encoding="utf-8")
    return row


def _earlier(path: Path, key: str) -> Row:
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored["key"] != key:
        raise BadInput(f"'{path}' holds another run: other images, weights or settings. Choose another output folder.")
    content = stored["row"]
    for part in ("metrics", "best"):
        content[part] = {name: float(value) for name, value in content[part].items()}
    return Row(**content)


def _fit_key(asked: Robustness, condition: Condition) -> str:
    setup = asked.setup
    method = replace(asked.method(condition.options), cache=None, cache_gib=0.0)
    plain = [settings(method), setup.model.fingerprint(), settings(setup.client), settings(condition.expected)]
    return digest_of(plain, condition.public, asked.draws("fit"))


def _fitted(
    asked: Robustness, condition: Condition, key: str, client: VisionModel, folder: Path, callback: Callback
) -> Inverter:
    """The inverter of a condition, fitted at the first weights; trusted at the client's."""
    path = folder / f"{key}.safetensors"
    if not path.exists():
        inverter = asked.method(condition.options).fit(
            condition.public,
            asked.setup.client,
            model=asked.setup.model,
            defences=condition.expected,
            generator=asked.draws("fit"),
            callback=callback,
            checkpoint=Checkpoint(folder=folder / key, every=_EVERY),
        )
        inverter.save(path)
        if (folder / key).exists() and not any((folder / key).iterdir()):
            (folder / key).rmdir()
    return load_inverter(path, client, any_weights=True)


def _client(
    asked: Robustness, condition: Condition, folder: Path, stop: Callable[[], bool], callback: Callback
) -> tuple[VisionModel, Mapping[str, float]]:
    """The client's model, trained further where the condition says so, and what came of that."""
    if condition.trained is None:
        return asked.setup.model, {}
    epochs, share = condition.trained
    count = max(_FEWEST, round(share * len(asked.public)))
    own = torch.randperm(len(asked.public), generator=asked.draws("client"))[:count]
    data = Labelled(images=asked.public.images[own], labels=asked.public.labels[own])
    model = copy.deepcopy(asked.setup.model)
    plan = TrainingPlan(epochs=epochs, lr=asked.lr, pad=0, flip=0.0, seed=asked.setup.seed)
    key = training_key(model, data, plan)
    path = folder / f"{key}.safetensors"
    if path.exists():
        load_into(model.module, read_weights(path), source=f"'{path}'")
        return model, {name: float(value) for name, value in (trained_by(path) or {}).items()}
    begun = path.with_suffix(".training")

    def told(epoch: Epoch) -> None:
        so_far = epoch.seconds * epoch.number
        callback(Progress(step=epoch.number, steps=epochs, loss=epoch.loss, best=epoch.loss, seconds=so_far))

    few = data.rows(torch.arange(_FEWEST))  # training scores itself on held-out images, which nobody asks for here
    train(model, data, few, plan, checkpoint=begun, told=told, stop=stop)
    if stop():
        raise _Stopped
    about = {"client's loss": mean_loss(model, data), "weights moved by": _moved(asked.setup.model, model)}
    save_trained(path, model, about)
    begun.unlink(missing_ok=True)
    return model, about


def _moved(before: VisionModel, after: VisionModel) -> float:
    """‖θ − θ₀‖ / ‖θ₀‖."""
    first, last = (torch.cat([p.detach().flatten() for p in one.parameters()]) for one in (before, after))
    return float((last - first).norm() / first.norm())


def _inverted(
    asked: Robustness, condition: Condition, inverter: Inverter, client: VisionModel, stop: Callable[[], bool]
) -> tuple[Tensor, Tensor, int]:
    """What comes back of each private image, the images themselves, and how many answers were not finite."""
    setup, diverged = asked.setup, 0
    found: list[Tensor] = []
    truth: list[Tensor] = []
    private = pieces(setup.batch, 1)
    for index in condition.rows.tolist():
        if stop():
            raise _Stopped
        case = setup.case(
            model=client,
            batch=private[index],
            attack=inverter,
            defences=condition.defences,
            threat=setup.threat.plus(Knows.PUBLIC_DATA),
            public=inverter.public,
            stream=f"image/{index}",
        )
        back = inverter(case.observe(), generator=asked.draws(f"attack/{index}"))
        diverged += back.outcome.status == Status.DIVERGED
        found.append(back.images)
        truth.append(case.truth().images)
    return torch.cat(found), torch.cat(truth), diverged


def _scores(found: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """The metrics that are defined for these images and installed, image by image."""
    values: dict[str, Tensor] = {}
    for name in SHOWN:
        one = METRICS[name].value
        if one.reason_undefined(image_shape(truth)) is None:
            try:
                values[name] = one(found, truth)
            except MissingExtra:
                continue
    return values
