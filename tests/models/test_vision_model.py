"""VisionModel: pixels outside, normalisation inside, the wrapped module's own names, and everything as it was."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.errors import BadInput
from leakscope.models import Anatomy, VisionModel, load_model
from leakscope.types import InputSpec

SPEC = InputSpec(shape=(3, 8, 8), num_classes=4, batch_size=5)
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


class Wobbly(nn.Module):
    """BatchNorm, dropout as a layer and as a function, attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, stride=4)
        self.bn = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True)
        self.act = nn.RReLU()
        self.inner = Functional()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.bn(self.conv(x)).flatten(2).mT
        z = self.attention(z, z, z, need_weights=False)[0]
        return self.fc(self.inner(self.act(self.drop(z))).mean(1))


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.3, self.training)


def wrap(module: nn.Module, **changes: object) -> VisionModel:
    options: dict[str, object] = {"input": SPEC, "mean": MEAN, "std": STD, "name": "test"}
    return VisionModel(module, **(options | changes))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def model() -> VisionModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return wrap(Wobbly().eval())


def images(batch: int = 3) -> Tensor:
    return torch.rand(batch, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_normalisation_is_inside(model: VisionModel) -> None:
    x = images()
    by_hand = torch.stack([(x[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)
    assert torch.allclose(model.normalise(x), by_hand, atol=1e-6)
    assert torch.equal(model(x), model.module(model.normalise(x)))
    assert torch.allclose(model.denormalise(model.normalise(x)), x, atol=1e-6)
    assert model.mean.shape == model.std.shape == (3, 1, 1)
    assert model.input.batch_size is None


def test_names_are_the_modules_own(model: VisionModel) -> None:
    bare = Wobbly()
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in bare.named_parameters()]
    assert [n for n, _ in model.named_buffers()] == [n for n, _ in bare.named_buffers()]
    assert list(model.state_dict()) == list(bare.state_dict())
    assert [n for n, _ in model.named_modules()] == [n for n, _ in bare.named_modules()]


def test_functional_uses_what_it_is_given_and_the_models_own_for_the_rest(model: VisionModel) -> None:
    x = images()
    other = wrap(Wobbly().eval())
    parameters, buffers = dict(other.named_parameters()), dict(other.named_buffers())
    assert torch.allclose(model.functional(parameters, buffers, x), other(x))
    assert torch.equal(model.functional({}, {}, x), model(x))
    shifted = {"fc.bias": model.state_dict()["fc.bias"] + 1}
    assert torch.allclose(model.functional(shifted, {}, x), model(x) + 1, atol=1e-6)


def test_functional_with_tied_weights_follows_either_name() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.Linear(192, 192), nn.Linear(192, 4))
    module[2].weight = module[1].weight
    model = wrap(module)
    zero = {"1.weight": torch.zeros(192, 192)}
    assert not torch.allclose(model.functional(zero, {}, images()), model(images()))
    both = copy.deepcopy(module)
    nn.init.zeros_(both[1].weight)
    assert torch.allclose(model.functional(zero, {}, images()), both(model.normalise(images())))


def test_functional_batchnorm_writes_to_given_buffers_only(model: VisionModel) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    with model.mode(True):
        model.functional({}, buffers, images())
    assert not torch.equal(buffers["bn.running_mean"], before["bn.running_mean"])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("stochastic", [False, True])
def test_mode_sets_and_restores_every_flag(model: VisionModel, training: bool, stochastic: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    for _, m in model.named_modules():
        m.training = bool(torch.rand((), generator=generator) < 0.5)
    before = [m.training for _, m in model.named_modules()]
    noisy = {"drop", "attention", "act", "inner"}
    assert set(model.anatomy.stochastic) == noisy
    with model.mode(training, stochastic=stochastic):
        for name, m in model.named_modules():
            assert m.training is (stochastic if name in noisy else training), name
    assert [m.training for _, m in model.named_modules()] == before
    with pytest.raises(KeyError), model.mode(not training):
        raise KeyError
    assert [m.training for _, m in model.named_modules()] == before


def test_stochastic_layers_are_silent_unless_asked(model: VisionModel) -> None:
    x = images()
    with model.mode(True), torch.random.fork_rng():
        state = torch.get_rng_state()
        first = model(x)
        assert torch.equal(state, torch.get_rng_state())
        assert torch.equal(first, model(x))
    with model.mode(False, stochastic=True), torch.random.fork_rng():
        assert not torch.equal(model(x), model(x))
    with model.mode(False):
        assert torch.equal(model(x), model(x))


def test_a_modules_own_train_method_is_respected() -> None:
    class Frozen(nn.BatchNorm2d):
        def train(self, mode: bool = True) -> "Frozen":
            return super().train(False)

    model = wrap(nn.Sequential(nn.Conv2d(3, 4, 3), Frozen(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)))
    with model.mode(True):
        assert model.module[0].training
        assert not model.module[1].training


def test_wrapping_leaves_the_module_and_the_generator_alone() -> None:
    module = Wobbly().train()
    state = {k: v.clone() for k, v in module.state_dict().items()}
    rng = torch.get_rng_state()
    wrap(module)
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert all(m.training for m in module.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_a_given_anatomy_is_taken_as_it_is() -> None:
    anatomy = Anatomy(family="mine")
    assert wrap(Wobbly(), anatomy=anatomy).anatomy is anatomy


def test_to_moves_everything(model: VisionModel) -> None:
    assert model.to(dtype=torch.float64) is model
    assert model.mean.dtype == model.std.dtype == model.dtype == torch.float64
    assert model(images().double()).dtype == torch.float64
    assert model.to() is model
    assert model.device == torch.device("cpu")


def test_fingerprint_follows_weights_buffers_name_and_normalisation(model: VisionModel) -> None:
    prints = {model.fingerprint()}
    assert model.fingerprint() in prints
    assert copy.deepcopy(model).fingerprint() in prints
    for changed in (
        wrap(model.module, name="other"),
        wrap(model.module, mean=(0.0, 0.0, 0.0)),
    ):
        prints.add(changed.fingerprint())
    for name in ("fc.bias", "bn.running_var"):
        other = copy.deepcopy(model)
        other.state_dict()[name][0] += 1e-6
        prints.add(other.fingerprint())
    assert len(prints) == 5


def test_copies_and_pickles_are_whole_and_apart() -> None:
    model = load_model("leakscope:convnet64?width=4", seed=1)
    x = torch.rand(2, 3, 32, 32)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own bytes
        assert torch.equal(twin(x), model(x))
        assert twin.anatomy == model.anatomy
        with twin.mode(True):
            assert twin.module.training
            assert not model.module.training
        next(twin.parameters()).data.zero_()
        assert not torch.equal(twin(x), model(x))


def test_load_state_dict_checks_first(model: VisionModel) -> None:
    other = wrap(Wobbly().eval())
    state = {k: v.clone() for k, v in other.state_dict().items()}
    model.load_state_dict(state)
    assert torch.equal(model(images()), other(images()))
    with pytest.raises(BadInput, match=r"missing: fc\.bias"):
        model.load_state_dict({k: v for k, v in state.items() if k != "fc.bias"})
