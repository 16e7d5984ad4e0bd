from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.registry import shaping


@shaping(title="Behaviour-alignment reward", paper="arXiv:2310.19007", reads=("reward_BT",))
class blend:
    """Behaviour-alignment reward (BARFI): a learned blend of the primary reward and a heuristic one.

    R = phi_1 + phi_2 r + phi_3 r_aux;  r_aux: the component `aux` (give it weight 0 in the reward). (0, 1, 0) changes
    nothing. An outer loop moves phi by BARFI's `implicit_gradient` of the primary reward alone.
    """

    def __init__(self, phi: Sequence[float] = (0.0, 1.0, 0.0), aux: str = "aux") -> None:
        self.phi, self.aux = [float(x) for x in phi], aux

    def __call__(self, batch: Batch) -> Tensor:
        constant, primary, heuristic = self.phi
        mixed_B = constant + primary * batch.returns_B
        if heuristic:
            mixed_B = mixed_B + heuristic * component(batch, self.aux)
        return on_last(mixed_B, batch)

    def state_dict(self) -> dict[str, list[float]]:
        return {"phi": list(self.phi)}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.phi = [float(x) for x in state["phi"]]
