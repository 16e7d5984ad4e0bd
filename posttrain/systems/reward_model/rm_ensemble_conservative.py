"""Conservative reward-model ensembles: several reward models that differ by seed, and a reward that all of them must like."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.plan import Copy, Do, Plan, plan
from posttrain.core.registry import reward_model_loss
from posttrain.methods.ensemble import Ensemble, optimised
from posttrain.methods.members import member
from posttrain.methods.reward_model import reward_model

WAYS = {"mean": "mean", "wco": "worst_case", "uwo": "uncertainty_weighted"}
COEF = {"ppo": 0.1, "best-of-n": 0.5}  # of the variance in UWO
EPOCHS = 5  # passes over the pairs


@reward_model_loss(paper="arXiv:2310.02743", base="bradley_terry", reads=("chosen_P", "rejected_P", "score_B"))
def bradley_terry_l2(batch: Batch, coef: float = 0.001) -> Tensor:
    """Bradley-Terry with small scores: members that were pulled towards 0 are on scales that can be compared.

    L = -log sigmoid(s_w - s_l) + coef (s_w^2 + s_l^2) / 2
    """
    chosen_P, rejected_P = (batch["score_B"][batch[name]] for name in ("chosen_P", "rejected_P"))
    return -logsigmoid(chosen_P - rejected_P) + coef * (chosen_P**2 + rejected_P**2) / 2


@plan(paper="arXiv:2310.02743", title="RM ensembles (WCO/UWO)", uses=("task", "reward", "pairs", "answers"))
def rm_ensemble_conservative(
    members: int = 5, how: str = "uwo", optimiser: str = "ppo", steps: int = 60, beta: float = 0.1,
    coef: float = -1.0, pairs: str = "",
) -> Plan:  # fmt: skip
    """RM ensembles (WCO/UWO): reward models that differ by seed alone, combined so that none can be exploited by itself.

    mean: R = mean_k r_k.  wco: R = min_k r_k.  uwo: R = mean_k r_k - coef var_k r_k, coef 0.1 for PPO, 0.5 for best of n
    --task holds the preference pairs (prompt, chosen, rejected); or --plan.pairs does, and --task the prompts. --reward, if
    given, is the gold reward: it is only reported. optimiser: ppo, or best-of-n of --num-generations answers (64).

    Departures: members are put in units of the start policy's answers before they are combined; the authors' code leaves
    that out. The variance is over K for both optimisers, in their code over K - 1 for PPO. They label the pairs with a
    large gold reward model, start from a policy fine-tuned on demonstrations and reward models of another size, take best
    of n to 12,500 and 3,000 steps of PPO at 1e-6; here pairs are given, everyone starts at `--model` as it is, n is 64
    and PPO has 60 steps of `ppo`. Five members, five passes, L2 of scores 0.001 and the KL price 0.1 are theirs.
    """
    if how not in WAYS:
        raise unknown("way to combine", how, WAYS)
    if optimiser not in COEF:
        raise unknown("optimiser", optimiser, COEF)
    if members < 1 or steps < 1:
        raise UserError(f"got members={members}, steps={steps}; it takes 1 reward model and 1 step at least")
    roles = [f"reward-model-{k}" for k in range(members)]
    price = COEF[optimiser] if coef < 0 else coef
    extra: dict[str, Any] = {"coef": price} if how == "uwo" else {}
    ensemble = Ensemble(roles, WAYS[how], pairs, **extra)
    learn = reward_model.but(loss=bradley_terry_l2)
    trained = [member(role, pairs, EPOCHS, lambda c: c.role("start"), learn) for role in roles]
    parts = [Copy("policy", "start"), *trained, Do("units", ensemble.measure)]
    uses = ("task", "reward", "answers") if pairs else None
    return Plan((*parts, *optimised(ensemble, optimiser, steps, beta)), uses=uses)
