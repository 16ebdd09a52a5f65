"""Small transformers, batches of bundled photographs, and what a server sees of them."""

from dataclasses import replace

import torch

import leakscope as ls

NAMES = ("astronaut", "cat", "coffee", "flower")


def vit(*, width=96, seed=0, dtype=torch.float64, size=32, patch=8, **options):
    """A timm ViT with random weights, norms and biases moved off ones and zeros, as training would."""
    from timm.models.vision_transformer import VisionTransformer  # after leakscope, which mends torchvision's operators

    settings = {"embed_dim": width, "depth": 2, "num_heads": 4, "num_classes": 10, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = VisionTransformer(img_size=size, patch_size=patch, **settings)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.02 * torch.randn(parameter.shape)
    spec = ls.InputSpec(shape=(3, size, size), num_classes=10)
    return ls.VisionModel(module.to(dtype).eval(), input=spec, mean=(0.5,) * 3, std=(0.5,) * 3, name="small")


def photographs(count, size=32):
    return ls.bundled_batch(list(NAMES[:count]), size=size)


def seen(model, batch, *, threat=ls.threats.HONEST_SERVER, signal=None):
    generator = torch.Generator().manual_seed(0)
    got = ls.observe(model, batch, protocol=ls.FedSGD(), threat=threat, generator=generator)
    return got if signal is None else replace(got, signal=signal(dict(got.signal)))


def separate(observation):
    return ls.attack("token-separation")(observation, generator=torch.Generator().manual_seed(0))


def psnrs(result, batch):
    return [float(value) for value in ls.score(result, batch)["psnr"]]
