"""Map from what a client trains to the network of its forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from fl_core.base.libraries import Tensor
from fl_core.models.layout import Layout
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.sparsification import Sparsification
from fl_core.recipes.terms import Context


@dataclass(frozen=True)
class Parameterization:
    """Map from the vector that a client trains to the network parameters of its forward pass."""

    personalization: Personalization
    sparsification: Sparsification

    def __call__(self, model: Layout, vector: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Compute the parameters `[size]` of one client's vector, and the mask `[size]` on them, None without one."""
        parameters = self.personalization.parameters(model, vector)
        support = self.sparsification.support(model, parameters, context)
        if support is None:
            return parameters, None
        return self.sparsification.view(model, parameters, support), support
