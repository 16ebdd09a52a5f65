"""Small things to fit: pictures that differ in a few numbers, tiny models."""

import torch

import leakscope as ls


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(count, size=8, seed=0, classes=4):
    """Smooth pictures with six degrees of freedom each: a slope in either direction, per channel."""
    draw = torch.rand(count, 3, 2, generator=seeded(seed))
    axis = torch.linspace(-0.5, 0.5, size)
    slopes = draw[..., 0, None, None] * axis[:, None] + draw[..., 1, None, None] * axis
    labels = torch.randint(classes, (count,), generator=seeded(seed + 1))
    return ls.Batch(images=(0.5 + 0.9 * slopes).clamp(0, 1), labels=labels)


def lenet(size=8, seed=0):
    return ls.load_model("leakscope:lenet-lti", num_classes=4, image_size=size, seed=seed)


def seen(model, batch, protocol=None, threat=ls.threats.WITH_PUBLIC_DATA, public=None, defences=()):
    return ls.observe(
        model,
        batch,
        protocol=protocol or ls.FedSGD(),
        threat=threat,
        public=blobs(4) if public is None else public,
        defences=defences,
        generator=seeded(9),
    )


def blank_error(public, test):
    """The error of the mean picture: what is known without any signal."""
    return float((test.images - public.images.mean(0)).square().mean())


def killed(case):
    """(method, protocol, defences) of the fits that are killed half-way and resumed."""
    if case == "gradients":
        return ls.attack("lti", steps=60, hidden=16, batch=8), ls.FedSGD(), ()
    noise = ls.defence("gaussian-noise", scale=1.0)
    return ls.attack("dci", steps=30, width=4, batch=8), ls.Split(cut="act2"), (noise,)
