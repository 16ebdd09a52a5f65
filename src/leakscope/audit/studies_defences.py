"""Defences × attackers × (leakage, utility, bytes, ε), as plain rows.

Every defence meets two servers: a naive one, which ignores it, and an adaptive one, which knows it and uses that
(masks, signs, clipping, pooled rounds). No defence is scored by the first alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch

from leakscope.attacks.rounds import pooled
from leakscope.audit.utility import BUDGET, Budget, Training, Utility, best_training, crops, encoded_bytes, utility
from leakscope.client import FedSGD, observe, threats
from leakscope.client.round import run_round
from leakscope.errors import NotApplicable
from leakscope.metrics import score
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Attack, Batch, ClientProtocol, Defence, Knows, Observation, Setting, ThreatModel

__all__ = ["NO_DEFENCE", "DefenceRow", "Price", "defence_table", "leakage"]

NO_DEFENCE: Final = "none"
_PROTOCOL: Final = FedSGD()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DefenceRow:
    """One attack by one server on one defended client.

    ``psnr`` and ``ssim`` are per private image, empty where the attack does not apply; then ``reason`` says why.
    """

    defence: str
    attacker: Literal["naive", "adaptive"]
    attack: str
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    reason: str
    seconds: float
    bytes_sent: int
    utility: Utility | None

    @property
    def worst(self) -> float:
        """The PSNR of the image that leaked most; −∞ where nothing came back."""
        return max(self.psnr, default=float("-inf"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """How utility is measured: on a small trainable ``model``, with this budget, on (training, held-out) data."""

    model: VisionModel
    budget: Budget = BUDGET
    data: tuple[Batch, Batch] | None = None


def defence_table(
    model: VisionModel,
    batch: Batch,
    defences: Mapping[str, Sequence[Defence]],
    attacks: Mapping[str, Attack],
    *,
    protocol: ClientProtocol = _PROTOCOL,
    others: Batch | None = None,
    rounds: int = 1,
    threat: ThreatModel = threats.WITH_LABELS,
    price: Price | None = None,
    seed: int = 0,
    callback: Callable[[DefenceRow], None] | None = None,
) -> list[DefenceRow]:
    """Every attack against every defence, by the naive and by the adaptive server; no defence at all comes first.

    ``others`` are images for defences that hide the batch among more; ``rounds`` how often the adaptive server asks.
    Without ``price`` no utility is measured.
    """
    generator = torch.Generator().manual_seed(seed)
    plain = _plain(price, generator)
    rows: list[DefenceRow] = []
    for name, chain in {NO_DEFENCE: (), **defences}.items():
        cost = None if price is None or plain is None else _cost(price, chain, plain, generator)
        for attacker, seen, truth in _servers(model, batch, chain, protocol, others, rounds, threat, generator):
            for attack_name, attack in attacks.items():
                started = time.perf_counter()
                psnr, ssim, reason = leakage(attack, seen, truth, len(batch), fork(generator, f"attack/{attack_name}"))
                row = DefenceRow(
                    defence=name,
                    attacker=attacker,
                    attack=attack_name,
                    psnr=psnr,
                    ssim=ssim,
                    reason=reason,
                    seconds=time.perf_counter() - started,
                    bytes_sent=encoded_bytes(chain, seen.signal),
                    utility=cost,
                )
                rows.append(row)
                if callback is not None:
                    callback(row)
    return rows


def leakage(
    attack: Attack, seen: Observation, truth: Batch, private: int, generator: torch.Generator
) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """PSNR and SSIM of the first ``private`` images of ``truth``, or why the attack does not apply."""
    try:
        found = attack(pooled(seen), generator=generator)
        scores = score(found, truth, metrics=["psnr", "ssim"])
    except NotApplicable as reason:
        return (), (), str(reason)
    psnr, ssim = (tuple(float(v) for v in scores[name][:private]) for name in ("psnr", "ssim"))
    return psnr, ssim, ""


def _servers(
    model: VisionModel,
    batch: Batch,
    chain: Sequence[Defence],
    protocol: ClientProtocol,
    others: Batch | None,
    rounds: int,
    threat: ThreatModel,
    generator: torch.Generator,
) -> Iterator[tuple[Literal["naive", "adaptive"], Observation, Batch]]:
    """What each server sees, and the images that were trained on: the private ones first, then their company."""
    images = batch.images.to(device=model.device, dtype=model.dtype)
    start = Setting(
        model=model,
        images=images,
        labels=batch.labels.to(model.device),
        protocol=protocol,
        aware=protocol,
        unaware=protocol,
        others=others,
    )
    done, _ = run_round(start, chain, generator=generator)  # the same draws as in observe
    truth = batch
    if len(done.images) > len(batch):
        more, labels = done.images[len(batch) :].cpu(), done.labels[len(batch) :].cpu()
        truth = Batch(images=torch.cat([batch.images, more]), labels=torch.cat([batch.labels, labels]))
    kinds: list[tuple[Literal["naive", "adaptive"], ThreatModel, int]] = [("naive", threat, 1)]
    if chain:
        kinds.append(("adaptive", threat.plus(Knows.DEFENCE), rounds))
    for attacker, knowing, asked in kinds:
        seen = observe(
            model,
            batch,
            protocol=protocol,
            threat=knowing,
            defences=chain,
            others=others,
            rounds=asked,
            generator=generator,
        )
        yield attacker, seen, truth


def _plain(price: Price | None, generator: torch.Generator) -> Training | None:
    if price is None:
        return None
    return best_training(
        price.model, (), _data(price), budget=price.budget, protocol=_PROTOCOL, generator=fork(generator, "utility")
    )


def _cost(price: Price, chain: Sequence[Defence], plain: Training, generator: torch.Generator) -> Utility:
    return utility(
        price.model,
        chain,
        budget=price.budget,
        data=_data(price),
        plain=plain,
        generator=fork(generator, "utility"),
    )


def _data(price: Price) -> tuple[Batch, Batch]:
    shape = price.model.input.shape
    return crops(shape[1], shape[0]) if price.data is None else price.data
