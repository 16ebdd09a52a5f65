"""Everything the command line can say about a client, in one piece that several commands take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from leakscope.errors import BadInput

if TYPE_CHECKING:
    from leakscope.types import ClientProtocol

__all__ = ["DEFAULT_CLIENT", "ClientOptions", "Public", "Threat"]

_PANEL: Final = "Client and server"
Public: Final = typer.Option(
    metavar="IMAGES",
    help="Images that the server has, for attacks that are fitted; may be repeated.",
    rich_help_panel=_PANEL,
)
Threat: Final = typer.Option(
    help="What the server knows: honest-server; labels, too; statistics on top; public-data on top.",
    rich_help_panel=_PANEL,
)
_LOCAL: Final = "Local training"


def _client(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_PANEL, show_default=True)


def _local(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_LOCAL, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """One field for each option; ``None`` where nothing was said, so that the client's own default holds."""

    mode: Annotated[Literal["train", "eval"], _client("BatchNorm on batch (train) or running (eval) statistics.")] = (
        "eval"
    )
    reduction: Annotated[Literal["mean", "sum"], _client("The client's loss over its batch.")] = "mean"
    share_buffers: Annotated[
        bool,
        _client("Whether BatchNorm statistics are sent along, in train mode.", "--share-buffers/--withhold-buffers"),
    ] = False
    precision: Annotated[Literal["full", "fp16", "bf16"], _client("What is sent is rounded to it.")] = "full"
    trainable: Annotated[
        list[str] | None,
        _client("Pattern of the parameters that are trained, such as head.*; may be repeated. By default all."),
    ] = None
    split_at: Annotated[
        str | None,
        _client(
            "Send the features at this module's output (split inference) in place of gradients; several for study cut: "
            "conv1,conv2."
        ),
    ] = None
    micro_batch: Annotated[
        int | None,
        _client("Images that go through the network at a time, where a batch does not fit into memory; same gradient."),
    ] = None
    augment: Annotated[
        bool,
        _client("Flip, shift and jitter images before training: those are then recovered.", "--augment/--as-is"),
    ] = False
    local_steps: Annotated[
        int | None, _local("Train for so many steps before sending how the weights moved (FedAvg).")
    ] = None
    local_epochs: Annotated[int | None, _local("Train for so many epochs instead.")] = None
    local_batch: Annotated[int | None, _local("Images per step; by default all.")] = None
    local_lr: Annotated[float | None, _local("Learning rate; by default 0.1 for sgd, 0.001 for adam and adamw.")] = None
    optimiser: Annotated[Literal["sgd", "adam", "adamw"] | None, _local("By default sgd.")] = None
    momentum: Annotated[float | None, _local("Of sgd; by default 0.")] = None
    nesterov: Annotated[bool | None, _local("Nesterov's momentum, with sgd.", "--nesterov/--plain-momentum")] = None
    weight_decay: Annotated[float | None, _local("By default 0; 0.01 for adamw.")] = None
    accumulate: Annotated[int | None, _local("Batches whose gradients make one step; by default 1.")] = None
    order: Annotated[
        Literal["fixed", "seeded", "private"] | None,
        _local("Images as they stand, shuffled by a seed the server knows, or by the client alone."),
    ] = None
    send: Annotated[
        Literal["delta", "weights"] | None, _local("The change of the weights, or the weights themselves.")
    ] = None

    def notices(self) -> tuple[str, ...]:
        """What whoever reads the results must know of this client."""
        note: str | None = getattr(self.client(), "note", None)
        return () if note is None else (note,)

    def client(self) -> ClientProtocol:
        """The client that was described."""
        from leakscope.client import client_from

        local = {
            "steps": self.local_steps,
            "epochs": self.local_epochs,
            "batch_size": self.local_batch,
            "lr": self.local_lr,
            "optimiser": self.optimiser,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "weight_decay": self.weight_decay,
            "accumulate": self.accumulate,
            "order": self.order,
            "share": self.send,
        }
        local = {key: value for key, value in local.items() if value is not None}
        trains = self.local_steps is not None or self.local_epochs is not None
        if local and not trains:
            flag = next(flag for flag, key in _FLAGS.items() if key in local)
            raise BadInput(f"{flag} is for a client that trains locally: add --local-steps or --local-epochs.")
        settings: dict[str, object] = {"mode": self.mode, "precision": self.precision}
        if self.augment:
            settings["augmentation"] = {"flip": 0.5, "pad": 4, "jitter": 0.2}
        if self.split_at is not None:
            if trains or self.trainable or self.share_buffers or self.micro_batch is not None:
                raise BadInput("--split-at sends features: local training and its options do not go with it.")
            return client_from({"type": "split", "cut": self.split_at, **settings})
        settings |= {"reduction": self.reduction, "share_buffers": self.share_buffers}
        if self.micro_batch is not None:
            if trains:
                raise BadInput("--micro-batch is for a client that sends one gradient, not for local training.")
            settings["micro_batch"] = self.micro_batch
        if self.trainable:
            settings["trainable"] = tuple(self.trainable)
        return client_from({"type": "fedavg" if trains else "fedsgd", **settings, **local})


_FLAGS: Final = {
    "--local-batch": "batch_size",
    "--local-lr": "lr",
    "--optimiser": "optimiser",
    "--momentum": "momentum",
    "--nesterov": "nesterov",
    "--weight-decay": "weight_decay",
    "--accumulate": "accumulate",
    "--order": "order",
    "--send": "share",
}

DEFAULT_CLIENT: Final = ClientOptions()
