"""The peer's worker: runs breaching's own attacks, on breaching's own models, inside the peer's environment.

``peers.py`` starts it; see ``_peer_worker.py`` for the conversation. The attack's configuration is the one breaching
ships (``invertinggradients`` or ``deepleakage``): the number of steps and the starting noise are set, nothing else is
changed. The user is breaching's ``UserSingleStep`` with public buffers (evaluation mode).
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import logging
import sys
import warnings

import torch
from omegaconf import OmegaConf
from torch import Tensor

from _peer_worker import Job, Run, numbered, relative_error, serve

MODELS = {"convnet64": "ConvNet", "resnet18": "ResNet18", "lenet-dlg": "lenet_zhu"}
ATTACKS = {"inverting-gradients": "invertinggradients", "dlg": "deepleakage"}
CLIENT_KEEPS_LABELS = {"dlg"}
"""breaching's DLG estimates the labels together with the image and refuses to be told them."""
SETUP = {"dtype": torch.float, "device": torch.device("cpu")}


def import_breaching():
    """Import breaching, which needs torchvision.

    A torchvision built for another torch cannot load its operators and then fails on declaring ``nms``. None of them is
    used here, so in that case (only) their schemas are declared by hand and the import is tried again.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_breaching.operators = operators  # a library's declarations live as long as it does
    return importlib.import_module("breaching")


def prepare(job: Job, weights: dict[str, Tensor], sample: dict[str, Tensor]) -> Run:
    """breaching's model, server, user and attacker for one job, up to the point where the attack starts."""
    case = breaching.get_case_config(
        case="1_single_image_small",
        overrides=[
            "data=CIFAR10",
            f"model={MODELS[job.model]}",
            "server.pretrained=False",
            f"user.provide_labels={job.attack not in CLIENT_KEEPS_LABELS}",
            f"data.classes={job.num_classes}",
            f"data.shape={list(sample['image'].shape[1:])}",
            f"data.mean={list(job.mean)}",
            f"data.std={list(job.std)}",
        ],
    )
    attack = breaching.get_attack_config(
        ATTACKS[job.attack], overrides=[f"optim.max_iterations={job.steps}", *job.options]
    )
    model, loss = breaching.cases.construct_model(case.model, case.data, pretrained=False)
    load(model, numbered(weights, "p"), numbered(weights, "b"))
    server = breaching.cases.construct_server(model, loss, case, SETUP)
    model = server.vet_model(model)

    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (job.mean, job.std))
    loader = [{"inputs": (sample["image"] - mean) / std, "labels": sample["label"]}]
    user = breaching.cases.users.UserSingleStep(model, loss, loader, SETUP, idx=0, cfg_user=case.user)
    shared, payloads, _ = server.run_protocol(user)

    def go(steps: int) -> tuple[Tensor, int]:
        config = copy.deepcopy(attack)
        config.optim.max_iterations = steps
        torch.manual_seed(job.seed)
        attacker = breaching.attacks.prepare_attack(server.model, server.loss, config, SETUP)
        found, stats = attacker.reconstruct(payloads, shared, server.secrets, initial_data=sample["start"])
        return found["data"].detach() * std + mean, len(stats["Trial_0_Val"])

    return Run(
        go=go,
        gradient_error=relative_error(list(shared[0]["gradients"]), numbered(sample, "g")),
        notes={"model": MODELS[job.model], "settings": OmegaConf.to_container(attack)},
    )


def load(model: torch.nn.Module, parameters: list[Tensor], buffers: list[Tensor]) -> None:
    """Copy our weights onto breaching's model by order. Shapes must agree; the gradient check catches the rest."""
    for kind, theirs, ours in (
        ("parameters", list(model.parameters()), parameters),
        ("buffers", list(model.buffers()), buffers),
    ):
        if [t.shape for t in theirs] != [o.shape for o in ours]:
            raise ValueError(f"The {kind} of the two models differ in shape or order; they are not the same network.")
        with torch.no_grad():
            for target, source in zip(theirs, ours, strict=True):
                target.copy_(source)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    breaching = import_breaching()
    serve(prepare, {"tool": "breaching", "version": importlib.metadata.version("breaching")})
