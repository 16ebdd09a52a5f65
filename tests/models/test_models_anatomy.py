"""Anatomies checked by what the named parameters do, not by what they are called."""

import pytest
import torch
from small_models import ALL, SWINS, TRANSFORMERS, images, loaded
from torch import Tensor
from torch.nn import functional as F

from leakscope.models import VisionModel, describe


def gradients(model: VisionModel, x: Tensor) -> dict[str, Tensor]:
    with model.mode(False):
        loss = F.cross_entropy(model(x), torch.arange(len(x)))
        names, parameters = zip(*model.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


@pytest.mark.parametrize("name", ALL)
def test_every_name_exists(name: str) -> None:
    model, a = loaded(name), loaded(name).anatomy
    tensors = {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
    modules = {n for n, _ in model.named_modules()}
    layers = [x for x in (a.classifier, a.first_layer, a.patch_embedding) if x is not None]
    if a.first_attention is not None:
        assert set(a.first_attention.weights) | set(a.first_attention.biases) <= tensors
        layers += [a.first_attention.norm] if a.first_attention.norm else []
    for layer in layers:
        assert layer.weight in tensors
        assert (layer.bias in tensors) if layer.bias else f"{layer.module}.bias" not in tensors
        assert layer.module in modules
    if a.position_embedding is not None:
        assert a.position_embedding.name in tensors
    assert set(a.prefix_tokens) <= tensors
    assert {*a.blocks, *a.norms, *a.stochastic, *a.mixes_samples} <= modules


@pytest.mark.parametrize("name", ALL)
def test_the_classifier_bias_moves_its_logit_alone(name: str) -> None:
    model, head = loaded(name), loaded(name).anatomy.classifier
    assert head is not None
    assert head.bias is not None
    x, bias = images(model, 2), model.state_dict()[head.bias]
    with torch.no_grad(), model.mode(False):
        logits = model(x)
        for k in (0, 6):
            moved = model.functional({head.bias: bias + 0.5 * F.one_hot(torch.tensor(k), 7)}, {}, x) - logits
            expected = torch.zeros(2, 7)
            expected[:, k] = 0.5 * head.scale
            assert torch.allclose(moved, expected, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_the_first_layer_is_where_the_pixels_go(name: str) -> None:
    model, first = loaded(name), loaded(name).anatomy.first_layer
    assert first is not None
    seen: list[Tensor] = []
    handle = model.module.get_submodule(first.module).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = images(model)
    with torch.no_grad(), model.mode(False):
        model(x)
    handle.remove()
    assert torch.equal(seen[0].flatten(), model.normalise(x).flatten())


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_linear_patch_embedding_is_unfold_times_weight(name: str) -> None:
    model, patch = loaded(name), loaded(name).anatomy.patch_embedding
    assert patch is not None
    assert patch.linear
    state, x = model.state_dict(), images(model, 2)
    weight = state[patch.weight].flatten(1)
    tokens = F.unfold(model.normalise(x), patch.patch, stride=patch.patch).mT @ weight.T
    tokens = tokens + (state[patch.bias] if patch.bias else 0)
    assert tokens.shape[1] == patch.grid[0] * patch.grid[1]
    out: list[Tensor] = []
    handle = model.module.get_submodule(patch.module).register_forward_hook(lambda _m, _a, y: out.append(y))
    with torch.no_grad(), model.mode(False):
        model(x)
    handle.remove()
    assert torch.allclose(out[0].flatten(2).mT, tokens, atol=1e-4)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_position_and_patch_gradients_obey_the_linear_identity(name: str) -> None:
    """Δᵀ X = G (one image): rows of the table, prefix count, patch order and linearity all at once; and Σ Δ = ∂L/∂b."""
    model, a = loaded(name), loaded(name).anatomy
    patch, position = a.patch_embedding, a.position_embedding
    assert patch is not None
    assert position is not None
    assert position.learnable
    x = images(model)
    grads = gradients(model, x)
    delta = grads[position.name].flatten(0, -2)[position.prefix_in_table :]  # (P, D)
    assert len(delta) == patch.grid[0] * patch.grid[1]
    patches = F.unfold(model.normalise(x), patch.patch, stride=patch.patch)[0].T  # (P, C·p·p)
    expected = grads[patch.weight].flatten(1)
    assert torch.allclose(delta.T @ patches, expected, atol=1e-4 * float(expected.abs().max()))
    if patch.bias:
        assert torch.allclose(delta.sum(0), grads[patch.bias], atol=1e-4 * float(grads[patch.bias].abs().max()))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_prefix_tokens_are_counted_in_the_sequence(name: str) -> None:
    model, a = loaded(name), loaded(name).anatomy
    assert a.position_embedding is not None
    assert a.patch_embedding is not None
    shapes: list[torch.Size] = []
    handle = model.module.get_submodule(a.blocks[0]).register_forward_pre_hook(
        lambda _, args: shapes.append(args[0].shape)
    )
    with torch.no_grad(), model.mode(False):
        model(images(model))
    handle.remove()
    rows, columns = a.patch_embedding.grid
    assert shapes[0][1] == a.position_embedding.prefix_tokens + rows * columns
    state = model.state_dict()
    assert sum(state[t].shape[-2] for t in a.prefix_tokens) == a.position_embedding.prefix_tokens


@pytest.mark.parametrize("name", TRANSFORMERS | SWINS)
def test_the_first_attention_is_the_first_and_its_norm_feeds_it(name: str) -> None:
    """Its weight gradient lies in the span of what the named norm put out (or the block's input, without a norm)."""
    model, attention = loaded(name), loaded(name).anatomy.first_attention
    assert attention is not None
    state = model.state_dict()
    weight = state[attention.weights[0]]
    assert attention.fused
    assert weight.shape[0] == 3 * weight.shape[1]
    assert weight.shape[1] % attention.heads == 0
    assert model.anatomy.blocks[0] == attention.module.rpartition(".")[0]
    source = attention.norm.module if attention.norm else model.anatomy.blocks[0]
    fed: list[Tensor] = []
    module = model.module.get_submodule(source)
    if attention.norm:
        handle = module.register_forward_hook(lambda _m, _a, y: fed.append(y.detach()))
    else:
        handle = module.register_forward_pre_hook(lambda _m, args: fed.append(args[0].detach()))
    grads = gradients(model, images(model))
    handle.remove()
    rows = fed[0].flatten(0, -2).double()  # (tokens, D)
    gradient = grads[attention.weights[0]].double()
    inside = gradient @ torch.linalg.pinv(rows, rtol=1e-5) @ rows
    assert torch.allclose(inside, gradient, atol=1e-3 * float(gradient.abs().max()))


@pytest.mark.parametrize("name", ALL)
def test_describe_has_readable_rows(name: str) -> None:
    rows = describe(loaded(name))
    labels = [label for label, _ in rows]
    assert labels[:4] == ["model", "family", "input", "classes"]
    assert all(value for _, value in rows)
    assert f"{sum(p.numel() for p in loaded(name).parameters()):,}" in dict(rows)["parameters"]
