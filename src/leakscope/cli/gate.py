"""``leakscope gate``: may this update leave the client?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from leakscope.cli.captured import Before, Captured, Model, believed, held_images, read_update
from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions
from leakscope.cli.console import say
from leakscope.cli.model_options import GIVEN_MODEL, GivenModel
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import SEEDS
from leakscope.errors import BadInput

__all__ = ["gate"]

_POLICY: Final = "Policy"
WITHHELD: Final = 3


@with_options
def gate(
    update: Annotated[Path, Captured],
    model: Annotated[str, Model],
    images: Annotated[list[str], typer.Option(help="The client's own images; may be repeated.", show_default=False)],
    labels: Annotated[str | None, typer.Option(help="Classes of these images, such as 3,5.")] = None,
    before: Annotated[Path | None, Before] = None,
    psnr: Annotated[
        float, typer.Option(help="Withhold if an image comes back this well.", rich_help_panel=_POLICY)
    ] = 18.0,
    ssim: Annotated[float, typer.Option(help="Or this well.", rich_help_panel=_POLICY)] = 0.5,
    steps: Annotated[int, typer.Option(help="Steps of the attack.", rich_help_panel=_POLICY)] = 100,
    seconds: Annotated[float, typer.Option(help="Seconds in all; more withhold.", rich_help_panel=_POLICY)] = 60.0,
    replay: Annotated[
        float, typer.Option(help="Replay error up to which the client counts as understood.", rich_help_panel=_POLICY)
    ] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the attack.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Append the decision to this file of JSON lines.")] = None,
    of: GivenModel = GIVEN_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
) -> None:
    """Attack an UPDATE on the client, before it is sent, and say whether it may be.

    Every closed form and a short attack are tried with the client's own images as the measure. Whatever goes wrong
    (an error, a client that is not understood, a budget that runs out) withholds the update.

    Exit code 0: it may be sent. 3: withheld. 2: unreadable, or misuse, which must withhold it as well.
    """
    import torch

    from leakscope.gate import Policy
    from leakscope.gate import gate as run

    policy = Policy(thresholds={"psnr": psnr, "ssim": ssim}, steps=steps, seconds=seconds, replay=replay)
    belief = believed(client)
    found = read_update(update, before)
    vision = of.build(model)
    held = held_images(images, labels, vision)
    generator = torch.Generator().manual_seed(seed)
    decision = run(found, vision, held, client=belief, policy=policy, generator=generator)
    if log is not None:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(decision.to_json()) + "\n")
        except OSError as error:
            raise BadInput(f"The log '{log}' cannot be written: {error}") from error
    say("may be sent" if decision.send else "withheld", style="green" if decision.send else "bold red")
    detail = f" ({decision.detail})" if decision.detail else ""
    by = f": {decision.exposed} of {decision.images} by {decision.by}" if decision.exposed else ""
    say(f"{decision.reason}{detail}{by}; tried {', '.join(decision.tried) or 'nothing'}; {decision.seconds:.1f} s")
    if not decision.send:
        raise typer.Exit(WITHHELD)
