"""GOLD: demonstrations as off-policy data: a token counts as much as a policy of late finds it likely, times how good its start finds what follows.

Not TRL's trainer of the same name, which distils between tokenizers.

Departures: the authors smooth labels by 0.1, renew the old policy every 5,000 updates (3,000 for translation), and train until a held-out metric falls; here no
label is smoothed, and 40 steps (`--steps`) never see the old policy renewed unless told (`--reference "old_and_start(every=10)"`). They begin with a
model that was fine-tuned on the same data by maximum likelihood: give one (`posttrain run sft`, `--model runs/NAME`). 0.1 as the least weight, the
five tokens that follow and no floor for the reward are those of their GOLD-s for CNN/DailyMail (0.15 and 0.2 elsewhere, with a floor of 0.1); `--loss "gold(kind='p')"` is their
GOLD-p, with a baseline of -10, a floor of 1 and no least weight. Tokens after the end count as certain, as in their code, but of each answer, not of the padded batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import unknown
from posttrain.core.method import method
from posttrain.core.protocols import Policy
from posttrain.core.registry import reference, supervised_loss
from posttrain.core.turn import Turn
from posttrain.methods.sft import sft
from posttrain.weights.reference import Frozen

PAPER = "arXiv:2009.07839"
BASELINE, FLOOR = -10.0, {"s": 0.0, "p": 1.0}  # of a log-probability as a reward; the least reward of a token


# ---- who is looked back at


@reference(title="Old policy and start (GOLD)", paper=PAPER, base="reset", provides=("start_logp_BT",))
class old_and_start(Frozen):
    """Old policy and start (GOLD): the policy as it was at the last of every `every` steps, and beside it the one the phase began with."""

    start_: Policy

    def __init__(self, every: int = 5000) -> None:
        self.every = every

    @property
    def networks(self) -> tuple[Policy, ...]:
        return (self.policy, self.start_)

    def start(self, policy: Policy) -> None:
        super().start(policy)
        self.start_ = policy.clone().eval().requires_grad_(False)

    @torch.no_grad()
    def streams(self, rows: Sequence[Turn], names: Sequence[str]) -> dict[str, Tensor]:
        plain = [name for name in names if name != "start_logp_BT"]
        out = super().streams(rows, plain) if plain else {}
        also = {"start_logp_BT": self.start_.forward(rows, ("logp_BT",))["logp_BT"]} if len(plain) < len(names) else {}
        return out | also

    def after_step(self, policy: Policy, step: int) -> None:
        if (step + 1) % self.every == 0:
            self.renew(policy)

    def tensors(self) -> dict[str, Tensor]:
        if self._policy is None:
            return {}
        return super().tensors() | {f"start|{name}": x for name, x in self.start_.state_dict().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        super().load({name: x for name, x in tensors.items() if not name.startswith("start|")})
        first = {name.removeprefix("start|"): x for name, x in tensors.items() if name.startswith("start|")}
        if self._policy is not None:
            self.start_.load_state_dict(first, strict=False)  # tied tensors are saved once


# ---- what is minimised


@supervised_loss(name="gold", title="GOLD", paper=PAPER, base="sft", reads=("ref_logp_BT", "start_logp_BT"))
def off_policy_demonstrations(batch: Batch, kind: str = "s", least: float | None = None, ahead: int = 5) -> Tensor:
    """GOLD: -w Q log pi; the weight is the old policy's probability, the return what the start finds of this token and those after it.

    w_t = max(old(y_t), least);  Q_t = sum_{k=0..ahead} max(r(y_{t+k}), floor);  tokens after the end have probability 1
    kind="s": r = start(y), floor 0, least 0.1;  kind="p": r = log start(y) + 10, floor 1, least 0
    """
    if kind not in FLOOR:
        raise unknown("reward of GOLD (kind)", kind, list(FLOOR))
    own_BT = batch.mask_BT > 0
    logp_BT = torch.where(own_BT, batch["start_logp_BT"], 0.0)
    reward_BT = (logp_BT.exp() if kind == "s" else logp_BT - BASELINE).clamp_min(FLOOR[kind])
    certain = 1.0 if kind == "s" else -BASELINE
    far_BT = F.pad(reward_BT, (0, ahead), value=certain)
    return_BT = sum(far_BT[:, k : k + own_BT.shape[1]] for k in range(ahead + 1))
    floor = (0.1 if kind == "s" else 0.0) if least is None else least
    weight_BT = torch.where(own_BT, batch["ref_logp_BT"], 0.0).exp().clamp(floor, 1.0)
    return -(weight_BT * return_BT).detach() * batch.logp_BT


# ---- the method

gold = method(
    sft.but(
        name="gold", title="GOLD", paper=PAPER, doc=__doc__, loss=off_policy_demonstrations, reference=old_and_start
    )
)
