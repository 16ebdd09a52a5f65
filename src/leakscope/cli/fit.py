"""``leakscope fit``: train an inverter on images of one's own, once, for every update to come."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions
from leakscope.cli.console import ERR, notice, say, where
from leakscope.cli.model_options import DEFAULT_MODEL, ModelOptions
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import SEEDS, Labels, ModelName, Settings, build_attack, parse_labels, set_threads
from leakscope.cli.progress import Watch
from leakscope.errors import BadInput

__all__ = ["fit"]


@with_options
def fit(
    model: Annotated[str, ModelName],
    images: Annotated[list[str] | None, typer.Argument(metavar="[IMAGES]...", show_default=False)] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The inverter's file, .safetensors.", show_default=False)
    ] = Path("inverter.safetensors"),
    attack: Annotated[
        str, typer.Option("--attack", "-a", help="git-coarse or lti on gradients; dci or decoder on features.")
    ] = "git-coarse",
    steps: Annotated[int | None, typer.Option(help="Training steps, if not the attack's own.")] = None,
    settings: Annotated[list[str] | None, Settings] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in the client's batch.")] = 1,
    defence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A defence of the client, such as gaussian-noise?scale=0.1; may be repeated.",
        ),
    ] = None,
    labels: Annotated[str | None, Labels] = None,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the training.")] = 0,
    of: ModelOptions = DEFAULT_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
    threads: Annotated[int | None, typer.Option(help="Threads of the process.")] = None,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds of work that a kill may cost.")] = 60.0,
) -> None:
    """Train an inverter of MODEL on IMAGES: what a server with data of its own can prepare before any update arrives.

    IMAGES are files, folders, or photographs that come along, such as bundled:cat,coffee. With --set data=synthetic
    dci needs none: it makes images up from the model. The same command again goes on after a kill.

    Then: leakscope invert MODEL PRIVATE... --inverter FILE
    """
    import torch

    from leakscope.attacks import Checkpoint
    from leakscope.attacks.learned.learned import LearnedAttack
    from leakscope.audit.images import load_images
    from leakscope.client import defence_from_text

    if threads is not None:
        set_threads(threads)
    method = build_attack(attack, steps=steps, pairs=settings or [])
    if not isinstance(method, LearnedAttack):
        raise BadInput(
            f"'{attack}' needs no fitting: leakscope invert runs it as it is. Fitted are lti, git-coarse, dci."
        )
    if out.suffix != ".safetensors":
        raise BadInput(f"--out is '{out}'; inverters are .safetensors files.")
    protocol = client.client()
    vision = of.load(model)
    public = None
    if images:
        loaded = load_images(images, vision.input, parse_labels(labels))
        public = loaded.batch
        for line in loaded.notices:
            notice(line)
    for line in client.notices():
        notice(line)
    with Watch(ERR, title=f"fit {attack}") as watch:
        inverter = method.fit(
            public,
            protocol,
            model=vision,
            batch_size=batch_size,
            defences=[defence_from_text(text) for text in defence or ()],
            generator=torch.Generator().manual_seed(seed),
            callback=watch,
            checkpoint=Checkpoint(folder=out.with_suffix(".training"), every=checkpoint_every),
        )
    inverter.save(out)
    folder = out.with_suffix(".training")
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
    say(
        f"{inverter.steps} steps in {inverter.seconds:.0f} s; mean squared error on images held out "
        f"{inverter.held_out:.4g} (the best single picture, their mean, has {_blank(inverter.mean, public):s})."
    )
    where("inverter", out)


def _blank(mean: object, public: object) -> str:
    """The error of the mean picture, for comparison."""
    from torch import Tensor

    from leakscope.types import Batch

    if not isinstance(public, Batch) or not isinstance(mean, Tensor):
        return "not been measured"
    return f"{float((public.images.to(mean) - mean).square().mean()):.4g}"
