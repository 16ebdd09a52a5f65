"""A campaign: what an operator writes down, as validated data.

Models, images, clients, defences, attackers and attacks are named pieces; a target crosses lists of their names.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "AUTO",
    "NO_DEFENCE",
    "UPDATE",
    "AttackTable",
    "AttackerTable",
    "Budget",
    "Campaign",
    "Controls",
    "DefenceTable",
    "ImagesTable",
    "ModelTable",
    "TargetTable",
]

NO_DEFENCE: Final = "none"
"""The name of the absence of defences, which every campaign has."""
AUTO: Final = "auto"
UPDATE: Final = "update"
"""The key of a client's table that names a captured update: the client ran for real, and only its images are replayed
to check that."""

_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    """Unknown keys are refused, and nothing is converted: "3" is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    def plain(self) -> dict[str, Any]:
        """What was set, as data, without what was left to its default of nothing."""
        return self.model_dump(exclude_none=True, by_alias=True)


class ModelTable(_Table):
    """``[models.NAME]``: as :func:`leakscope.load_model` takes it."""

    name: _Name
    """timm:NAME, torchvision:NAME, leakscope:NAME or path/to/file.py:factory"""
    weights: _Name | None = None
    """safetensors, or a plain state dict; without, weights are drawn at random from the seed"""
    image_size: _Count | None = None
    num_classes: _Count | None = None
    channels: _Count | None = None
    seed: _Seed = 0


class ImagesTable(_Table):
    """``[images.NAME]``: private images, cut into batches."""

    sources: Annotated[list[_Name], Field(min_length=1, alias="from")]
    """files, folders, or photographs that come along: bundled:cat,coffee"""
    labels: list[Annotated[int, Field(ge=0)]] | None = None
    labels_file: _Name | None = None
    """for a detector: JSON with the boxes of every image; without, .txt files beside the images"""
    batch_size: _Count | None = None
    """images per batch; without, all in one batch"""


class DefenceTable(_Table):
    """``[defences.NAME]``: what the client does to its update, in this order."""

    steps: Annotated[list[dict[str, Any]], Field(min_length=1)]


class AttackerTable(_Table):
    """``[attackers.NAME]``: a rung of the knowledge ladder, each knowing one thing more than the one before."""

    rung: Literal["honest-server", "labels", "statistics", "public-data", "defence"] = "honest-server"
    public: list[_Name] = []
    """public images that the server has: files, folders or bundled:NAME"""
    rounds: _Count = 1
    """updates of the same batch that the server sees; one that knows the defence averages them"""


class AttackTable(BaseModel):
    """``[attacks.NAME]``: a registered attack by its ``type``, and any of its options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    type: _Name

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class TargetTable(_Table):
    """``[[targets]]``: every combination of these names is one target."""

    models: Annotated[list[_Name], Field(min_length=1)]
    images: Annotated[list[_Name], Field(min_length=1)]
    clients: Annotated[list[_Name], Field(min_length=1)]
    defences: Annotated[list[_Name], Field(min_length=1)] = [NO_DEFENCE]
    attackers: Annotated[list[_Name], Field(min_length=1)] | None = None
    """by default every attacker of the campaign"""
    attacks: Annotated[list[_Name], Field(min_length=1)] | None = None
    """by default every attack of the campaign"""


class Budget(_Table):
    """``[budget]``: limits. Steps give the same result everywhere; seconds depend on the machine."""

    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """the most time for one cell"""
    steps: _Count | None = None
    """the most steps of one optimisation"""
    cells: _Count | None = None
    """refuse a campaign with more cells than this"""
    ladder: Literal["closed-forms", "short", "tuned"] = "tuned"
    """how far up the ladder "auto" climbs"""


class Controls(_Table):
    """``[controls]``: what makes a verdict trustworthy. Without them "nothing found" cannot be claimed."""

    prior_only: bool = True
    self_tests: bool = True
    identifiability: bool = True
    costs: bool = True
    """what each defence costs in accuracy and bytes: a small network is trained with it and without"""


class Campaign(_Table):
    """The whole file."""

    name: _Name
    question: Annotated[str, Field(max_length=2000)] = "What could the server see of the clients' images?"
    seeds: Annotated[list[_Seed], Field(min_length=1)] = [0]
    models: Annotated[dict[_Name, ModelTable], Field(min_length=1)]
    images: Annotated[dict[_Name, ImagesTable], Field(min_length=1)]
    clients: Annotated[dict[_Name, dict[str, Any]], Field(min_length=1)]
    defences: dict[_Name, DefenceTable] = {}
    attackers: Annotated[dict[_Name, AttackerTable], Field(min_length=1)] = {"server": AttackerTable()}
    attacks: Literal["auto"] | dict[_Name, AttackTable] = AUTO
    targets: Annotated[list[TargetTable], Field(min_length=1)]
    budget: Budget = Budget()
    metrics: Annotated[list[_Name], Field(min_length=1)] | None = None
    verdict: dict[str, Any] = {}
    controls: Controls = Controls()
