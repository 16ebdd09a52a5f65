"""The figures and the picture of docs/closed-forms.md. Prints tables; never fails a build.

python benchmarks/closed_forms.py sizes          every size that the project promises, float32 and float64
python benchmarks/closed_forms.py noise          fp16, bf16 and noise on ViT-B/16 and ViT-Ti/16, against the oracle
python benchmarks/closed_forms.py deltas         SGD weight deltas, weight decay, AdamW, pruning, batches
python benchmarks/closed_forms.py trained        a small ViT, some hundred real training steps
python benchmarks/closed_forms.py blind          without the position gradient
python benchmarks/closed_forms.py april          APRIL's closed form on its three sizes
python benchmarks/closed_forms.py spear --data cifar10.zip      batches of 4 to 32 on ReLU MLPs
python benchmarks/closed_forms.py picture        docs/pictures/closed-forms.png
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

import leakscope as ls
import leakscope.models  # before timm: it mends torchvision's operators
from _peer_images import read_images
from leakscope.functional.patches import from_patches

B16, TI16 = "timm:vit_base_patch16_224", "timm:vit_tiny_patch16_224"
SIZES = (
    B16,
    "timm:vit_small_patch16_224",
    "timm:vit_base_patch32_224",
    "timm:deit_small_patch16_224",
    "timm:deit_base_distilled_patch16_224",
    TI16,
)
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def observed(
    name: str, images: list[str], *, dtype: torch.dtype = torch.float32, change: Change | None = None, seed: int = 0
) -> tuple[ls.Observation, ls.Batch]:
    model = ls.load_model(name, num_classes=1000 if name.startswith("timm") else None, seed=seed).to(dtype=dtype)
    channels, size, _ = model.input.shape
    batch = ls.bundled_batch(images, size=size, channels=channels)
    batch = ls.Batch(images=batch.images.to(dtype), labels=batch.labels)
    seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
    return (seen if change is None else replace(seen, signal=change(dict(seen.signal)))), batch


def run(attack: str, seen: ls.Observation, batch: ls.Batch) -> str:
    began, cpu = time.perf_counter(), time.process_time()
    try:
        found = ls.attack(attack)(seen, generator=torch.Generator().manual_seed(0))
    except ls.NotApplicable as refusal:
        return f"refused: {refusal}"
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    error = float((found.images.double() - batch.images.double()).square().mean())
    known = {k: found.evidence.get(k) for k in ("rank", "condition", "self-check", "residual", "noise", "clamped")}
    listed = ", ".join(
        f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in known.items() if v is not None
    )
    right = bool((found.labels == batch.labels).all())
    return (
        f"{-10 * math.log10(max(error, 1e-40)):6.1f} dB  mse {error:.1e}  {took:.2f} s ({cpu:.2f} s of CPU)  "
        f"label {'right' if right else 'wrong'}  {listed}"
    )


def corrupt(kind: torch.dtype | float) -> Change:
    """Rounded to a type, or Gaussian noise of so much of each tensor's root mean square."""

    def change(signal: dict[str, Tensor]) -> dict[str, Tensor]:
        if isinstance(kind, torch.dtype):
            return {k: v.to(kind).to(v.dtype) for k, v in signal.items()}
        g = torch.Generator().manual_seed(5)
        return {k: v + kind * v.square().mean().sqrt() * torch.randn(v.shape, generator=g) for k, v in signal.items()}

    return change


def oracle(seen: ls.Observation, batch: ls.Batch) -> tuple[float, int]:
    """The best truncated solve, and its rank, chosen with the truth: what no attacker has."""
    model = seen.model
    delta = seen.signal["pos_embed"][0, 1:].double()
    u, s, v = torch.linalg.svd(delta.mT, full_matrices=False)
    side = u.mT @ seen.signal["patch_embed.proj.weight"].double().flatten(1)
    best = (0.0, 0)
    for k in range(2, len(s) + 1, 2):
        patches = v[:k].mT @ (side[:k] / s[:k, None])
        pixels = from_patches(patches, model.input.shape, (16, 16)) * model.std.double() + model.mean.double()
        error = float((pixels.clamp(0, 1) - batch.images[0].double()).square().mean())
        best = max(best, (-10 * math.log10(error), k))
    return best


def sizes() -> None:
    for name in SIZES:
        for dtype in (torch.float32, torch.float64):
            for image in ("cat", "coffee", "astronaut") if dtype is torch.float32 else ("cat",):
                print(
                    f"{name} {str(dtype)[6:]} {image}: {run('patch-embedding', *observed(name, [image], dtype=dtype))}"
                )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB, with every client's run")


