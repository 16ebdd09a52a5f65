import pytest
import torch
from torch.nn.functional import cross_entropy

import leakscope as ls
from leakscope.types import Defence, Knows


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def resnet():
    return ls.load_model("leakscope:resnet20", num_classes=10, image_size=16, seed=0)


@pytest.fixture
def batch():
    return ls.bundled_batch(["cat", "astronaut", "coffee"], size=16)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_is_autograds_own(resnet, batch, reduction):
    seen = ls.observe(resnet, batch, protocol=ls.FedSGD(reduction=reduction), generator=seeded())
    module = resnet.module.eval()
    loss = cross_entropy(module(resnet.normalise(batch.images)), batch.labels, reduction=reduction)
    expected = torch.autograd.grad(loss, list(module.parameters()))
    for (name, _), value in zip(module.named_parameters(), expected, strict=True):
        assert torch.allclose(seen.signal[name], value, rtol=1e-4, atol=1e-6), name


def test_train_mode_shares_the_running_statistics_training_would_leave(resnet, batch):
    protocol = ls.FedSGD(mode="train", share_buffers=True)
    before = {n: b.clone() for n, b in resnet.named_buffers()}
    seen = ls.observe(resnet, batch, protocol=protocol, threat=ls.threats.WITH_STATISTICS, generator=seeded())
    twin = ls.load_model("leakscope:resnet20", num_classes=10, image_size=16, seed=0)
    twin.module.train()
    twin(batch.images)
    for name, value in twin.named_buffers():
        assert torch.allclose(seen.buffers[name], value), name
        assert torch.equal(dict(resnet.named_buffers())[name], before[name]), f"{name} of the model itself moved"
    assert not resnet.module.training


def test_train_and_eval_differ(resnet, batch):
    train = ls.observe(resnet, batch, protocol=ls.FedSGD(mode="train"), generator=seeded())
    evaluation = ls.observe(resnet, batch, protocol=ls.FedSGD(), generator=seeded())
    assert not torch.allclose(train.signal["conv1.weight"], evaluation.signal["conv1.weight"])


@pytest.mark.parametrize(("share", "threat"), [(False, ls.threats.WITH_STATISTICS), (True, ls.threats.WITH_LABELS)])
def test_statistics_need_a_client_that_shares_and_a_server_that_sees(resnet, batch, share, threat):
    protocol = ls.FedSGD(mode="train", share_buffers=share)
    assert not ls.observe(resnet, batch, protocol=protocol, threat=threat, generator=seeded()).buffers


def test_hidden_knowledge_is_absent(resnet, batch):
    nothing = ls.ThreatModel(name="nothing")
    seen = ls.observe(resnet, batch, protocol=ls.FedSGD(), threat=nothing, generator=seeded())
    assert seen.labels is None
    assert seen.input.batch_size is None
    with pytest.raises(ls.MissingKnowledge, match=r"batch size.*'nothing' hides"):
        _ = seen.batch_size
    with pytest.raises(ls.MissingKnowledge, match="labels"):
        seen.require(Knows.LABELS)
    knowing = ls.observe(resnet, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded())
    assert knowing.labels is not None
    assert knowing.batch_size == 3


def test_the_observation_does_not_hold_the_images(resnet, batch):
    seen = ls.observe(resnet, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_DEFENCE, generator=seeded())
    storages = {t.untyped_storage().data_ptr() for t in (*seen.signal.values(), seen.labels)}
    assert batch.images.untyped_storage().data_ptr() not in storages
    assert batch.labels.untyped_storage().data_ptr() not in storages
    assert all(value.grad_fn is None for value in seen.signal.values())


def test_defences_act_in_order_and_are_hidden_unless_known(resnet, batch):
    class Double(Defence):
        def __call__(self, signal, *, setting, generator):
            return {n: 2 * v for n, v in signal.items()}

    class OnlyHead(Defence):
        def __call__(self, signal, *, setting, generator):
            return {n: v for n, v in signal.items() if n.startswith("linear") or n.startswith("fc")}

    plain = ls.observe(resnet, batch, protocol=ls.FedSGD(), generator=seeded())
    seen = ls.observe(resnet, batch, protocol=ls.FedSGD(), generator=seeded(), defences=[Double(), OnlyHead()])
    assert 0 < len(seen.signal) < len(plain.signal)
    assert all(torch.allclose(v, 2 * plain.signal[n]) for n, v in seen.signal.items())
    assert seen.defences == ()


def test_frozen_parameters_are_not_sent(batch):
    model = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=16, seed=0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("fc"))
    seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=seeded())
    assert set(seen.signal) == {"fc.weight", "fc.bias"}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises((ls.BadInput, RuntimeError)):
        ls.observe(model, batch, protocol=ls.FedSGD(), generator=seeded())


def test_dropout_draws_from_the_given_generator_only():
    layers = torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(48, 10)
    spec = ls.InputSpec(shape=(3, 4, 4), num_classes=10)
    module = torch.nn.Sequential(*layers)
    model = ls.VisionModel(module, input=spec, mean=(0.5,) * 3, std=(0.5,) * 3, name="dropout")
    batch = ls.bundled_batch(["cat"], size=4)
    noisy, plain = ls.FedSGD(mode="train", stochastic=True), ls.FedSGD(mode="train")
    state = torch.get_rng_state()

    def head(protocol, seed):
        return ls.observe(model, batch, protocol=protocol, generator=seeded(seed)).signal["2.weight"]

    assert torch.equal(head(noisy, 0), head(noisy, 0))
    assert not torch.equal(head(noisy, 0), head(noisy, 1))
    assert torch.equal(head(plain, 0), head(plain, 1))
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_input_is_refused(resnet):
    with pytest.raises(ls.BadInput, match=r"\(3, 8, 8\).*takes \(3, 16, 16\)"):
        ls.observe(resnet, ls.bundled_batch(["cat"], size=8), protocol=ls.FedSGD(), generator=seeded())
    wrong = ls.bundled_batch(["cat"], size=16, labels=[10], num_classes=11)
    with pytest.raises(ls.BadInput, match=r"Label 10 is out of range.*10 classes, 0 to 9"):
        ls.observe(resnet, wrong, protocol=ls.FedSGD(), generator=seeded())
    tiny = ls.load_model("torchvision:resnet18", num_classes=10, image_size=32, seed=0)
    with pytest.raises(ls.BadInput, match="one value per channel"):
        ls.observe(tiny, ls.bundled_batch(["cat"], size=32), protocol=ls.FedSGD(mode="train"), generator=seeded())
    with pytest.raises(ls.BadInput, match="accepted: 'train' or 'eval'"):
        ls.FedSGD(mode="training")
    with pytest.raises(ls.BadInput, match="accepted: 'mean' or 'sum'"):
        ls.FedSGD(reduction="max")
