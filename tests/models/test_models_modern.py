"""Modern architectures at 32 px: they keep depth and width, see every pixel, and are known to the anatomy."""

import pytest
import torch
from torch import nn

from leakscope._torchvision_ops import ensure
from leakscope.errors import BadInput
from leakscope.models import MODELS, load_model

ensure()
import timm  # noqa: E402

ORIGINALS = {
    "swin-t-32": ("swin_tiny_patch4_window7_224", "swin", 12),
    "swinv2-t-32": ("swinv2_tiny_window8_256", "swin", 12),
    "convnext-t-32": ("convnext_tiny", "convnext", 18),
    "maxvit-t-32": ("maxvit_tiny_tf_224", "maxvit", 11),
    "vit-b-32": ("vit_base_patch16_224", "vit", 12),
}
FIRST = {  # the layer that sees the pixels, its kernel and its stride
    "swin-t-32": ("patch_embed.proj", 2, 2),
    "swinv2-t-32": ("patch_embed.proj", 2, 2),
    "convnext-t-32": ("stem.0", 3, 1),
    "maxvit-t-32": ("stem.conv1", 3, 1),
    "vit-b-32": ("patch_embed.proj", 4, 4),
}
CHANGED = ("stem.", "patch_embed.", "pos_embed", "relative_position", "attn_mask", "rel_pos", "head.")


def test_every_one_is_tried():
    assert {name for name in MODELS if name.endswith("-32")} == set(ORIGINALS)


@pytest.mark.parametrize("name", ORIGINALS)
def test_depth_and_width_are_kept_and_the_first_layer_is_finer(name):
    original, family, blocks = ORIGINALS[name]
    made = load_model(f"leakscope:{name}", num_classes=7)
    with torch.device("meta"):  # shapes only: nothing is drawn
        reference = timm.create_model(original)
    shapes = {n: p.shape for n, p in reference.named_parameters() if not any(part in n for part in CHANGED)}
    mine = {n: p.shape for n, p in made.named_parameters() if not any(part in n for part in CHANGED)}
    assert mine == shapes
    assert made.anatomy.family == family
    assert len(made.anatomy.blocks) == blocks
    assert made.anatomy.classifier is not None
    with torch.no_grad():
        answer = made(torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert answer.shape == (1, 7)
    assert torch.isfinite(answer).all()
    layer, kernel, stride = FIRST[name]
    first = made.module.get_submodule(layer)
    assert isinstance(first, nn.Conv2d)
    assert (first.kernel_size, first.stride) == ((kernel, kernel), (stride, stride))
    assert made.anatomy.first_layer.module == layer
    assert float(first.weight.detach().std()) > 0.005


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(BadInput, match="multiple of 16"):
        load_model("leakscope:swin-t-32", image_size=30)
