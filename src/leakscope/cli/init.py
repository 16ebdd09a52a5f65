"""``leakscope init``: a commented campaign file for a model, ready to run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.console import say, where
from leakscope.cli.options import Channels, Classes, ImageSize, ModelName, Weights
from leakscope.errors import BadInput

__all__ = ["init"]


def init(
    model: Annotated[str, ModelName],
    images: Annotated[list[str] | None, typer.Argument(metavar="[IMAGES]...", show_default=False)] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("campaign.toml"),
    weights: Annotated[Path | None, Weights] = None,
    num_classes: Annotated[int | None, Classes] = None,
    image_size: Annotated[int | None, ImageSize] = None,
    channels: Annotated[int | None, Channels] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a campaign file for MODEL with every key explained.

    MODEL is leakscope:NAME, timm:NAME, torchvision:NAME or path/to/file.py:factory. IMAGES are files or folders as seen
    from the campaign file; without any, two photographs that come along stand in.
    """
    from leakscope.models import load_model

    if out.exists() and not force:
        raise BadInput(f"'{out}' is there already; --force replaces it, --out writes elsewhere.")
    vision = load_model(model, num_classes=num_classes, image_size=image_size, channels=channels, weights=weights)
    _, height, width = vision.input.shape
    options = {
        "weights": None if weights is None else str(weights),
        "num_classes": num_classes,
        "image_size": image_size,
        "channels": channels,
    }
    normalised = any("running_mean" in name for name, _ in vision.named_buffers())
    text = _TEMPLATE.format(
        name=json.dumps(f"audit of {model}"),
        key=re.sub(r"[^\w-]+", "-", model.rpartition(":")[2]).strip("-") or "model",
        model=json.dumps(model),
        described=f"{sum(p.numel() for p in vision.parameters()):,} parameters, images of {width} × {height} px, "
        f"{vision.input.num_classes} classes",
        options="".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items() if value is not None),
        images=json.dumps(images or ["bundled:cat,coffee"], ensure_ascii=False),
        modes=_MODES if normalised else "",
        clients='["sgd", "sgd-train-mode"]' if normalised else '["sgd"]',
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    where("campaign", out)
    say(f"Read it through, then: leakscope plan {out}; leakscope audit {out}")


_MODES = """
# This model has BatchNorm: a client that trains uses its batch's own statistics, which changes what leaks.
[clients.sgd-train-mode]
type = "fedsgd"
mode = "train"
"""

_TEMPLATE = """\
# A campaign for leakscope: what is audited, against whom, and how hard. Paths are seen from this file.
# leakscope plan FILE   what will run, and how long it takes
# leakscope audit FILE  runs it, and writes the report; the same command again goes on where it was broken off

name = {name}
question = "What could the server see of the clients' images?"   # answered on the report's first page
seeds = [0]                       # every attack is run once with each

# --- What is attacked ---------------------------------------------------------------------------------------------

[models.{key}]                    # any name; targets below use it
name = {model}
# {described}
{options}# weights = "checkpoint.safetensors"   # without, weights are drawn at random from seed
# seed = 0

[images.private]
from = {images}                   # files, folders (sub-folders are classes), or bundled:NAME,NAME
# labels = [3, 5]                 # one per image; by default from folder names, else counted
# labels_file = "boxes.json"      # for a detector: the boxes of every image; by default .txt files beside them
batch_size = 1                    # images in one update; every batch is a case of its own

[clients.sgd]                     # one update is the gradient of one batch
type = "fedsgd"
mode = "eval"
{modes}
# [clients.local-training]        # one update is the difference after local training
# type = "fedavg"
# steps = 5
# batch_size = 1
# optimiser = "sgd"
# lr = 0.1

[defences.noise]                  # what the client does to its update, step by step; see leakscope list defences
steps = [{{ type = "gaussian-noise", scale = 0.1 }}]   # relative to the norm of the gradient

# --- Who attacks --------------------------------------------------------------------------------------------------

[attackers.server]                # sees the update, knows the training recipe it gave out
rung = "honest-server"            # then: labels, statistics, public-data, defence; each knows one thing more

[attackers.informed]              # knows which defence is in use and works around it
rung = "defence"

# attacks = "auto" climbs a ladder: closed forms (seconds), short optimisation, tuned optimisation.
# To choose by hand instead:
# [attacks.inverting]
# type = "inverting-gradients"
# steps = 2000

# --- What is combined ---------------------------------------------------------------------------------------------

[[targets]]                       # every combination of these
models = ["{key}"]
images = ["private"]
clients = {clients}
defences = ["none", "noise"]

# --- How hard, and how it is judged -------------------------------------------------------------------------------

[budget]
steps = 500                       # the most steps of one optimisation; the report says so beside "nothing found"
ladder = "tuned"                  # how far up attacks = "auto" climbs: closed-forms, short, tuned
# seconds = 600                   # the most time for one attack; results then depend on the machine
cells = 500                       # refuse to start something larger than this

[controls]
prior_only = true                 # the same attack on noise: what comes out without any leak
self_tests = true                 # the same attack on a target known to leak: does it work here?
identifiability = true            # is the information in the update at all?
costs = true                      # what a defence costs: a small network is trained with it and without

[verdict]                         # thresholds of the verdict; see docs/verdicts.md
"""
