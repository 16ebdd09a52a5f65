"""LoRA adapters: the model computes the same, only A and B travel, and the anatomy is still found."""

import pytest
import torch
from local_training import seeded, small_batch, small_model

import leakscope as ls
from leakscope.client.lora import LoraLinear, add_lora


@pytest.fixture(scope="module")
def vit():
    return ls.load_model("timm:vit_tiny_patch16_224", num_classes=10, image_size=32, seed=0)


def test_adapters_travel_and_nothing_else(vit):
    batch = ls.bundled_batch(["cat"], size=32)
    tuned = add_lora(vit, ["blocks.*.attn.qkv", "head"], rank=2, generator=seeded())
    assert torch.equal(tuned(batch.images), vit(batch.images))  # B is zero
    assert tuned.anatomy.classifier == vit.anatomy.classifier
    assert tuned.anatomy.patch_embedding == vit.anatomy.patch_embedding
    seen = ls.observe(tuned, batch, protocol=ls.FedAvg(steps=2), generator=seeded())
    assert set(seen.signal) == {
        f"{layer}.lora_{side}" for layer in [*(f"blocks.{i}.attn.qkv" for i in range(12)), "head"] for side in "AB"
    }
    assert seen.signal["head.lora_A"].shape == (2, 192)
    assert seen.signal["head.lora_B"].shape == (10, 2)
    assert all(p.requires_grad for p in vit.parameters())  # the model it was made from is as it was
    with pytest.raises(ls.NotApplicable):
        ls.attack("patch-embedding")(seen, generator=seeded())


def test_it_is_the_layer_with_another_weight():
    linear = torch.nn.Linear(5, 4)
    tuned = LoraLinear(linear, rank=2, alpha=6.0, generator=seeded())
    tuned.lora_B.data.normal_(generator=seeded(1))
    x = torch.randn(3, 5, generator=seeded(2))
    weight = linear.weight + 3.0 * tuned.lora_B @ tuned.lora_A
    torch.testing.assert_close(tuned(x), torch.nn.functional.linear(x, weight, linear.bias))
    without = LoraLinear(torch.nn.Linear(5, 4, bias=False), rank=2, alpha=2.0, generator=seeded())
    assert without.bias is None
    assert dict(without.named_parameters()).keys() == {"weight", "lora_A", "lora_B"}


def test_the_engine_works_on_adapters():
    model, batch = small_model(), small_batch(1)
    tuned = add_lora(model, ["head"], rank=4, generator=seeded())
    seen = ls.observe(tuned, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded())
    first = ls.attack("inverting-gradients", steps=1)(seen, generator=seeded(1))
    later = ls.attack("inverting-gradients", steps=60)(seen, generator=seeded(1))
    assert later.energy < 0.5 * first.energy


def test_what_takes_no_adapter_is_refused(vit):
    with pytest.raises(ls.BadInput, match=r"'blocks.\*.qvk' matches no plain linear layer.*qkv"):
        add_lora(vit, ["blocks.*.qvk"], generator=seeded())
    with pytest.raises(ls.BadInput, match="rank is 0"):
        add_lora(vit, ["head"], rank=0, generator=seeded())
    with pytest.raises(ls.BadInput, match="No layer was named"):
        add_lora(vit, [], generator=seeded())


def test_torchs_attention_reads_its_projection_past_forward():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.Linear(192, 10)

        def forward(self, x):
            tokens = x.reshape(len(x), 24, 8)
            return self.head(self.attention(tokens, tokens, tokens)[0].flatten(1))

    spec = ls.InputSpec(shape=(3, 8, 8), num_classes=10)
    model = ls.VisionModel(Net(), input=spec, mean=(0.5,) * 3, std=(0.5,) * 3, name="attention")
    with pytest.raises(ls.BadInput, match=r"'attention.out_proj' matches no plain linear layer"):
        add_lora(model, ["attention.out_proj"], generator=seeded())
