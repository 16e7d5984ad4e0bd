"""Nash mirror prox: look one step ahead, then step from where one was against whom one saw there; held to the start and to the last policy."""

from __future__ import annotations

from collections.abc import Callable

from posttrain.advantages.rloo import rloo
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Cycle, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.methods.reinforce import reinforce
from posttrain.methods.settings import asked_judge, asked_task, needs_judge
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

# ---- what answers are worth


class Rival:
    """m answers of a policy that stays as it is, for `WinRate(judge, others=Rival(...))`: by the identity of prompt and step."""

    def __init__(self, policy: Policy, how: Sampling, m: int = 1, seed: int = 0) -> None:
        self.policy, self.how, self.m, self.seed = policy, how, m, rng.key(seed, "rival") & 0x7FFFFFFF

    def __call__(self, groups: list[Group]) -> list[list[str]]:
        step = max((r.version for g in groups for r in g.rollouts), default=0)
        made = self.policy.sample([g.prompt for g in groups], self.m, self.how, self.seed, step)
        return [[r.text for r in rollouts] for rollouts in made]


# ---- a proximal step


def proximal(beta: float, eta: float, n: int = 8) -> Method:
    """Policy gradient on P(y > y') - beta log(pi / ref) - beta / eta log(pi / pi_k), less the mean of the other answers to the prompt.

    Both prices are one: beta (1 + 1/eta) log(pi / (ref^(eta / (1 + eta)) pi_k^(1 / (1 + eta)))); see `held_to`.
    """
    return reinforce.but(
        name="nash-mp", title="Nash mirror prox", paper="arXiv:2505.19731", doc=__doc__,
        rollout=sample.but(n=n), shaping=kl_in_reward.but(coef=beta * (1 + 1 / eta)), advantage=rloo,
    )  # fmt: skip


def held_to(eta: float) -> dict[str, float]:
    """The reference of a proximal step: a geometric mixture of the start and of the policy as the iteration began."""
    return {"start": eta / (1 + eta), "previous": 1 / (1 + eta)}


def _checked(**options: float) -> None:
    if any(x < 1 for k, x in options.items() if k not in ("beta", "eta")) or options["n"] < 2:
        told = ", ".join(f"{k}={x}" for k, x in options.items())
        raise UserError(f"got {told}; it takes 2 answers to a prompt (n), and 1 of everything else that is counted")
    if options["beta"] <= 0 or options["eta"] <= 0:
        raise UserError(f"got beta={options['beta']}, eta={options['eta']}; both are above 0")


# ---- the plans


@plan(paper="arXiv:2505.19731", title="Nash mirror prox")
def nash_mp(
    iterations: int = 5, inner: int = 6, beta: float = 0.1, eta: float = 1.0, n: int = 8, m: int = 1, k: float = 1.0
) -> Plan:  # fmt: skip
    """Nash mirror prox: towards the equilibrium of P(pi > pi') - beta KL(pi || ref) + beta KL(pi' || ref), two proximal steps an iteration.

    half = argmax_pi P(pi > pi_k) - beta KL(pi || ref) - beta/eta KL(pi || pi_k);  pi_(k+1) = argmax_pi P(pi > half) - the same two prices
    Both begin at pi_k. A step is `inner` updates of a policy gradient, each answer against m of the rival's. An iteration asks the judge twice
    as often as a plain step does: compare at equal questions (nash-md with twice the steps).

    Departures: this is the paper as first written (version 1, "Accelerating Nash Learning from Human Feedback via Mirror Prox"); the present one is
    `nash-prox`. Its step sizes and prices for language models could not be checked: beta 0.1, eta 1 and 5 iterations of 6 updates are this package's, as is
    the mean of the other answers as baseline. In its practical form the half step is played by a slowly moving average of the policy; here it is trained, as
    the analysed algorithm has it. Its judge must be given: `--reward FILE.py:FUNCTION` of (prompt, a, b), or a reward r (`runs/NAME`), which judges by
    sigmoid(k (r_a - r_b)); without one it ends with a sentence before anything is loaded.
    """
    _checked(iterations=iterations, inner=inner, beta=beta, eta=eta, n=n, m=m)

    def against(role: str) -> Callable[[Context], WinRate]:
        def rewards(context: Context) -> WinRate:
            c = context.config
            return WinRate(asked_judge(context, k), Rival(context.role(role), c.sampling, m, c.seed))

        return rewards

    step, near = proximal(beta, eta, n), held_to(eta)
    parts = (
        Copy("policy", "previous"),
        Copy("policy", "half"),
        Phase("half", step, inner, asked_task, role="half", rewards=against("previous"), reference=near),
        Phase("next", step, inner, asked_task, rewards=against("half"), reference=near),
    )
    return Plan((Copy("policy", "start"), Cycle(parts, times=iterations)), ready=needs_judge("nash-mp", k))


@plan(paper="arXiv:2505.19731", title="Nash Prox")
def nash_prox(
    iterations: int = 5, inner: int = 12, beta: float = 0.1, eta: float = 1.0, n: int = 8, k: float = 1.0
) -> Plan:  # fmt: skip
    """Nash Prox: self-play policy gradient inside a proximal point: each iteration plays against itself, held to where it began.

    pi_(k+1) = Nash of P(pi > pi') - beta KL(pi || ref) - beta/eta KL(pi || pi_k);  inside: R_i = 1/(n - 1) sum_j P(y_i > y_j) among its own answers
    The price of pi_k, which self-play alone does not have, keeps the inner game from circling; as pi_k follows, the result is that of beta alone.

    Departures: the paper's number of inner updates, eta and beta for language models could not be checked: 5 iterations of 12 updates, 1 and 0.1 here. It
    describes the inner loop also as Online IPO, whose expected gradient is the same; here it is the policy gradient. 8 answers to a prompt are compared
    with one another. Its judge must be given: `--reward FILE.py:FUNCTION` of (prompt, a, b), or a reward r (`runs/NAME`), which judges by
    sigmoid(k (r_a - r_b)); without one it ends with a sentence before anything is loaded.
    """
    _checked(iterations=iterations, inner=inner, beta=beta, eta=eta, n=n)
    step = proximal(beta, eta, n).but(name="nash-prox", title="Nash Prox")

    def rewards(context: Context) -> WinRate:
        return WinRate(asked_judge(context, k))

    learn = Phase("prox", step, inner, asked_task, rewards=rewards, reference=held_to(eta))
    parts = (Copy("policy", "start"), Cycle((Copy("policy", "previous"), learn), times=iterations))
    return Plan(parts, ready=needs_judge("nash-prox", k))
