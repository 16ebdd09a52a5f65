"""Which components' gradients leak: attention or MLP, convolution or norm, embedding or head."""

from collections.abc import Iterator

from torch import nn

from leakscope.audit.studies.layers import parts_of_gradient
from leakscope.audit.study import Point, Setup, register_study
from leakscope.models import VisionModel


@register_study("components", x="part", series="shared")
def components(setup: Setup) -> Iterator[Point]:
    """The gradients of attention, MLP, convolutions, norms, embeddings and head: alone, and without.

    GradViT's Table 5 for any model.
    """
    yield from parts_of_gradient(setup, kinds(setup.model))


def kinds(model: VisionModel) -> dict[str, list[str]]:
    """Parameter names by what kind of module holds them."""
    anatomy = model.anatomy
    head = anatomy.classifier.module if anatomy.classifier else None
    embedding = anatomy.patch_embedding.module if anatomy.patch_embedding else None
    table = anatomy.position_embedding.name if anatomy.position_embedding else None
    modules = dict(model.named_modules())
    found: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        owner, words = name.rpartition(".")[0], name.lower().split(".")
        module = modules.get(owner)
        if head is not None and owner == head:
            kind = "head"
        elif embedding is not None and owner == embedding:
            kind = "patch embedding"
        elif name == table:
            kind = "position embedding"
        elif any(word in ("attn", "self_attention", "attention") for word in words):
            kind = "attention"
        elif any(word.startswith(("mlp", "ffn", "fc")) for word in words):
            kind = "MLP"
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            kind = "convolutions"
        elif module is not None and "norm" in type(module).__name__.lower():
            kind = "norms"
        elif isinstance(module, nn.Linear):
            kind = "linear layers"
        else:
            kind = "tokens and others"
        found.setdefault(kind, []).append(name)
    return found