def noise() -> None:
    for name in (B16, TI16):
        for image in ("cat", "coffee", "astronaut"):
            for kind in (torch.float16, torch.bfloat16, 1e-4, 1e-3, 1e-2):
                seen, batch = observed(name, [image], change=corrupt(kind))
                best, rank = oracle(seen, batch)
                print(
                    f"{name} {image} {kind}: {run('patch-embedding', seen, batch)}; oracle {best:.1f} dB at rank {rank}"
                )


def local(name: str, image: str, *, steps: int, decay: float = 0.0, adam: bool = False) -> str:
    """θ_K − θ_0 after K steps on one image, as a signal."""
    seen, batch = observed(name, [image])
    model = seen.model
    start = {k: v.clone() for k, v in model.state_dict().items()}
    kind = torch.optim.AdamW if adam else torch.optim.SGD
    optimiser = kind(model.parameters(), lr=1e-3 if adam else 1e-2, weight_decay=decay)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimiser.step()
    delta = {k: model.state_dict()[k] - v for k, v in start.items()}
    model.load_state_dict(start)
    return run("patch-embedding", replace(seen, signal=delta), batch)


def deltas() -> None:
    print("SGD, 1 step:", local(B16, "cat", steps=1))
    print("SGD, 5 steps:", local(B16, "cat", steps=5))
    print("SGD, 5 steps, weight decay 1e-4:", local(B16, "cat", steps=5, decay=1e-4))
    print("AdamW, 1 step:", local(B16, "cat", steps=1, adam=True))
    for share in (0.1, 0.5):

        def pruned(signal: dict[str, Tensor], share: float = share) -> dict[str, Tensor]:
            return {
                k: v * (v.abs() >= torch.from_numpy(np.quantile(v.abs().numpy(), [share]))) for k, v in signal.items()
            }

        print(f"smallest {share:.0%} pruned:", run("patch-embedding", *observed(B16, ["cat"], change=pruned)))
    for name in (B16, TI16):
        seen, batch = observed(name, ["cat", "coffee"])
        print(f"{name}, batch of 2, told:", run("patch-embedding", seen, batch))
        hidden = replace(seen, input=replace(seen.input, batch_size=None), threat=ls.ThreatModel(name="knows nothing"))
        print(f"{name}, batch of 2, not told:", run("patch-embedding", hidden, batch))


