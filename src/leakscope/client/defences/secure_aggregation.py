"""Secure aggregation: the server sees the mean over several clients only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from leakscope.client.aggregation import SecureAggregation
from leakscope.client.defences._others import drawn_others
from leakscope.client.defences._parts import whole
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting

__all__ = ["AmongClients"]


@final
@register_defence("secure-aggregation", cites="bonawitz2017")
@dataclass(frozen=True, slots=True, kw_only=True)
class AmongClients(Defence):
    """Shows the server only the mean over ``clients`` clients, each with a batch of the same size; this one is first.

    The other clients' images are drawn from the images that are not under attack. The server knows: it takes part.
    """

    same_images: ClassVar[bool] = False

    clients: int = 4

    def __post_init__(self) -> None:
        whole("clients", self.clients)

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        if self.clients == 1:
            return setting
        own = len(setting.images)
        images, labels = drawn_others(setting, own * (self.clients - 1), self.name, generator)
        more = replace(setting, images=torch.cat([setting.images, images]), labels=torch.cat([setting.labels, labels]))
        sizes = (own,) * self.clients
        return more.follow(lambda protocol: SecureAggregation(client=protocol, sizes=sizes), openly=True)
