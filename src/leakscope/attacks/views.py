"""Views: an observation shown to an attack as something simpler than it is, and the way back from what it found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, final

import torch

from leakscope.attacks.labels import known_or_recovered
from leakscope.attacks.terms.statistics import Source, chosen_source
from leakscope.client.fedavg import FedAvg
from leakscope.client.gradient_view import as_gradient
from leakscope.client.per_epoch import PerEpoch
from leakscope.functional.matching import match
from leakscope.types import Observation, Reconstruction

__all__ = ["AsItIs", "DeltaAsGradient", "EpochCopies", "View", "WithStatistics"]


class View(Protocol):
    """What the loop is shown, and what becomes of its answer."""

    def see(self, observation: Observation) -> Observation:
        """The observation that the loop gets."""
        ...

    def collect(self, observation: Observation, found: Reconstruction) -> Reconstruction:
        """What was found, as an answer to the observation itself."""
        ...


@final
@dataclass(frozen=True, slots=True)
class AsItIs:
    """The observation itself."""

    def see(self, observation: Observation) -> Observation:
        return observation

    def collect(self, observation: Observation, found: Reconstruction) -> Reconstruction:
        return found


@final
@dataclass(frozen=True, slots=True)
class WithStatistics:
    """The observation itself; the evidence says which normalisation statistics were matched, ``none`` included."""

    statistics: Source

    def see(self, observation: Observation) -> Observation:
        return observation

    def collect(self, observation: Observation, found: Reconstruction) -> Reconstruction:
        source = chosen_source(observation, self.statistics)
        return replace(found, evidence={**found.evidence, "statistics": source})


@final
@dataclass(frozen=True, slots=True)
class DeltaAsGradient:
    """A weight delta as a gradient, Δ / (−η K): one forward-backward pass a step in place of K of them."""

    def see(self, observation: Observation) -> Observation:
        return as_gradient(observation)

    def collect(self, observation: Observation, found: Reconstruction) -> Reconstruction:
        return found


@final
@dataclass(frozen=True, slots=True)
class EpochCopies:
    """For a client that visits its images in an order the server does not know: a copy of the batch for each epoch.

    Afterwards the copies of an image are found by pairing epochs (least total squared error) and averaged. Nothing
    changes for a client with a single epoch: there any order is only a way to name the images.
    """

    def see(self, observation: Observation) -> Observation:
        client = observation.protocol
        if not isinstance(client, FedAvg):
            return observation
        copies = PerEpoch(client=client, count=observation.batch_size)
        if copies.epochs == 1:
            return observation
        # Which labels met in a step is not known either: every epoch takes them in the same arbitrary order.
        labels = torch.cat([known_or_recovered(observation, torch.Generator()).values] * copies.epochs)
        size = replace(observation.input, batch_size=copies.epochs * copies.count)
        return replace(observation, protocol=copies, input=size, labels=labels)

    def collect(self, observation: Observation, found: Reconstruction) -> Reconstruction:
        count = observation.batch_size
        if len(found.images) == count or not isinstance(observation.protocol, FedAvg):
            return found
        whole = max(1, PerEpoch(client=observation.protocol, count=count).whole_epochs)
        first, *rest = found.images.split(count)[:whole]
        paired = torch.stack([first, *(copy[match(copy, first).to(copy.device)] for copy in rest)])  # (E, B, C, H, W)
        evidence = {
            **found.evidence,
            "labels": "known" if observation.labels is not None else "recovered",
            "spread of copies": float(paired.std(0, correction=0).mean()),
        }
        return replace(found, images=paired.mean(0), labels=found.labels[:count], evidence=evidence)
