"""SALSA: PPO held near the average of two fine-tunings instead of near one of them, where reward is easier to find."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Copy, Phase, Plan, plan
from posttrain.methods.from_pairs import demonstrations, epochs_of, imitation, paid_and_shown, payer, reward_phase
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.weights.soup import soup


def near_the_soup(beta: float = 0.02, alpha: float = 0.5) -> Method:
    """PPO whose reference is the average of the two fine-tunings."""
    return ppo.but(
        name="salsa", title="SALSA", paper="arXiv:2411.01798", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta), reference=soup.but(alpha=alpha),  # type: ignore[attr-defined]
    )  # fmt: skip


@plan(paper="arXiv:2411.01798", title="SALSA")
def salsa(
    pairs: str = "", warmup: float = 1, epochs: float = 1, questions: int = 0, beta: float = 0.02, alpha: float = 0.5
) -> Plan:  # fmt: skip
    """SALSA: two SFT runs of one model on the same demonstrations in another order, then PPO from the first with a KL to the average of
    both.

    theta_ref = alpha theta_1 + (1 - alpha) theta_2;  maximise E[R - beta log(pi / pi_ref)]
    R: a reward model of `pairs` (a file with chosen and rejected), trained here for one pass, or --reward. warmup, epochs: passes over
    the demonstrations of --task, of each SFT and of PPO. questions: the first so many (0: all; 500 where the task never ends).

    Departures: the paper fine-tunes Llama-2 7B and Mistral 7B on UltraChat-200k and pays with a reward model of UltraFeedback; here
    demonstrations and pairs are yours. Both fine-tunings see the same rows, in another order, as with the paper's two seeds. It tunes
    the KL price for each model; 0.02 here. PPO has 8 answers per prompt and the critic of `ppo`. alpha 0.5 is the paper's best.
    """
    if warmup <= 0 or epochs <= 0 or questions < 0:
        raise UserError(
            f"got warmup={warmup}, epochs={epochs}, questions={questions}; both are above 0: the soup is of two SFTs"
        )
    worked = demonstrations(questions, option="")
    parts = (
        Copy("policy", "base"),
        *imitation(warmup, worked),
        *imitation(warmup, worked, "sft-other", role="other", make=lambda c: c.role("base").clone()),
        *reward_phase(pairs),
        Phase(
            "ppo", near_the_soup(beta, alpha), epochs_of(worked, epochs), worked, rewards=payer(pairs), reference="other"
        ),
    )  # fmt: skip
    return Plan(parts, ready=paid_and_shown("salsa", pairs, worked), uses=("task",) if pairs else ("task", "reward"))
