"""Restarts: run each member of a population, in this process or in several, and keep the one with the lowest loss.

Two single-threaded processes get more done on two cores than one process with two threads, so workers are pinned.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from leakscope.attacks.engine import MemberResult, run_together
from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.terms.base import sees_peers
from leakscope.attacks.workers import RemoteCrew, prepare_worker, threads_for
from leakscope.models.sources import user_files
from leakscope.types import Callback, Observation, Progress, Reconstruction, Status

__all__ = ["run"]


def run(
    attack: Optimisation, observation: Observation, *, generator: torch.Generator, callback: Callback | None
) -> Reconstruction:
    """Every member of the population; the reconstruction is the member with the lowest loss measured."""
    together = attack.population > 1 and any(sees_peers(weighted.term) for weighted in attack.terms)
    workers = min(attack.workers, attack.population)
    # Members run side by side in workers and one after the other within each: the time is shared out evenly.
    rounds = -(-attack.population // workers)
    seconds = None if attack.stop.seconds is None else attack.stop.seconds / rounds
    if together:
        results = _in_lockstep(attack, observation, generator, callback, workers)
    elif workers > 1:
        results = _in_processes(attack, observation, generator, callback, seconds, workers)
    else:
        results = []
        for index in range(attack.population):
            results += run_together(
                attack, observation, [index], generator=generator, callback=callback, seconds=seconds
            )
            if results[-1].outcome.status in (Status.INTERRUPTED, Status.TARGET_REACHED):
                break
    best = min(results, key=lambda result: (result.energy, result.index))
    interrupted = [r.outcome for r in results if r.outcome.status is Status.INTERRUPTED]
    return Reconstruction(
        images=best.images,
        labels=best.labels,
        energy=best.energy,
        outcome=interrupted[0] if interrupted else best.outcome,
        trace=tuple(result.trace for result in results),
        steps=sum(len(result.trace) for result in results),
        seconds=sum(result.seconds for result in results) / workers,
        evidence=best.evidence | {"restart": best.index, "energies": [result.energy for result in results]},
    )


def _in_lockstep(
    attack: Optimisation,
    observation: Observation,
    generator: torch.Generator,
    callback: Callback | None,
    workers: int,
) -> list[MemberResult]:
    """Members that see one another, in this process or spread over ``workers`` that exchange pictures every step."""
    crew = RemoteCrew(attack, observation, generator, workers=workers) if workers > 1 else None
    try:
        results = run_together(
            attack,
            observation,
            range(attack.population),
            generator=generator,
            callback=callback,
            seconds=attack.stop.seconds,
            crew=crew,
        )
    finally:
        if crew is not None:
            crew.close()
    # Each member's share of the time, as if its worker had worked for it alone.
    return [replace(result, seconds=result.seconds * workers) for result in results]


def _in_processes(
    attack: Optimisation,
    observation: Observation,
    generator: torch.Generator,
    callback: Callback | None,
    seconds: float | None,
    workers: int,
) -> list[MemberResult]:
    """The same members in ``workers`` processes. New interpreters, not forks: a fork of a threaded process can hang."""
    context = multiprocessing.get_context("spawn")
    news: Queue[Progress | None] = context.Queue()
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start_worker, initargs=(threads_for(workers), news, user_files())
    )
    alone = replace(attack, workers=1)
    state = generator.get_state()
    with _relay(news, callback), pool:
        futures = [
            pool.submit(_run_in_worker, alone, observation, index, state, seconds) for index in range(attack.population)
        ]
        results: list[MemberResult] = []
        try:
            for future in as_completed(futures):
                if future.cancelled():
                    continue
                results.append(future.result())
                if results[-1].outcome.status is Status.TARGET_REACHED:
                    for later in futures:  # members start in order: only later ones can still be cancelled
                        later.cancel()
        except KeyboardInterrupt:  # the workers got it too, and each hands over what it has
            for future in futures:
                future.cancel()
            results = [future.result() for future in futures if not future.cancelled()]
    results.sort(key=lambda result: result.index)
    # As if run one after the other: what came after the first success does not count.
    reached = [place for place, r in enumerate(results, start=1) if r.outcome.status is Status.TARGET_REACHED]
    return results[: reached[0]] if reached else results


_news: Queue[Progress | None] | None = None


def _start_worker(threads: int, news: Queue[Progress | None], files: tuple[Path, ...]) -> None:
    global _news
    prepare_worker(threads, files)
    _news = news


def _run_in_worker(
    attack: Optimisation, observation: Observation, index: int, state: torch.Tensor, seconds: float | None
) -> MemberResult:
    generator = torch.Generator()
    generator.set_state(state)
    told = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told
        if _news is not None and (progress.seconds - told > 0.2 or progress.step == progress.steps):
            told = progress.seconds
            _news.put(replace(progress, images=None, labels=None))

    return run_together(attack, observation, [index], generator=generator, callback=tell, seconds=seconds)[0]


@contextmanager
def _relay(news: Queue[Progress | None], callback: Callback | None) -> Generator[None]:
    """Pass the workers' progress on to ``callback`` while the block runs."""

    def pump() -> None:
        while (progress := news.get()) is not None:
            if callback is not None:
                callback(progress)

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    try:
        yield
    finally:
        news.put(None)
        thread.join()
