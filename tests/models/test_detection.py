"""YOLOv8-nano: the published structure, the real loss, its derivatives, and that it learns to detect."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakscope import load_model
from leakscope.attacks.masks import ActivationPattern
from leakscope.client import FedSGD
from leakscope.errors import BadInput
from leakscope.functional.boxes import complete_iou
from leakscope.models.detection.assigner import assign
from leakscope.models.detection.loss import DetectionLoss
from leakscope.models.zoo.yolov8 import Yolo
from leakscope.testing.bundled import bundled_images

VARIANTS = ("yolov8n", "yolov8n-preact", "yolov8n-basic")
BOXES = torch.tensor([[[0, 0.45, 0.5, 0.8, 0.9], [2, 0.25, 0.3, 0.3, 0.3]], [[1, 0.5, 0.55, 0.7, 0.6], [-1] * 5]])


def small(name: str, *, classes: int = 3) -> tuple[object, Tensor]:
    model = load_model(f"leakscope:{name}", image_size=64, num_classes=classes, seed=0)
    return model, bundled_images(["astronaut", "cat"], 64)


def test_names_shapes_and_count_are_the_published_ones():
    model = load_model("leakscope:yolov8n", image_size=64)
    state = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert sum(p.numel() for p in model.parameters()) == 3_157_200
    expected = {
        "model.0.conv.weight": (16, 3, 3, 3),
        "model.1.bn.running_var": (32,),
        "model.2.m.0.cv1.conv.weight": (16, 16, 3, 3),
        "model.4.cv2.conv.weight": (64, 128, 1, 1),
        "model.6.m.1.cv2.bn.weight": (64,),
        "model.8.cv1.conv.weight": (256, 256, 1, 1),
        "model.9.cv2.conv.weight": (256, 512, 1, 1),
        "model.12.cv1.conv.weight": (128, 384, 1, 1),
        "model.15.cv1.conv.weight": (64, 192, 1, 1),
        "model.16.conv.weight": (64, 64, 3, 3),
        "model.18.cv1.conv.weight": (128, 192, 1, 1),
        "model.19.conv.weight": (128, 128, 3, 3),
        "model.21.cv1.conv.weight": (256, 384, 1, 1),
        "model.22.cv2.0.0.conv.weight": (64, 64, 3, 3),
        "model.22.cv2.2.2.weight": (64, 64, 1, 1),
        "model.22.cv3.1.0.conv.weight": (80, 128, 3, 3),
        "model.22.cv3.2.2.bias": (80,),
        "model.22.dfl.conv.weight": (1, 16, 1, 1),
    }
    assert {name: state.get(name) for name in expected} == expected
    assert {int(name.split(".")[1]) for name in state} == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 18, 19, 21, 22}
    assert model.state_dict()["model.22.dfl.conv.weight"].flatten().tolist() == list(range(16))
    norm = model.module.get_submodule("model.3.bn")
    assert (norm.eps, norm.momentum) == (1e-3, 0.03)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 64 + 80, 8 * 8 + 4 * 4 + 2 * 2)
    assert model.input.boxes


def test_points_stand_in_the_cells_of_the_maps_in_their_order():
    loss = DetectionLoss(image_size=64, num_classes=1)
    points, strides = loss.points(torch.zeros(1))
    pixels = points * strides
    assert pixels[0].tolist() == [4, 4]
    assert pixels[1].tolist() == [12, 4]  # x first: a map is flattened row by row
    assert pixels[64].tolist() == [8, 8]
    assert pixels[-1].tolist() == [48, 48]


def slow_assign(scores, predicted, points, kinds, boxes, present, topk=10):
    """The assigner written out one box and one point at a time, for one image."""
    spots, rows = len(points), range(len(boxes))
    overlap, metric, inside = [[[0.0] * spots for _ in rows] for _ in range(3)]
    for m in rows:
        for a in range(spots):
            x, y = points[a].tolist()
            left, top, right, bottom = boxes[m].tolist()
            if bool(present[m]) and left < x < right and top < y < bottom:
                inside[m][a] = 1
                overlap[m][a] = max(0.0, float(complete_iou(boxes[m], predicted[a])))
                metric[m][a] = float(scores[a, kinds[m]]) ** 0.5 * overlap[m][a] ** 6
    owner: list[list[int]] = [[] for _ in range(spots)]
    for m in rows:
        candidates = sorted((a for a in range(spots) if inside[m][a]), key=lambda a: (-metric[m][a], a))
        for a in candidates[:topk]:
            owner[a].append(m)
    final = [
        max(rows, key=lambda m: (overlap[m][a], -m)) if len(o) > 1 else (o or [None])[0] for a, o in enumerate(owner)
    ]
    target = torch.zeros_like(scores)
    for m in rows:
        mine = [a for a in range(spots) if final[a] == m]
        best_metric = max([metric[m][a] for a in mine], default=0)
        best_overlap = max([overlap[m][a] for a in mine], default=0)
        for a in mine:
            target[a, kinds[m]] = metric[m][a] * best_overlap / (best_metric + 1e-9)
    return final, target


@pytest.mark.parametrize("seed", range(4))
def test_assigner_against_one_written_out(seed):
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    points, _ = DetectionLoss(image_size=64, num_classes=3).points(torch.zeros(1, dtype=torch.float64))
    points = points[:64] * 8
    low = rand(2, 4, 2) * 35
    boxes = torch.cat([low, low + 12 + rand(2, 4, 2) * 16], dim=-1)
    present = torch.tensor([[True, True, True, True], [True, False, True, False]])
    kinds = torch.randint(3, (2, 4), generator=generator)
    spread = 4 + 12 * rand(2, 64, 4)
    predicted = torch.cat([points - spread[..., :2], points + spread[..., 2:]], dim=-1)
    scores = rand(2, 64, 3)
    found = assign(scores, predicted, points, kinds, boxes, present)
    contested = 0
    for image in range(2):
        final, target = slow_assign(scores[image], predicted[image], points, kinds[image], boxes[image], present[image])
        assert found.chosen[image].tolist() == [m is not None for m in final]
        for a, m in enumerate(final):
            if m is not None:
                assert found.boxes[image, a].tolist() == boxes[image, m].tolist()
        torch.testing.assert_close(found.scores[image], target, rtol=1e-9, atol=1e-12)
        contested += len(set(final)) > 2
    assert contested  # boxes overlap here, or the test would test little


def test_an_image_without_boxes_has_a_loss_too():
    loss = DetectionLoss(image_size=64, num_classes=3)
    outputs = torch.randn(1, 67, 84, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = loss(outputs, torch.full((1, 2, 5), -1.0))
    (slope,) = torch.autograd.grad(found, outputs)
    assert slope[:, :64].eq(0).all()  # nothing to say about boxes
    assert slope[:, 64:].gt(0).all()  # and every class is one too many


@pytest.mark.parametrize("name", VARIANTS)
def test_first_and_second_derivative_against_differences(name):
    """∇θ L, and ∇x ⟨∇θ L, v⟩, in float64; what the loss holds constant is kept from the base point."""
    model, images = small(name)
    model = model.to(dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    # The class logits of an untrained head are all but −∞, so nothing would be assigned with any weight.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    client = FedSGD(mode="train")
    pattern = ActivationPattern()
    x = images.double().requires_grad_()
    leaves = client.leaves(model)
    with pattern.record():
        loss = client.loss(model, x, BOXES, parameters=leaves)
    gradient = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    along = [torch.randn(g.shape, generator=generator, dtype=torch.float64) for g in gradient]
    product = sum((g * v).sum() for g, v in zip(gradient, along, strict=True))
    (second,) = torch.autograd.grad(product, x, retain_graph=True)
    product = product.detach()
    by_name = dict(zip(leaves, gradient, strict=True))
    assert by_name["model.22.cv2.0.2.weight"].abs().max() > 1e-3  # boxes were assigned, with a weight

    def at(step: float) -> Tensor:
        moved = {n: (p + step * v).detach() for (n, p), v in zip(leaves.items(), along, strict=True)}
        with pattern.impose(), torch.no_grad():
            return client.loss(model, x, BOXES, parameters=moved)

    h = 1e-7
    assert float((at(h) - at(-h)) / (2 * h)) == pytest.approx(float(product), rel=1e-4)

    towards = torch.randn(x.shape, generator=generator, dtype=torch.float64)

    def product_at(step: float) -> Tensor:
        fresh = client.leaves(model)
        with pattern.impose():
            moved = client.loss(model, (x + step * towards).detach(), BOXES, parameters=fresh)
        found = torch.autograd.grad(moved, list(fresh.values()))
        return sum((g * v).sum() for g, v in zip(found, along, strict=True))

    quotient = float((product_at(h) - product_at(-h)) / (2 * h))
    assert quotient == pytest.approx(float((second * towards).sum()), rel=1e-3)


def test_it_learns_to_detect():
    """A few steps on two pictures: the loss falls, and the surest box is the right one, of the right class."""
    model, images = small("yolov8n")
    client = FedSGD(mode="train")
    module = model.module
    assert isinstance(module, Yolo)
    boxes = BOXES[:, :1]
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(60):
        loss = client.loss(model, images, boxes, parameters=dict(model.named_parameters()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
    with model.mode(training=True), torch.no_grad():  # two pictures are too few for running statistics
        corners, scores = module.loss.decode(model(images))
    for image in range(2):
        sure = scores[image].amax(1).argmax()
        kind, x, y, width, height = boxes[image, 0].tolist()
        truth = torch.tensor([x - width / 2, y - height / 2, x + width / 2, y + height / 2]) * 64
        assert scores[image, sure].argmax() == kind
        assert complete_iou(corners[image, sure], truth) > 0.7


def test_labels_that_do_not_fit_the_model_are_refused():
    model, images = small("yolov8n")
    with pytest.raises(BadInput, match="learns from boxes"):
        FedSGD(mode="train").replay(model, images, torch.tensor([0, 1]))
    with pytest.raises(BadInput, match="multiple of 32"):
        load_model("leakscope:yolov8n", image_size=60)
