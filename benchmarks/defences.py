"""What defences do, and what they cost: the figures of docs/defences.md.

python benchmarks/defences.py table      every defence, naive and adaptive server, sigmoid LeNet
python benchmarks/defences.py noise      APRIL's noise, closed forms and optimisation, by scale
python benchmarks/defences.py position   APRIL's position embedding: shared, withheld, fixed
"""

from __future__ import annotations

import argparse
import math

import torch

import leakscope as ls
from leakscope.audit.studies.defences import CHAINS
from leakscope.audit.studies_defences import DefenceRow, Price, defence_table
from leakscope.client import defence


def everything(steps: int, rounds: int) -> None:
    size = 16
    model = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=size, seed=0)
    small = ls.load_model("leakscope:mlp?hidden=64", num_classes=10, image_size=size, seed=0)
    fitting = {label: one for label, one in CHAINS.items() if one[0] != "fixed-position-embedding"}  # LeNet has none
    chains = {label: [defence(name, **options)] for label, (name, options) in fitting.items()}
    others = ls.bundled_batch([name for name in ls.bundled_names() if name != "coffee"], size=size)
    attacks = {"inverting-gradients": ls.attack("inverting-gradients", steps=steps)}
    print(
        "| defence | server | PSNR | SSIM | accuracy | time | bytes | ε |\n"
        "| --- | --- | --: | --: | --: | --: | --: | --: |"
    )
    batch = ls.bundled_batch(["coffee"], size=size)
    defence_table(
        model, batch, chains, attacks, others=others, rounds=rounds, price=Price(model=small), callback=_print
    )


def noise(steps: int) -> None:
    """Noise of growing size: the closed form on two transformers, optimisation on the sigmoid LeNet."""
    closed = {"patch-embedding": ls.attack("patch-embedding")}
    matching = {"inverting-gradients": ls.attack("inverting-gradients", steps=steps)}
    for name, size, photograph, attacks in (
        ("leakscope:april-b", 32, "cat", closed),
        ("timm:vit_tiny_patch16_224", 96, "coffee", closed),
        ("leakscope:lenet-dlg", 16, "coffee", matching),
    ):
        model = ls.load_model(name, num_classes=10, image_size=size, seed=0)
        for kind in ("gaussian-noise", "laplace-noise"):
            print(name)
            chains = {f"{kind} {scale:g}": [defence(kind, scale=scale)] for scale in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}
            defence_table(model, ls.bundled_batch([photograph], size=size), chains, attacks, callback=_brief)


def position(steps: int) -> None:
    """The position embedding's gradient shared, withheld, or never there; three kinds of attack."""
    chains = {
        "withheld": [defence("withhold", what="position-embedding")],
        "fixed": [defence("fixed-position-embedding")],
    }
    closed = {name: ls.attack(name) for name in ("patch-embedding", "patch-embedding-blind")}
    for dtype in (torch.float32, torch.float64):
        model = ls.load_model("timm:vit_tiny_patch16_224", num_classes=10, image_size=96, seed=0).to(dtype=dtype)
        print(dtype)
        defence_table(model, ls.bundled_batch(["coffee"], size=96), chains, closed, callback=_brief)
    attacks = {"idlg": ls.attack("idlg", steps=steps)}
    print("small transformer")
    defence_table(_small_vit(), ls.bundled_batch(["coffee"], size=16), chains, attacks, callback=_brief)


def _small_vit() -> ls.VisionModel:
    """16 px, 4 px patches, width 64, one block: small enough for L-BFGS to match its gradient."""
    from timm.models.vision_transformer import VisionTransformer  # after leakscope, which mends torchvision's operators

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = VisionTransformer(img_size=16, patch_size=4, num_classes=10, embed_dim=64, depth=1, num_heads=4)
    spec = ls.InputSpec(shape=(3, 16, 16), num_classes=10)
    return ls.VisionModel(module.eval(), input=spec, mean=(0.5,) * 3, std=(0.5,) * 3, name="small ViT")


def _print(row: DefenceRow) -> None:
    u = row.utility
    ssim = row.ssim[0] if row.ssim else math.nan
    if u is None:
        return
    epsilon = "–" if u.epsilon is None else f"{u.epsilon:.3g}"
    cells = f"{u.accuracy:.3f} | ×{u.time_ratio:.1f} | ×{u.bytes_ratio:.3f} | {epsilon}"
    print(f"| {row.defence} | {row.attacker} | {row.worst:.1f} | {ssim:.2f} | {cells} |", flush=True)


def _brief(row: DefenceRow) -> None:
    what = f"{row.worst:.1f} dB, SSIM {max(row.ssim):.2f}" if row.psnr else f"refused: {row.reason[:110]}"
    print(f"{row.attack:24} {row.defence:24} {row.attacker:9} {what}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "noise", "position"))
    parser.add_argument("--steps", type=int, help="of the optimisation; 300, or 60 of L-BFGS for position")
    parser.add_argument("--rounds", type=int, default=8, help="rounds that the adaptive server pools")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "table":
        everything(given.steps or 300, given.rounds)
    elif given.what == "noise":
        noise(given.steps or 300)
    else:
        position(given.steps or 60)
