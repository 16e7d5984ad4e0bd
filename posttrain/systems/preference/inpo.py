"""INPO: self-play without regret: fit each round's policy to who beat whom among the last one's answers, near it and near the start."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.plan import Copy, Cycle, Do, Phase, Plan, plan
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.rounds import Collect, collected, knockout, random_two
from posttrain.methods.settings import needs_judge, written
from posttrain.systems.preference.ipo import ipo

PAIRINGS = {"knockout": knockout, "random": random_two}


@plan(paper="arXiv:2407.00617", title="INPO", uses=("task", "reward"))
def inpo(
    rounds: int = 3, prompts: int = 2000, n: int = 8, epochs: float = 2, eta: float = 0.005, share: float = 1 / 3, pairs: str = "knockout"
) -> Plan:  # fmt: skip
    """INPO: towards the Nash policy of a judge of pairs, by online mirror descent against oneself; no rate of winning is estimated.

    L = (log pi(y_w) / pi(y_l) - share log ref(y_w) / ref(y_l) - (1 - share) log pi_t(y_w) / pi_t(y_l) - 1 / (2 eta))^2
    ref: the start;  pi_t: the policy as the round began, whose answers are compared;  share: tau / eta
    prompts: new ones of each round. n: answers to each, of which the winner and the loser of a knockout are a pair (`pairs="random"`: any
    two, the better one drawn with the judge's probability, for which the target 1 / (2 eta) is exact). epochs: passes over a round's pairs.

    Departures: the judge must be given: --reward mine.py:prefer, a function of (prompt, a, b), or a reward r (`runs/NAME`), which judges by
    sigmoid(r_a - r_b); the paper's is a model of pairs of 8B parameters. The paper takes 20,000 prompts a round, 2,000 here, and a file with
    fewer is gone through again. Its rate is 5e-7 with a cosine, here one for the size (`--lr`). 3 rounds, 8 answers, the knockout in both orders, pairs left
    out where the winner does not beat the loser, 2 epochs, eta 0.005, a third for the start, and sums over tokens are the authors' code. The best
    against the worst is not what the derivation assumes; that is theirs too.
    """
    if rounds < 1 or prompts < 1 or n < 2 or epochs <= 0 or not 0 <= share <= 1 or eta <= 0 or pairs not in PAIRINGS:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, n={n}, epochs={epochs}, eta={eta}, share={share}, pairs={pairs!r}; it takes a round, a prompt, "
            f"2 answers, eta above 0, a share between 0 and 1, and pairs {' or '.join(PAIRINGS)}"
        )
    loss = ipo.loss.but(beta=eta, length_normalised=False)
    learn = Phase(
        "inpo", dpo.but(loss=loss), epochs_of(collected, epochs), collected, rewards=written,
        reference={"start": share, "previous": 1 - share},
    )  # fmt: skip
    parts = (Do("collect", Collect(prompts, n, PAIRINGS[pairs])), Copy("policy", "previous"), learn)
    return Plan((Copy("policy", "start"), Cycle(parts, times=rounds)), ready=needs_judge("inpo"))
