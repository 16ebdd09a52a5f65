"""``leakscope train``: weights that have been trained, on this machine, to measure leakage on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from leakscope.cli.console import notice, say, where
from leakscope.cli.interrupt import Interrupt
from leakscope.cli.model_options import GIVEN_MODEL, GivenModel
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import SEEDS, LabelsFile, ModelName, set_threads
from leakscope.cli.progress import clock
from leakscope.errors import BadInput

__all__ = ["train"]


@with_options
def train(
    model: Annotated[str, ModelName],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", show_default=False)],
    epochs: Annotated[int, typer.Option(min=1, help="How often every image is seen.")] = 10,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file of trained weights.")] = Path(
        "weights.safetensors"
    ),
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a step.")] = 64,
    optimiser: Annotated[
        Literal["sgd", "adamw"], typer.Option(help="sgd for convolutional networks, adamw for transformers.")
    ] = "sgd",
    lr: Annotated[
        float | None, typer.Option(help="Largest learning rate; 0.05 for sgd, 0.001 for adamw.", show_default=False)
    ] = None,
    pad: Annotated[int, typer.Option(min=0, help="Pixels by which crops are shifted; 0 for none.")] = 4,
    flip: Annotated[float, typer.Option(min=0, max=1, help="How often left and right are swapped.")] = 0.5,
    held_out: Annotated[
        float, typer.Option(help="Share of the images to test on, unless there is a test folder.")
    ] = 0.1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many images of each class.", show_default=False)
    ] = None,
    test_limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many images of each class of a test folder.", show_default=False),
    ] = None,
    labels_file: Annotated[Path | None, LabelsFile] = None,
    precision: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(
            help="bfloat16 takes half the time where the processor knows it (avx512_bf16, amx), else far more."
        ),
    ] = "float32",
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the start, the order and the crops.")] = 0,
    of: GivenModel = GIVEN_MODEL,
    threads: Annotated[int | None, typer.Option(help="Threads; 1 is best beside other work.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Start over, or go on from the last epoch that ended.")
    ] = False,
) -> None:
    """Train MODEL on IMAGES and write its weights, for --weights of the other commands.

    IMAGES is a folder or a zip with one folder for each class, perhaps below train and test; for a detector, a folder
    of images with boxes. Each epoch prints the accuracy on images that were held out. Ctrl-C keeps the epochs that are
    done; the same command again goes on from there, and ends with the same weights as an unbroken run.
    """
    import torch

    from leakscope.audit.labelled import load_labelled
    from leakscope.audit.store import ensure_writable
    from leakscope.audit.training import Epoch, TrainingPlan, held_out_score, training_key
    from leakscope.audit.training import train as run
    from leakscope.audit.training_files import save_trained, trained_by

    if out.suffix != ".safetensors":
        raise BadInput(f"--out is '{out}'; weights are written as .safetensors.")
    if threads is not None:
        set_threads(threads)
    plan = TrainingPlan(
        epochs=epochs,
        batch_size=batch_size,
        optimiser=optimiser,
        lr=lr,
        pad=pad,
        flip=flip,
        precision=precision,
        seed=seed,
    )
    ensure_writable(out.parent)
    checkpoint = out.with_name(f"{out.stem}.checkpoint.safetensors")
    vision = of.build(model, seed=seed)
    data, test, classes = load_labelled(
        images,
        vision.input,
        held_out=held_out,
        limit=limit,
        test_limit=test_limit,
        labels_file=labels_file,
        generator=torch.Generator().manual_seed(seed),
    )
    if fresh:
        for old in (out, checkpoint):
            old.unlink(missing_ok=True)
    key = training_key(vision, data, plan)
    if out.exists():
        if (trained_by(out) or {}).get("key") != key:
            raise BadInput(f"'{out}' holds other weights. Choose another --out, or start over with --fresh.")
        where("weights", out)
        say("This training had ended before: nothing is left to do.")
        return
    say(f"{model}: {len(data)} images to train on, {len(test)} held out, {epochs} epochs.")
    measure = "held-out loss" if vision.input.boxes else "accuracy"

    def told(epoch: Epoch) -> None:
        score = f"{epoch.held_out:.3g}" if vision.input.boxes else f"{epoch.held_out:.1%}"
        left = clock(epoch.seconds * (epochs - epoch.number))
        ending = f", {left} left" if epoch.number < epochs else ""
        say(f"epoch {epoch.number}/{epochs}: loss {epoch.loss:.3f}, {measure} {score}, {epoch.seconds:.1f} s{ending}")

    with Interrupt("Stopping: the epochs that are done are kept. Ctrl-C again stops at once.") as stop:
        ended = run(vision, data, test, plan, checkpoint=checkpoint, told=told, stop=stop)
    if stop.asked:
        notice("Interrupted: the same command again goes on from the last epoch that ended.")
        raise typer.Exit(130)
    score = ended[-1].held_out if ended else held_out_score(vision, test)
    about = {"key": key, "model": model, "images": len(data), "classes": list(classes), "plan": asdict(plan)}
    save_trained(out, vision, about | {measure: score, "held out": len(test)})
    checkpoint.unlink(missing_ok=True)
    say(f"{measure} {score:.3g} on {len(test)} held-out images.")
    where("weights", out)
