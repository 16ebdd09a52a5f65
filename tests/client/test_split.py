"""Split: features at a cut, and the engine inverting them with the terms it has."""

import pytest
import torch
from local_training import seeded, small_batch, small_model

import leakscope as ls


def test_the_features_are_the_modules_own():
    model, batch = small_model(norm=True), small_batch()
    seen = ls.observe(model, batch, protocol=ls.Split(cut="second"), generator=seeded())
    module = model.module.eval()
    expected = module.second(torch.tanh(module.norm(module.first(model.normalise(batch.images)))))
    assert set(seen.signal) == {"second"}
    assert torch.allclose(seen.signal["second"], expected)
    assert not seen.gradients
    assert not module.second._forward_hooks


def test_train_mode_uses_the_batch_and_leaves_the_buffers():
    model, batch = small_model(norm=True), small_batch()
    before = {name: b.clone() for name, b in model.named_buffers()}
    train = ls.Split(cut="norm", mode="train").replay(model, batch.images, batch.labels)["norm"]
    assert not train.requires_grad
    mean = train.mean(dim=(0, 2, 3))
    assert float((mean - model.module.norm.bias.detach()).abs().max()) < 1e-5
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_the_engine_inverts_features():
    model, batch = small_model(width=16), small_batch(2)  # 256 features for 192 pixels
    seen = ls.observe(model, batch, protocol=ls.Split(cut="first"), generator=seeded())
    found = ls.attack("dlg", steps=10)(seen, generator=seeded(1))
    assert float(ls.score(found, batch, ("psnr",))["psnr"].min()) > 50  # measured: 124 dB


def test_no_label_is_needed_or_made_up():
    model, batch = small_model(), small_batch(2)
    seen = ls.observe(model, batch, protocol=ls.Split(cut="first"), generator=seeded())
    found = ls.attack("inverting-gradients", steps=3)(seen, generator=seeded(1))
    assert found.evidence["labels"] == "not used"
    assert found.labels.tolist() == [-1, -1]


def test_what_cannot_be_cut_is_refused():
    model, batch = small_model(), small_batch()
    with pytest.raises(ls.UnknownName, match="Did you mean 'second'"):
        ls.observe(model, batch, protocol=ls.Split(cut="secnd"), generator=seeded())
    with pytest.raises(ls.BadInput, match="cut is empty"):
        ls.Split(cut="")
    with pytest.raises(ls.BadInput, match="'train' or 'eval'"):
        ls.Split(cut="first", mode="test")

    class Pair(torch.nn.Module):
        def forward(self, x):
            return x, x

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pair, self.idle, self.head = Pair(), torch.nn.Linear(2, 2), torch.nn.Linear(192, 10)

        def forward(self, x):
            return self.head(self.pair(x)[0].flatten(1))

    spec = ls.InputSpec(shape=(3, 8, 8), num_classes=10)
    odd = ls.VisionModel(Net(), input=spec, mean=(0.5,) * 3, std=(0.5,) * 3, name="odd")
    with pytest.raises(ls.BadInput, match="gives a tuple"):
        ls.observe(odd, batch, protocol=ls.Split(cut="pair"), generator=seeded())
    with pytest.raises(ls.BadInput, match="never calls 'idle'"):
        ls.observe(odd, batch, protocol=ls.Split(cut="idle"), generator=seeded())
    assert not any(m._forward_hooks for m in odd.module.modules())


def test_a_deeper_cut_has_called_more():
    model = ls.load_model("leakscope:resnet20", num_classes=4, image_size=8, seed=0)
    places = ["conv1", "layer1.0", "layer1.2", "layer2.0", "layer3.2"]
    depths = [len(ls.Split(cut=place).called(model)) for place in places]
    assert depths == sorted(set(depths))
    assert ls.Split(cut="layer1").called(model) == ls.Split(cut="layer1.2").called(model)
    assert not any(module._forward_pre_hooks for module in model.module.modules())
