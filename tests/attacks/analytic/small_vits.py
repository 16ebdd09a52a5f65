"""Small transformers of every token layout, and a client that shares its gradient on them."""

from dataclasses import replace

import torch

import leakscope as ls


def small_vit(
    *,
    size=(32, 32),
    patch=8,
    width=64,
    seed=0,
    depth=2,
    classes=10,
    channels=3,
    dtype=torch.float64,
    **options,
):
    """A timm ViT with random weights, every parameter moved off its special initial value (zeros, ones)."""
    from timm.models.vision_transformer import VisionTransformer  # after leakscope, which mends torchvision's operators

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = VisionTransformer(
            img_size=size,
            patch_size=patch,
            in_chans=channels,
            num_classes=classes,
            embed_dim=width,
            depth=depth,
            num_heads=4,
            **options,
        )
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.02 * torch.randn(parameter.shape)
    return wrap(module.to(dtype).eval(), (channels, *size), classes)


def wrap(module, shape, classes, name="small"):
    half = (0.5,) * shape[0]
    spec = ls.InputSpec(shape=shape, num_classes=classes)
    return ls.VisionModel(module, input=spec, mean=half, std=half, name=name)


def picture(shape, count=1, seed=0):
    """Smooth random pictures, (count, C, H, W): sums of a few waves."""
    g = torch.Generator().manual_seed(seed)
    c, h, w = shape
    y, x = torch.meshgrid(torch.linspace(0, 1, h), torch.linspace(0, 1, w), indexing="ij")
    k, phase = 12 * torch.rand((count, c, 6, 2, 1, 1), generator=g), 6.3 * torch.rand((count, c, 6, 1, 1), generator=g)
    waves = torch.sin(k[:, :, :, 0] * y + k[:, :, :, 1] * x + phase).sum(2)
    waves = waves - waves.amin((1, 2, 3), keepdim=True)
    return (waves / waves.amax((1, 2, 3), keepdim=True)).double()


def batch(model, count=1, seed=0):
    images = picture(model.input.shape, count, seed).to(model.dtype)
    labels = torch.randperm(model.input.num_classes, generator=torch.Generator().manual_seed(seed))[:count]
    return ls.Batch(images=images, labels=labels)


def seen(model, private, *, threat=ls.threats.HONEST_SERVER, protocol=None, signal=None):
    """What a server sees of a private batch; ``signal`` changes it on the way."""
    generator = torch.Generator().manual_seed(0)
    got = ls.observe(model, private, protocol=protocol or ls.FedSGD(), threat=threat, generator=generator)
    return got if signal is None else replace(got, signal=signal(dict(got.signal)))


def run(name, observation):
    return ls.attack(name)(observation, generator=torch.Generator().manual_seed(0))


def psnr(result, private):
    error = (result.images.double() - private.images.double()).square().mean().clamp_min(1e-40)
    return float(-10 * torch.log10(error))


NOBODY = ls.ThreatModel(name="knows nothing")
