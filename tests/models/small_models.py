"""Real timm and torchvision classes, made small so that tests over all of them take seconds."""

from functools import cache, partial

import torch
from torch import Tensor, nn

from leakscope._torchvision_ops import ensure
from leakscope.models import VisionModel, load_model
from leakscope.types import InputSpec

ensure()
import timm  # noqa: E402
from torchvision import models as tv  # noqa: E402

CLASSES = 7
VIT = partial(timm.create_model, "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2)
SWIN = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "num_classes": CLASSES}
TV_SWIN = partial(
    tv.SwinTransformer, [4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=CLASSES, stochastic_depth_prob=0.2
)
TRANSFORMERS = {
    "vit": lambda: VIT(num_classes=CLASSES),
    "vit without qkv bias": lambda: VIT(num_classes=CLASSES, qkv_bias=False),
    "vit with qk norm": lambda: VIT(num_classes=CLASSES, qk_norm=True),
    "vit, average pool": lambda: VIT(num_classes=CLASSES, class_token=False, global_pool="avg"),
    "vit, table without class": lambda: VIT(num_classes=CLASSES, no_embed_class=True),
    "vit, registers": lambda: VIT(num_classes=CLASSES, reg_tokens=4),
    "vit, registers, bare table": lambda: VIT(num_classes=CLASSES, reg_tokens=4, no_embed_class=True),
    "vit, clip": lambda: VIT(num_classes=CLASSES, pre_norm=True),
    "vit, layer scale, dropout": lambda: VIT(
        num_classes=CLASSES, init_values=0.1, pos_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.2
    ),
    "deit": lambda: timm.create_model("deit_tiny_patch16_224", img_size=32, num_classes=CLASSES, depth=2),
    "deit distilled": lambda: timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, num_classes=CLASSES, depth=2
    ),
    "torchvision vit": lambda: tv.VisionTransformer(32, 8, 2, 3, 48, 96, num_classes=CLASSES),
    "torchvision vit, dropout": lambda: tv.VisionTransformer(
        32, 8, 2, 3, 48, 96, num_classes=CLASSES, dropout=0.1, attention_dropout=0.1, representation_size=24
    ),
    "april-a": lambda: load_model("leakscope:april-a", num_classes=CLASSES).module,
    "april-b": lambda: load_model("leakscope:april-b", num_classes=CLASSES).module,
}
SWINS = {
    "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=32, window_size=4, **SWIN),
    "swin v2": lambda: timm.create_model("swinv2_tiny_window8_256", img_size=32, window_size=4, **SWIN),
    "torchvision swin": TV_SWIN,
    "torchvision swin v2": lambda: TV_SWIN(
        block=tv.swin_transformer.SwinTransformerBlockV2, downsample_layer=tv.swin_transformer.PatchMergingV2
    ),
}
CONVOLUTIONAL = {
    "resnet18": lambda: timm.create_model("resnet18", num_classes=CLASSES),
    "resnet, deep stem": lambda: timm.create_model("resnet26d", num_classes=CLASSES),
    "resnetv2": lambda: timm.create_model("resnetv2_18", num_classes=CLASSES),
    "convnext": lambda: timm.create_model("convnext_atto", num_classes=CLASSES),
    "convnext, overlapping stem": lambda: timm.create_model("convnext_atto_ols", num_classes=CLASSES),
    "efficientnet": lambda: timm.create_model("efficientnet_lite0", num_classes=CLASSES),
    "torchvision resnet18": lambda: tv.resnet18(num_classes=CLASSES),
    "torchvision convnext": lambda: tv.ConvNeXt(
        [tv.convnext.CNBlockConfig(16, 32, 2), tv.convnext.CNBlockConfig(32, None, 3)], 0.1, num_classes=CLASSES
    ),
}
UNKNOWN = {
    "mobilenet": lambda: tv.mobilenet_v3_small(num_classes=CLASSES),
    "vit with relative positions": lambda: timm.create_model(
        "vit_relpos_small_patch16_224", img_size=32, depth=2, num_classes=CLASSES
    ),
}
OWN = {
    name: partial(lambda name: load_model(f"leakscope:{name}", num_classes=CLASSES).module, name)
    for name in ("lenet-dlg", "convnet64?width=8", "resnet18", "resnet18-preact", "resnet20", "mlp")
}
ALL = TRANSFORMERS | SWINS | CONVOLUTIONAL | UNKNOWN | OWN


def wrap(module: nn.Module, shape: tuple[int, int, int] = (3, 8, 8), num_classes: int = 4) -> VisionModel:
    spec = InputSpec(shape=shape, num_classes=num_classes)
    return VisionModel(module, input=spec, mean=(0.4, 0.5, 0.6), std=(0.3, 0.2, 0.1), name="test")


@cache
def loaded(name: str) -> VisionModel:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        module = ALL[name]()
        for p in module.parameters():  # heads that start at zero and almost equal tokens would hide mistakes
            p += 0.02 * torch.randn(p.shape)
    return wrap(module, (3, 32, 32), CLASSES)


def images(model: VisionModel, batch: int = 1) -> Tensor:
    return torch.rand(batch, *model.input.shape, generator=torch.Generator().manual_seed(3))
