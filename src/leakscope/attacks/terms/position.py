"""The position embedding's gradient: where the leak of a transformer sits (APRIL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.attacks.terms.matching import as_seen
from leakscope.errors import NotApplicable
from leakscope.functional.distances import cosine
from leakscope.types import Observation

__all__ = ["PositionDirection"]


@final
@dataclass(frozen=True, slots=True)
class PositionDirection:
    """1 + L_A = 1 − ⟨∇E_pos, ∇E′_pos⟩ / (‖∇E_pos‖ ‖∇E′_pos‖): the direction of one table's gradient (APRIL, Eq. 12).

    APRIL minimises L_A itself, which differs by a constant: here zero is a perfect match, as in every other term.
    """

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        table = observation.model.anatomy.position_embedding
        if table is None:
            raise NotApplicable(f"{observation.model.name} has no position embedding that is known.")
        name, observed = table.name, observation.signal.get(table.name)
        if observed is None:
            reason = "the client does not share it" if table.learnable else "it is fixed, so it has none"
            raise NotApplicable(f"The gradient of the position embedding '{name}' is not in the signal: {reason}.")

        def turned(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            return cosine([as_seen(observation, evaluation.signal)[name]], [observed])

        return turned
