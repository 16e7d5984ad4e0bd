"""APO: iterative DPO with momentum: each round's reference is where the last two rounds point to, not where the last one ended."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of, has_reward
from posttrain.methods.rounds import Collect, best_and_worst, collected
from posttrain.methods.settings import asked_rewards, asked_task, written


@plan(paper="arXiv:2410.06293", title="APO (accelerated)", uses=("task", "reward"))
def apo_accelerated(
    rounds: int = 3, prompts: int = 2000, n: int = 8, epochs: float = 1, beta: float = 0.1, alpha: float = 0.3
) -> Plan:  # fmt: skip
    """APO: Nesterov's momentum for DPO in rounds, each of which is a proximal-point step from its reference.

    round t:  hat_t = argmin DPO(pairs of round t; reference pi_t);  log pi_{t+1} = log hat_t + alpha (log hat_t - log hat_{t-1}) + const
    alpha: 0 is iterative DPO. prompts, n: new ones of each round, and answers to each; the best and the worst by --reward are a pair.

    Departures: the extrapolated reference is used in the margin, where its constant cancels; the policy that answers and is trained on is hat_t itself, since the
    extrapolated one is no set of weights. A reward must be given (`--reward runs/NAME`, a folder, mine.py:function; the authors rank by a model of pairs). The paper's
    extrapolation rule and its alpha 0.3 could not be checked against its text or code; SPPO as inner loss is not here. 2,000 prompts a round
    and one epoch are this package's, and the rate is one for the size (`--lr`).
    """
    if rounds < 1 or prompts < 1 or n < 2 or epochs <= 0 or not 0 <= alpha < 1:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, n={n}, epochs={epochs}, alpha={alpha}; it takes a round, a prompt, 2 answers and 0 <= alpha < 1"
        )

    def ready(context: Context) -> None:
        if not has_reward(context):
            raise UserError(
                "apo-accelerated ranks answers by a reward: --reward runs/NAME, a folder of a reward model, mine.py:function; --reward task "
                "ranks by the task's own grade"
            )
        asked_task(context)
        asked_rewards(context)

    learn = Phase(
        "apo", dpo.but(loss=dpo_loss.but(beta=beta)), epochs_of(collected, epochs), collected, rewards=written,
        reference={"last": 1 + alpha, "before": -alpha},
    )  # fmt: skip
    collect = Do("collect", Collect(prompts, n, best_and_worst))
    round_ = (Copy("last", "before"), Copy("policy", "last"), collect, learn)  # at first both are the start
    return Plan((Copy("policy", "last"), Cycle(round_, times=rounds)), ready=ready)