def trained(steps: int = 400) -> None:
    """A ViT of width 192, depth 6, 4 px patches at 32 px, on crops of ten bundled pictures, a class each."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    pictures = ls.bundled_batch(ls.bundled_names()[:10], size=256).images
    g = torch.Generator().manual_seed(0)

    def crops(count: int) -> tuple[Tensor, Tensor]:
        which = torch.randint(0, 10, (count,), generator=g)
        at = torch.randint(0, 256 - 64, (count, 2), generator=g).tolist()
        cut = torch.stack([pictures[w, :, y : y + 64 : 2, x : x + 64 : 2] for w, (y, x) in zip(which, at, strict=True)])
        return cut, which

    module = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    half, spec = (0.5,) * 3, ls.InputSpec(shape=(3, 32, 32), num_classes=10)
    model = ls.VisionModel(module, input=spec, mean=half, std=half, name="small ViT")
    optimiser = torch.optim.AdamW(module.parameters(), lr=5e-4)
    for step in range(steps):
        images, labels = crops(32)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {float(loss.detach()):.3f}")
    module.zero_grad(set_to_none=True)
    module.eval()
    found = []
    for _ in range(20):
        images, labels = crops(1)
        batch = ls.Batch(images=images, labels=labels)
        seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
        try:
            back = ls.attack("patch-embedding")(seen, generator=torch.Generator())
        except ls.NotApplicable as refusal:
            print(f"refused: {refusal}")
            found.append(0.0)
            continue
        found.append(float(-10 * (back.images - images).double().square().mean().log10()))
    print(
        f"after {steps} steps, 20 crops: min {min(found):.1f}, median {sorted(found)[10]:.1f}, max {max(found):.1f} dB"
    )


def blind() -> None:
    def withheld(signal: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: v for k, v in signal.items() if k != "pos_embed"}

    for image in ls.bundled_names():
        print(f"{image}: {run('patch-embedding-blind', *observed(B16, [image], change=withheld))}")
    seen, batch = observed(B16, ["cat"], dtype=torch.float64, change=withheld)
    print(f"cat float64: {run('patch-embedding-blind', seen, batch)}")
    from timm.layers import build_sincos2d_pos_embed

    for dtype in (torch.float32, torch.float64):
        model = ls.load_model(B16, num_classes=1000, seed=0)
        model.module.pos_embed.data[0, 1:] = build_sincos2d_pos_embed([14, 14], 768)
        model.module.pos_embed.requires_grad_(False)
        module = model.to(dtype=dtype).module
        model = ls.VisionModel(module, input=model.input, mean=(0.5,) * 3, std=(0.5,) * 3, name="2-D sine-cosine")
        batch = ls.bundled_batch(["cat"], size=224)
        batch = ls.Batch(images=batch.images.to(dtype), labels=batch.labels)
        seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
        print(f"fixed 2-D sine-cosine table, {str(dtype)[6:]}: {run('patch-embedding-blind', seen, batch)}")


def april() -> None:
    for name in ("april-a-28", "april-a", "april-a-224"):
        for dtype in (torch.float32, torch.float64):
            for image in ("cat", "coffee"):
                seen, batch = observed(f"leakscope:{name}", [image], dtype=dtype)
                print(f"{name} {str(dtype)[6:]} {image}: {run('april-closed-form', seen, batch)}")


def spear(data: Path | None = None) -> None:
    """Batches on a ReLU MLP: the images of ``data``, or the bundled ones, which are twelve."""
    for hidden in ("200,200,200", "400,400", "1000,400"):
        for count in (4, 8, 12, 16, 20, 24, 32):
            batch, classes = read_images(data, count, size=32)
            if len(batch) < count:
                continue
            model = ls.load_model(f"leakscope:mlp?hidden={hidden}", num_classes=classes, image_size=32, seed=0)
            seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
            began = time.process_time()
            try:
                found = ls.attack("spear")(seen, generator=torch.Generator().manual_seed(0))
            except ls.NotApplicable as refusal:
                said = f"refused: {refusal}"
            else:
                psnr = ls.score(found, batch, ["psnr"])["psnr"]
                said = f"min {psnr.min():.0f}, median {psnr.median():.0f} dB, {found.evidence['samples']} starts"
            print(f"{hidden}, B = {count}: {said}  ({time.process_time() - began:.1f} s of CPU)", flush=True)


def picture(out: Path = Path("docs/pictures/closed-forms.png")) -> None:
    """One row: the original and what came back from ViT-B/16 under each condition."""
    columns: list[tuple[str, str, Tensor]] = []
    seen, batch = observed(B16, ["astronaut"])
    columns.append(("original", "", batch.images[0]))
    for title, change, attack in (
        ("float32", None, "patch-embedding"),
        ("fp16", corrupt(torch.float16), "patch-embedding"),
        ("bf16", corrupt(torch.bfloat16), "patch-embedding"),
        ("noise 1e-3", corrupt(1e-3), "patch-embedding"),
        ("no position gradient", None, "patch-embedding-blind"),
    ):
        signal = dict(seen.signal) if change is None else change(dict(seen.signal))
        found = ls.attack(attack)(replace(seen, signal=signal), generator=torch.Generator())
        error = float((found.images - batch.images).double().square().mean())
        columns.append((title, f"{-10 * math.log10(error):.1f} dB", found.images[0]))
    both, pair = observed(B16, ["astronaut", "cat"])
    try:
        ls.attack("patch-embedding")(both, generator=torch.Generator())
    except ls.NotApplicable:
        columns.append(("batch of 2", "refused", torch.full_like(pair.images[0], 0.93)))
    side, gap, text = 224, 8, 40
    sheet = Image.new("RGB", (len(columns) * (side + gap) - gap, side + text), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (title, score, image) in enumerate(columns):
        left = index * (side + gap)
        pixels = (image.permute(1, 2, 0).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
        sheet.paste(Image.fromarray(pixels), (left, text))
        draw.text((left + 2, 2), title, fill="black", font_size=16)
        draw.text((left + 2, 20), score, fill="dimgray", font_size=15)
    draw.text((len(columns) * (side + gap) - gap - side + 62, text + 100), "no picture", fill="dimgray", font_size=18)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, optimize=True)
    print(out)


WHAT = {f.__name__: f for f in (sizes, noise, deltas, trained, blind, april, spear, picture)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, help="folder or zip of images, for spear")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "spear":
        spear(options.data)
    else:
        WHAT[options.what]()
