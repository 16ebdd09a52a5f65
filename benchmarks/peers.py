"""leakscope against breaching: the same attack, weights, images, steps and threads, in one interleaved run.

    python benchmarks/peers.py                                  # the bundled photographs at 32 px
    python benchmarks/peers.py --data cifar10.zip --images 10   # ImageFolder layout, folder or zip

Each tool runs in a process of its own with the settings it ships; the two take turns in going first. The peer lives in
``.venv-peers``, made on first use. Both tools' pictures are scored here, by the same code, against the same truth.
Figures go to ``out/bench/peers.json``. See ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

import leakscope as ls
from _peer_images import read_images
from _peer_leakscope import observe
from _peer_process import Worker, WorkerDied, peer_python
from _peer_summary import METRICS, Row, line, summary, table

HERE = Path(__file__).resolve().parent
PAIRS = (("inverting-gradients", "convnet64"), ("inverting-gradients", "resnet18"), ("dlg", "lenet-dlg"))
console = Console(soft_wrap=True)


def main() -> int:
    options = _options()
    pairs = [(a, m) for a, m in PAIRS if a in options.attacks and m in options.models]
    try:
        if not pairs:
            raise ls.BadInput(f"None of these: choose from {', '.join(f'{a} on {m}' for a, m in PAIRS)}.")
        batch, num_classes = read_images(options.data, options.images, size=32)
        python = peer_python(console.print)
        results: Row = {"set_up": _set_up(options, len(batch), num_classes), "runs": []}
        for attack, model in pairs:
            run = compare(attack, model, batch, num_classes, options=options, python=python)
            results["runs"].append(run)
            console.print(table(run))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    except (ls.LeakscopeError, WorkerDied, OSError) as error:
        console.print(f"[red]{type(error).__name__}[/red]: {error}", highlight=False)
        return 2
    console.print(f"Figures: {options.out}")
    return 0


def compare(
    attack: str, name: str, batch: ls.Batch, num_classes: int, *, options: argparse.Namespace, python: Path
) -> Row:
    """Every image with both tools, which take turns in going first; then the summary."""
    model = ls.load_model(f"leakscope:{name}", num_classes=num_classes, seed=0)
    steps = options.dlg_steps if attack == "dlg" else options.steps
    by_hand = {"leakscope": options.ours, "breaching": options.theirs}
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker("leakscope", Path(sys.executable), HERE / "_peer_leakscope.py", threads=options.threads) as ours,
        Worker("breaching", python, HERE / "peer_breaching.py", threads=options.threads) as theirs,
    ):
        weights, sample = Path(folder, "weights.safetensors"), Path(folder, "sample.safetensors")
        save_file(_numbered("p", model.parameters()) | _numbered("b", model.buffers()), weights)
        for index in range(len(batch)):
            image, label = batch.images[index : index + 1].contiguous(), batch.labels[index : index + 1]
            gradients = observe(model, image, label, attack).gradients.values()
            start = torch.randn(image.shape, generator=torch.Generator().manual_seed(1 + index))
            save_file({"image": image, "label": label, "start": start, **_numbered("g", gradients)}, sample)
            job = {
                "model": name,
                "attack": attack,
                "weights": str(weights),
                "sample": str(sample),
                "steps": steps,
                "seed": 1 + index,
                "num_classes": num_classes,
                "mean": model.mean.flatten().tolist(),
                "std": model.std.flatten().tolist(),
            }
            row: Row = {"image": batch.names[index] if batch.names else str(index)}
            for worker in (ours, theirs) if index % 2 == 0 else (theirs, ours):
                out = Path(folder, f"{worker.tool}.safetensors")
                row[worker.tool] = answer = worker.ask({**job, "out": str(out), "options": by_hand[worker.tool]})
                if "error" not in answer:
                    answer["scores"] = _score(load_file(out)["image"], label, ls.Batch(images=image, labels=label))
            rows.append(row)
            console.print(f"{attack} on {name} · {row['image']} · {line(row)}", highlight=False)
        about = {worker.tool: worker.about for worker in (ours, theirs)}
    return {"attack": attack, "model": name, "steps": steps, "workers": about, "summary": summary(rows), "images": rows}


def _score(found: Tensor, labels: Tensor, truth: ls.Batch) -> Row:
    """The same metrics for both tools; one that is not installed is ``None``."""
    outcome = ls.Outcome(status=ls.Status.FINISHED, message="")
    scores = ls.score(ls.Reconstruction(images=found, labels=labels, energy=0.0, outcome=outcome), truth)
    values: Row = {name: float(scores[name][0]) if name in scores else None for name in METRICS}
    return values | {"mse": float((found - truth.images).square().mean())}


def _numbered(letter: str, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    return {f"{letter}{index:03d}": tensor.detach().contiguous() for index, tensor in enumerate(tensors)}


def _set_up(options: argparse.Namespace, images: int, num_classes: int) -> Row:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "images": images,
        "num_classes": num_classes,
        "data": options.data.name if options.data else "bundled",
        "threads": options.threads,
        "options": {"leakscope": options.ours, "breaching": options.theirs},
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    attacks, models = (list(dict.fromkeys(names)) for names in zip(*PAIRS, strict=True))
    parser.add_argument("--steps", type=_positive, default=400, help="steps of inverting-gradients (400)")
    parser.add_argument("--dlg-steps", type=_positive, default=60, help="L-BFGS steps of dlg, up to 20 inner each (60)")
    parser.add_argument("--images", type=_positive, default=10, help="how many images (10)")
    parser.add_argument("--data", type=Path, help="folder or zip of images, ImageFolder layout (default: bundled)")
    parser.add_argument("--models", type=_list, default=models, help=f"of {','.join(models)} (all)")
    parser.add_argument("--attacks", type=_list, default=attacks, help=f"of {','.join(attacks)} (all)")
    parser.add_argument("--threads", type=_positive, default=1, help="torch threads of each tool (1)")
    parser.add_argument("--ours", type=_list, default=[], help="settings of leakscope's attacks, such as tv=0.2 (none)")
    parser.add_argument("--theirs", type=_list, default=[], help="settings of breaching's, such as optim.boxed=False")
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "bench" / "peers.json")
    options = parser.parse_args()
    for kind, chosen, known in (("model", options.models, models), ("attack", options.attacks, attacks)):
        for name in chosen:
            if name not in known:
                parser.error(f"unknown {kind} '{name}'; choose from {', '.join(known)}")
    return options


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
