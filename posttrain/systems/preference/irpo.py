"""Iterative RPO: DPO in rounds on right against wrong reasoning, with the right ones imitated at the same time."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan
from posttrain.core.registry import preference_loss
from posttrain.core.types import Group
from posttrain.losses.preference.margin import chosen_nll, margin
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.rounds import Collect, Row, collected, told
from posttrain.methods.settings import asked_rewards, asked_scores, asked_task, written


@preference_loss(
    name="irpo", paper="arXiv:2404.19733", base="dpo", laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def irpo_loss(batch: Batch, beta: float = 0.1, alpha: float = 1.0) -> Tensor:
    """Iterative RPO: prefer the right reasoning, and keep it likely.

    L = -log sigmoid(beta u) - alpha s_w;  s_w = mean_t log pi(y_w,t)
    """
    return -logsigmoid(beta * margin(batch)) + alpha * chosen_nll(batch)


def right_and_wrong(context: Context, groups: list[Group], pairs: int) -> list[list[Row]]:
    """Up to so many pairs of a right and a wrong answer to each prompt, drawn by identity; each is used as often as the others of its side."""
    asked_scores(context, groups)
    out = []
    for group in groups:
        ranked = told(group)
        top = float(ranked[-1].total) if ranked else 0.0
        sides = [[r.text for r in ranked if (float(r.total) >= top) == best] for best in (True, False)]
        draw = rng.python("right and wrong", context.config.seed, context.phase, group.prompt.id)
        for side in sides:
            draw.shuffle(side)
        right, wrong = sides
        many = min(pairs, max(len(right), len(wrong))) if right and wrong else 0
        out.append([{"chosen": right[k % len(right)], "rejected": wrong[k % len(wrong)]} for k in range(many)])
    return out


@plan(paper="arXiv:2404.19733", title="Iterative RPO", uses=("task", "reward"))
def irpo(
    rounds: int = 4, prompts: int = 500, n: int = 30, pairs: int = 10, epochs: float = 1, beta: float = 0.1, alpha: float = 1.0
) -> Plan:  # fmt: skip
    """Iterative RPO: in rounds, answers of the policy are graded, and right ones are preferred to wrong ones and imitated.

    prompts: new ones of each round. n: answers to each. pairs: at most so many of a right and a wrong one for each prompt; prompts that are always
    right, or never, make none. A reward that is not 0 or 1 has the best as right. The reference is the policy as the round began.

    Departures: the authors go through all prompts of their set in each round (GSM8K's 7,500), 5,000 updates at 7e-7 with the best checkpoint kept; here 500 new prompts, one epoch, a rate by the size
    (`--lr`). 4 rounds, 30 answers, 10 pairs, beta 0.1, alpha 1 and sampling at 0.8 (`--sampling.temperature 0.8`; here 1) are theirs.
    """
    if rounds < 1 or prompts < 1 or n < 2 or pairs < 1 or epochs <= 0 or alpha < 0:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, n={n}, pairs={pairs}, epochs={epochs}, alpha={alpha}; it takes a round, a prompt, 2 answers and a pair"
        )

    def pairing(context: Context, groups: list[Group]) -> list[list[Row]]:
        return right_and_wrong(context, groups, pairs)

    method = dpo.but(loss=irpo_loss.but(beta=beta, alpha=alpha))
    learn = Phase("irpo", method, epochs_of(collected, epochs), collected, rewards=written, reference="previous")
    parts = (Do("collect", Collect(prompts, n, pairing)), Copy("policy", "previous"), learn)
    return Plan((Cycle(parts, times=rounds),), ready=lambda c: (asked_task(c), asked_rewards(c), None)[-1])
