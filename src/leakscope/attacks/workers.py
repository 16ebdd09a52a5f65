"""What a process that works for an attack does first, and the lockstep of members that live in several of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from leakscope.attacks.crew import Choice, Found, LocalCrew, Stand
from leakscope.attacks.optimisation import Optimisation
from leakscope.errors import LeakscopeError
from leakscope.models.sources import run_file, user_files
from leakscope.types import Observation

__all__ = ["RemoteCrew", "prepare_worker", "threads_for"]


def threads_for(workers: int) -> int:
    """Each worker's share of the cores."""
    return max(1, (os.cpu_count() or 1) // workers)


def prepare_worker(threads: int, files: tuple[Path, ...]) -> None:
    """End with the parent, know the user's own files, keep to so many threads."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for file in files:  # a model from a user's file can only be received where that file has run
        run_file(file)
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers: they watch it, and end with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@final
class RemoteCrew:
    """Members spread over processes. This one shows each the others' pictures before a step, and does no work itself.

    The members' bits do not depend on who runs them, so a checkpoint of such a run is one of a run in a single process.
    """

    def __init__(
        self, attack: Optimisation, observation: Observation, generator: torch.Generator, *, workers: int
    ) -> None:
        # New interpreters, not forks: a fork of a threaded process can hang.
        context = multiprocessing.get_context("spawn")
        self._indices = [list(range(attack.population))[place::workers] for place in range(workers)]
        self._alive = set(range(attack.population))
        self._pictures: dict[int, Any] = {}
        self._workers: list[_Worker] = []
        alone, state = replace(attack, workers=1, checkpoint=None), generator.get_state()
        for indices in self._indices:
            mine, theirs = context.Pipe()
            job = (theirs, threads_for(workers), user_files(), alone, observation, indices, state)
            process = context.Process(target=_serve, args=job, daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(pipe=mine, process=process))
        try:
            self._ask_all("pictures")
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return bool(self._alive)

    def choose(self) -> Choice:
        self._workers[0].send("choose")
        return self._workers[0].receive()

    def start(self, gradient: str) -> None:
        self._ask_all("start", gradient)

    def advance(self, step: int) -> Iterator[Stand]:
        stands = [stand for told in self._ask_all("advance", step, self._pictures) for stand in told]
        self._alive -= {stand.index for stand in stands if stand.ended}
        yield from sorted(stands, key=lambda stand: stand.index)

    def state(self) -> list[dict[str, Any]]:
        return self._in_order(self._ask_all("state"))

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        for worker, indices in zip(self._workers, self._indices, strict=True):
            worker.send("restore", [states[index] for index in indices])
        self._receive_all()
        self._alive = {index for index, state in enumerate(states) if state["outcome"] is None}

    def found(self) -> list[Found]:
        for worker in self._workers:  # after an interrupt, a step may still be under way
            worker.drain()
        return self._in_order(self._ask_all("found"))

    def close(self) -> None:
        """End the processes: each when it has done what it is at."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join()

    def _ask_all(self, what: str, *given: object) -> list[Any]:
        for worker in self._workers:
            worker.send(what, *given)
        return self._receive_all()

    def _receive_all(self) -> list[Any]:
        answers: list[Any] = []
        for worker in self._workers:
            answer, pictures = worker.receive_with_pictures()
            self._pictures.update(pictures)
            answers.append(answer)
        return answers

    def _in_order(self, answers: list[list[Any]]) -> list[Any]:
        """One list for each worker's members as one list by member."""
        by_index = {
            i: item for own, got in zip(self._indices, answers, strict=True) for i, item in zip(own, got, strict=True)
        }
        return [by_index[index] for index in sorted(by_index)]


@dataclass(slots=True, kw_only=True)
class _Worker:
    """One process, its pipe, and how many of its answers are still to come."""

    pipe: Connection
    process: Any
    due: int = 0

    def send(self, what: str, *given: object) -> None:
        self.pipe.send((what, given))
        self.due += 1

    def receive(self) -> Any:
        return self.receive_with_pictures()[0]

    def receive_with_pictures(self) -> tuple[Any, dict[int, Any]]:
        try:
            answer, pictures = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise LeakscopeError("A worker process ended before its work was done; its own output says why.") from error
        self.due -= 1
        if isinstance(answer, BaseException):
            raise answer
        return answer, pictures

    def drain(self) -> None:
        while self.due:
            self.receive()


def _serve(
    pipe: Connection,
    threads: int,
    files: tuple[Path, ...],
    attack: Optimisation,
    observation: Observation,
    indices: list[int],
    state: Tensor,
) -> None:
    """A worker's life: answer until the pipe is closed. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_worker(threads, files)
    generator = torch.Generator()
    generator.set_state(state)
    crew: LocalCrew | None = None
    while True:
        try:
            what, given = pipe.recv()
        except (EOFError, OSError):  # closed, or reset with an answer still unread
            return
        try:
            crew = crew or LocalCrew(attack, observation, indices, generator)
            answer = _answer(crew, observation, what, given)
            # As arrays: tensors would each take a file descriptor on their way.
            pictures = {index: images.cpu().numpy() for index, images in crew.sights().items()}
        except Exception as error:  # raised where the attack was started
            answer, pictures = error, {}
        with suppress(OSError):  # nobody waits for it any more
            pipe.send((answer, pictures))


def _answer(crew: LocalCrew, observation: Observation, what: str, given: tuple[Any, ...]) -> object:
    if what == "advance":
        step, pictures = given
        sights = {index: torch.from_numpy(one).to(observation.model.device) for index, one in pictures.items()}
        return [replace(stand, images=None, labels=None) for stand in crew.advance(step, sights)]
    if what == "pictures":
        return None
    return getattr(crew, what)(*given)
