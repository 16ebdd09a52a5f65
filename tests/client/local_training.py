"""A plain torch training loop, the way a client's code has it: the reference for every replay."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import leakscope as ls


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class TanhConvNet(nn.Module):
    """Two convolutions and a linear layer, smooth, so that derivatives can be checked; with BatchNorm if asked."""

    def __init__(self, width=6, norm=False):
        super().__init__()
        # BatchNorm takes a bias out again: its gradient would be rounding alone, which Adam blows up to full steps.
        self.first = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=not norm)
        self.norm = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width * 16, 10)

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        x = torch.tanh(self.second(x))
        return self.head(self.drop(x.flatten(1)))


def small_model(*, norm=False, width=6, dtype=torch.float32, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = TanhConvNet(width, norm=norm)
    spec = ls.InputSpec(shape=(3, 8, 8), num_classes=10)
    model = ls.VisionModel(module, input=spec, mean=(0.5,) * 3, std=(0.25,) * 3, name="tanh-convnet")
    return model.to(dtype=dtype)


def small_batch(count=4, size=8):
    return ls.bundled_batch(["astronaut", "cat", "coffee", "raccoon", "temple"][:count], size=size)


def train_plainly(model, batch, plan, optimiser, *, training=False):
    """θ_K − θ_0 and the buffers after torch's own optimiser has taken the plan's steps on the module itself."""
    module = model.module.train(training)
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.eval()
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    stepper = optimiser(module.parameters())
    for step in plan:
        stepper.zero_grad()
        for chosen in step:
            loss = cross_entropy(module(model.normalise(batch.images[chosen])), batch.labels[chosen])
            (loss / len(step)).backward()
        stepper.step()
    moved = {name: p.detach() - start[name] for name, p in module.named_parameters()}
    return moved, {name: b.clone() for name, b in module.named_buffers()}
