"""A real Flower federation, captured, checked and attacked: what its server could see of two clients' photographs.

    python examples/flower_capture.py out/flower

Two clients hold two photographs each and train a small network with BatchNorm by plain SGD, one local step per round.
A client mod and a wrapped strategy record what crosses the wire. Then every captured update is checked (does the client
we believe in, replayed on its own photographs, send exactly this?) and the first one is attacked.

Ray runs the simulation. Where Ray cannot start, or with ``--backend inline``, the same apps exchange the same messages
in this process, through Flower's own ``ClientApp``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Before Flower and Ray are imported: nothing is reported to anybody.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from torch import nn
from torch.nn.functional import cross_entropy

import leakscope as ls
from leakscope.capture import check, load_update, to_observation
from leakscope.capture.flower import CaptureMod, capture_strategy
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Sgd

PHOTOGRAPHS = (["astronaut", "cat"], ["coffee", "flower"])
LR, ROUNDS = 0.05, 2


def new_model() -> ls.VisionModel:
    """The federation's network as it starts, and what it takes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            *(nn.Conv2d(3, 32, 5, stride=2, padding=2), nn.BatchNorm2d(32), nn.Tanh()),
            *(nn.Conv2d(32, 32, 5, stride=2, padding=2), nn.BatchNorm2d(32), nn.Tanh()),
            *(nn.Flatten(), nn.Linear(32 * 8 * 8, 10)),
        )
    shape = ls.InputSpec(shape=(3, 32, 32), num_classes=10)
    return ls.VisionModel(net, input=shape, mean=[0.5] * 3, std=[0.25] * 3, name="small network")


def photographs(partition: int) -> ls.Batch:
    return ls.bundled_batch(PHOTOGRAPHS[partition], size=32)


def client_app(folder: Path | None) -> ClientApp:
    """A client as anybody would write it; the only line that has to do with leakscope is the list of mods."""
    app = ClientApp(mods=[CaptureMod(folder / "client", new_model())] if folder else [])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, batch = new_model(), photographs(int(context.node_config["partition-id"]))
        net = model.module
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.train()
        optimiser = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
        optimiser.zero_grad()
        cross_entropy(net(model.normalise(batch.images)), batch.labels).backward()
        optimiser.step()
        metrics = MetricRecord({"num-examples": len(batch), "local-steps": 1})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def run_server(grid: Any, folder: Path | None) -> dict[str, torch.Tensor]:
    strategy = FlowerFedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    if folder:
        strategy = capture_strategy(strategy, folder / "server", new_model())
    state = ArrayRecord(new_model().module.state_dict())
    result = strategy.start(grid=grid, initial_arrays=state, num_rounds=ROUNDS, train_config=ConfigRecord({"lr": LR}))
    return dict(result.arrays.to_torch_state_dict())


def simulate(folder: Path | None, backend: str) -> dict[str, torch.Tensor]:
    """The federation's final weights; with a ``folder``, all that crossed the wire is recorded below it."""
    if backend == "inline":
        return run_server(InlineGrid(client_app(folder), clients=2), folder)
    from flwr.simulation import run_simulation

    final: dict[str, torch.Tensor] = {}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        final.update(run_server(grid, folder))

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1, "include_dashboard": False}}
    run_simulation(server, client_app(folder), num_supernodes=2, backend_config=resources)
    if not final:
        raise RuntimeError("The simulation ended without a result.")
    return final


class InlineGrid:
    """What a strategy needs of Flower's grid, with the clients called in this process: same messages, no workers."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        with contextlib.suppress(ImportError):  # recent releases want to know whose process this is
            from flwr.supercore.task_identity import TaskIdentity

            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._app = app
        self._contexts = {
            index + 1: Context(
                run_id=0,
                node_id=index + 1,
                node_config={"partition-id": index, "num-partitions": clients},
                state=RecordDict(),
                run_config={},
            )
            for index in range(clients)
        }

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        # Copies, as a wire makes them: the clients' messages share one content.
        return [self._app(copy.deepcopy(m), self._contexts[m.metadata.dst_node_id]) for m in messages]


def audit(folder: Path, steps: int) -> tuple[list[float], float]:
    """Replay errors of all captured updates, and the best PSNR of an attack on the first client's first update."""
    believed = FedAvg(steps=1, optimiser=Sgd(lr=LR), mode="train", share="weights")
    errors: list[float] = []
    for place in sorted((folder / "client").glob("round-*/client-*")):
        update = load_update(place)
        report = check(update, new_model(), batch=photographs(int(update.client)), client=believed)
        print(f"{place.relative_to(folder)}: {update.nbytes:,} bytes", *report.problems, *report.notes, sep="\n  ")
        errors.append(report.replay.error if report.ok and report.replay else float("inf"))
    update, truth = load_update(folder / "client" / "round-0001" / "client-0"), photographs(0)
    # One step of SGD: the server divides by the learning rate and has the gradient.
    seen = to_observation(update, new_model(), protocol=ls.FedSGD(mode="train"), threat=ls.threats.HONEST_SERVER)
    attack = ls.attack("inverting-gradients", steps=steps)
    scores = ls.score(attack(seen, generator=torch.Generator().manual_seed(0)), truth)
    print(scores.table())
    return errors, float(scores["psnr"].max())


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("folder", type=Path)
    reader.add_argument("--backend", choices=("ray", "inline"), default="ray")
    reader.add_argument("--steps", type=int, default=300, help="of the attack")
    asked = reader.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    backend, place = asked.backend, asked.folder / asked.backend
    try:
        simulate(place, backend)
    except Exception as error:
        if backend == "inline":
            raise
        print(f"Ray could not run the simulation ({error}): the apps talk in this process instead.", file=sys.stderr)
        backend, place = "inline", asked.folder / "inline"
        simulate(place, backend)
    errors, psnr = audit(place, asked.steps)
    print(f"largest replay error {max(errors):.1e} over {len(errors)} updates; best image {psnr:.1f} dB ({backend})")
    sys.exit(0 if max(errors) <= 1e-5 else 1)


if __name__ == "__main__":
    main()
