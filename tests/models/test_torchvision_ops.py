"""The torchvision shim: defines what is missing, and only what is missing."""

import subprocess
import sys
import textwrap

import pytest
import torch

from leakscope._torchvision_ops import ensure, nms


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def slow_nms(boxes: list[list[float]], scores: list[float], threshold: float) -> list[int]:
    """One box at a time, in plain Python."""

    def iou(a: list[float], b: list[float]) -> float:
        width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
        height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
        both = width * height
        return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)

    kept: list[int] = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        if all(iou(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    return kept


def boxes_and_scores(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(n, 2, generator=generator) * 10
    size = torch.rand(n, 2, generator=generator) * 8 + 0.1
    return torch.cat([corner, corner + size], 1), torch.rand(n, generator=generator)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("n", [0, 1, 2, 60])
def test_nms_equals_a_slow_reference(n: int, threshold: float) -> None:
    boxes, scores = boxes_and_scores(n, seed=n)
    expected = slow_nms(boxes.double().tolist(), scores.tolist(), threshold)
    assert nms(boxes, scores, threshold).tolist() == expected


def test_torchvision_and_timm_import_after_it_and_detection_can_use_nms() -> None:
    ensure()
    import timm
    import torchvision

    assert timm.list_models("vit_tiny*")
    assert torchvision.models.list_models()
    ensure(detection=True)
    boxes, scores = boxes_and_scores(40, seed=7)
    expected = slow_nms(boxes.double().tolist(), scores.tolist(), 0.4)
    assert torch.ops.torchvision.nms(boxes, scores, 0.4).tolist() == expected
    assert torchvision.ops.nms(boxes, scores, 0.4).tolist() == expected
    groups = torch.arange(40) % 2
    per_group = torchvision.ops.batched_nms(boxes, scores, groups, 0.4).tolist()
    halves = [[i for i in per_group if groups[i] == g] for g in (0, 1)]
    for g, half in enumerate(halves):
        own = (groups == g).nonzero().flatten().tolist()
        assert half == [own[i] for i in slow_nms(boxes[own].double().tolist(), scores[own].tolist(), 0.4)]


def test_real_operators_are_left_alone() -> None:
    """With a torchvision library already there, nothing is defined, registered or replaced."""
    out = run(
        """
        import torch
        real = torch.library.Library("torchvision", "DEF")
        real.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        real.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        real.impl("nms", lambda dets, scores, iou_threshold: torch.tensor([42]), "CPU")
        from leakscope import _torchvision_ops as shim
        print(shim.ensure(), shim.ensure(detection=True), len(shim._kept))
        print(torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5).tolist())
        import leakscope.models, torchvision
        print(torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5).tolist())
        """
    )
    assert out.splitlines() == ["False False 0", "[42]", "[42]"]


def test_without_torchvision_nothing_is_defined() -> None:
    out = run(
        """
        import importlib.util, torch
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name == "torchvision" else find(name, *a)
        from leakscope._torchvision_ops import ensure
        print(ensure(), hasattr(torch.ops.torchvision, "nms"))
        """
    )
    assert out == "False False"


def test_importing_models_makes_torchvision_importable_without_importing_it() -> None:
    out = run(
        """
        import sys, leakscope.models
        print("torchvision" in sys.modules, "timm" in sys.modules)
        import torchvision, timm
        from leakscope._torchvision_ops import ensure
        print(ensure() == ensure())
        """
    )
    assert out.splitlines() == ["False False", "True"]
