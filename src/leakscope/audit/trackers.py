"""A running attack's losses, sent along to TensorBoard or MLflow: optional extras, fed through the callback.

Only what the attacker itself sees is ever logged: losses and, for TensorBoard when asked, its best candidate. A
candidate may show a private image by then, so pictures are written below the run's own output folder and nowhere else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, final

from leakscope.errors import BadInput, MissingExtra, UnknownName
from leakscope.types import Callback, Progress

__all__ = ["PICTURES", "MLflow", "TensorBoard", "Tracker", "tracking"]

PICTURES: Final = "tensorboard"
"""The tracker that writes into the output folder, so that pictures may go there."""
_POINTS: Final = 500
"""The most points of one curve: a run of many thousand steps is thinned out evenly."""
_SHOWN: Final = 20
_TOGETHER: Final = 200
"""Numbers that go to a tracking server in one request."""
_EXPERIMENT: Final = "leakscope"


class Tracker(Protocol):
    """Somewhere to log to."""

    def scope(self, name: str) -> Callback:
        """A callback whose curves are called ``name/loss`` and ``name/best``."""
        ...

    def close(self) -> None: ...


@contextmanager
def tracking(where: str | None, *, run: str, folder: Path, pictures: bool = False) -> Generator[Tracker]:
    """The tracker that ``tensorboard``, ``tensorboard:DIR`` or ``mlflow:URI`` stands for; none for ``None``.

    ``run`` is the name that the run gets there. TensorBoard's files go to ``folder``/tensorboard if no DIR is given;
    ``pictures`` adds the best candidate now and then, for which DIR must lie in ``folder``.
    """
    kind, _, place = (where or "").partition(":")
    tracker: Tracker
    if where is None:
        tracker = _Nowhere()
    elif kind == "tensorboard":
        tracker = TensorBoard(Path(place or folder / "tensorboard"), folder=folder if pictures else None)
    elif kind == "mlflow":
        if not place:
            raise BadInput("mlflow needs to be told where: mlflow:URI, such as mlflow:http://127.0.0.1:5000.")
        tracker = MLflow(place, run=run)
    else:
        raise UnknownName("tracker", kind, ("tensorboard", "mlflow"))
    try:
        yield tracker
    finally:
        tracker.close()


@final
class _Nowhere:
    """Nothing is logged."""

    def scope(self, name: str) -> Callback:
        return lambda progress: None

    def close(self) -> None:
        return


@final
class TensorBoard:
    """Event files in ``place``; with ``folder``, the output folder, candidates as pictures too."""

    def __init__(self, place: Path, *, folder: Path | None = None) -> None:
        if folder is not None and not place.resolve().is_relative_to(folder.resolve()):
            raise BadInput(
                f"Pictures may show private images and stay in the output folder '{folder}': '{place}' is not in it."
            )
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise MissingExtra("Logging to TensorBoard", "tensorboard") from error
        self._writer: Any = SummaryWriter(str(place))
        self._pictures = folder is not None

    def scope(self, name: str) -> Callback:
        def told(progress: Progress) -> None:
            for key, value in _scalars(progress).items():
                self._writer.add_scalar(f"{name}/{key}", value, progress.step)
            if self._pictures and progress.images is not None and _due(progress, _SHOWN):
                tag = f"{name}/candidate{_restart(progress)}"
                self._writer.add_images(tag, progress.images().detach().cpu(), progress.step)

        return told

    def close(self) -> None:
        self._writer.close()


@final
class MLflow:
    """One run in the experiment ``leakscope`` of the tracking server, or store, at ``uri``. Numbers only."""

    def __init__(self, uri: str, *, run: str) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise MissingExtra("Logging to MLflow", "mlflow") from error
        try:
            self._client: Any = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(_EXPERIMENT)
            experiment = self._client.create_experiment(_EXPERIMENT) if known is None else known.experiment_id
            self._run: str = self._client.create_run(experiment, run_name=run).info.run_id
        except MlflowException as error:
            raise BadInput(f"MLflow cannot log to '{uri}': {error}") from error
        self._metric: Any = Metric
        self._waiting: list[Any] = []

    def scope(self, name: str) -> Callback:
        def told(progress: Progress) -> None:
            now = int(time.time() * 1000)
            for key, value in _scalars(progress).items():
                self._waiting.append(self._metric(f"{name}/{key}", value, now, progress.step))
            if len(self._waiting) >= _TOGETHER:
                self._send()

        return told

    def close(self) -> None:
        self._send()
        self._client.set_terminated(self._run)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._client.log_batch(self._run, metrics=waiting)


def _scalars(progress: Progress) -> dict[str, float]:
    if not _due(progress, _POINTS):
        return {}
    which = _restart(progress)
    values = {f"loss{which}": progress.loss, f"best{which}": progress.best}
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _due(progress: Progress, points: int) -> bool:
    every = -(-progress.steps // points)
    return progress.step % every == 0 or progress.step in (1, progress.steps)


def _restart(progress: Progress) -> str:
    return f"/restart-{progress.restart}" if progress.restarts > 1 else ""
