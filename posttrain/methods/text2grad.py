"""Text2Grad: PPO on rewards that a critique in words puts on the tokens it quotes: only praised and blamed tokens move."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.methods.asked import asked_task
from posttrain.methods.ppo import ppo
from posttrain.rewards.runtime.spec import function_of
from posttrain.rewards.scorers.critique import Critiqued, of_task
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward


def token_ppo(beta: float = 0.02) -> Method:
    """PPO as it is: GAE reads the tokens' rewards."""
    return ppo.but(
        name="text2grad", title="Text2Grad", paper="arXiv:2505.22338", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta),
    )  # fmt: skip


@plan(paper="arXiv:2505.22338", title="Text2Grad")
def text2grad(steps: int = 60, critic: str = "task", beta: float = 0.02) -> Plan:
    """Text2Grad: a critic writes what is good and what is poor, quoting it; quoted tokens earn +1 or -1.

    r_t = delta_t - beta log(pi / pi_ref);  delta_t = +1 in good spans, -1 in poor ones, 0 elsewhere;  GAE, PPO's clip
    critic: mine.py:function, a function of (prompt, answer) that returns words with {"good": [...], "poor": [...]} in them.
    The paper trains a language model to write these; "task" praises or blames the whole answer.
    """
    file, _, name = critic.rpartition(":")
    if critic != "task" and not file.endswith(".py"):
        raise UserError(f"critic is {critic!r}; give 'task' or mine.py:function")

    def scorer(context: Context) -> Critiqued:
        judge = of_task(asked_task(context)) if critic == "task" else function_of(file, name)
        return Critiqued(judge, context.role("policy").decode)

    phase = Phase("ppo", token_ppo(beta), steps, asked_task, rewards=scorer)
    options = {"steps": steps, "critic": critic, "beta": beta}
    return Plan("text2grad", (phase,), "Text2Grad", "arXiv:2505.22338", text2grad.__doc__ or "", options)
