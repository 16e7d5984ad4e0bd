"""Text2Grad: PPO on rewards that a critique in words puts on the tokens it quotes: only praised and blamed tokens move."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from posttrain.core.credit import Span, token_ends
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment, Scorer
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_task
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict, answers_of
from posttrain.rewards.runtime.timeout_pool import caught
from posttrain.rewards.scorers.spec import function_of
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- what answers are worth
# Text2Grad (arXiv:2505.22338): a critique in words that quotes what is good and what is poor becomes a reward a token.

Critic = Callable[[Prompt, str], str]  # a question and its answer -> a critique in words with its quotes in JSON
VERDICTS = {"good": 1.0, "poor": -1.0}


def read_critique(critique: str) -> list[tuple[str, float]]:
    """The quotes of a critique with +1 or -1, from the JSON in it; words around it are for people.

    {"good": ["..."], "poor": ["..."]}, or {"spans": [{"quote": "...", "verdict": "good"}]} in the order of the answer.
    """
    begin, end = critique.find("{"), critique.rfind("}")
    try:
        told = json.loads(critique[begin : end + 1])
        spans = [(s["quote"], VERDICTS[s["verdict"]]) for s in told.get("spans", ())]
        return spans + [(str(quote), worth) for name, worth in VERDICTS.items() for quote in told.get(name, ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        told_as = '{"good": ["quote"], "poor": ["quote"]}'
        raise UserError(f"cannot read the critique {critique[:80]!r}; it must contain JSON like {told_as}") from None


def find_quotes(text: str, quotes: Sequence[tuple[str, float]]) -> list[tuple[Span, float]]:
    """Where each quote stands. It is looked for behind the last one found, then from the start; one that the answer does
    not contain is left out: a critic that misquotes says nothing about the answer."""
    found, at = [], 0
    for quote, worth in quotes:
        place = text.find(quote, at) if quote else -1
        place = text.find(quote) if place < 0 and quote else place
        if place >= 0:
            at = place + len(quote)
            found.append(((place, at), worth))
    return found


def mark_tokens(spans: Iterable[tuple[Span, float]], ends: Sequence[int], mask_T: Tensor) -> Tensor:
    """delta_t: the sum of verdicts on the spans that token t overlaps, within -1 and 1; 0 where the policy did not act."""
    delta_T = torch.zeros(len(ends))
    starts = [0, *ends[:-1]]
    for (begin, end), worth in spans:
        for t, (a, b) in enumerate(zip(starts, ends, strict=True)):
            if a < b and a < end and b > begin:  # a token of no text is in no span
                delta_T[t] += worth
    return delta_T.clamp(-1, 1) * mask_T


@scorer(title="Critique", paper="arXiv:2505.22338")
class Critiqued(BaseScorer):
    """Critique: a critic is asked about each answer; reward_T = scale delta_t; the outcome is 0, or that of `scorer`.

    An answer whose critique fails or cannot be read is masked and counted.
    """

    reported = ("critique",)

    def __init__(
        self, critic: Critic, decode: Callable[[Tensor], str], scale: float = 1.0, scorer: Scorer | None = None
    ) -> None:
        self.critic, self.decode, self.scale, self.inner = critic, decode, scale, scorer

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [self.one(r) for r in answers_of(groups)]

    def one(self, r: Rollout) -> Verdict:
        """One answer: its critique read, found and put on tokens."""
        try:
            spans = find_quotes(r.text, read_critique(self.critic(r.prompt, r.text)))
            ends = token_ends(self.decode, r.actions, r.turns[-1].observation.lead)
            reward_T = self.scale * mark_tokens(spans, ends, r.mask_T)
        except Exception as error:  # a failed reward is data
            return Verdict(NAN, {"critique": caught(error)})
        return Verdict(0.0 if self.inner is None else None, {"critique": float(reward_T.sum())}, reward_T)


def of_task(env: Environment) -> Critic:
    """The critic that a task's own grade makes: all of a right answer is good, all of a wrong one poor."""

    def critic(prompt: Prompt, text: str) -> str:
        return json.dumps({"good" if env.grade(prompt, text) > 0.5 else "poor": [text]})

    return critic


# ---- the plan


def token_ppo(beta: float = 0.02) -> Method:
    """PPO as it is: GAE reads the tokens' rewards."""
    return ppo.but(
        name="text2grad", title="Text2Grad", paper="arXiv:2505.22338", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta),
    )  # fmt: skip


@plan(paper="arXiv:2505.22338", title="Text2Grad", uses=("task",))
def text2grad(steps: int = 60, critic: str = "task", beta: float = 0.02) -> Plan:
    """Text2Grad: a critic writes what is good and what is poor, quoting it; quoted tokens earn +1 or -1.

    r_t = delta_t - beta log(pi / pi_ref);  delta_t = +1 in good spans, -1 in poor ones, 0 elsewhere;  GAE, PPO's clip
    critic: mine.py:function, a function of (prompt, answer) that returns words with {"good": [...], "poor": [...]} in them.
    "task" praises or blames the whole answer.

    Departures: the paper trains a language model to write critiques with quoted spans, from a stronger model's; here
    that model is not built and `critic` must be a function of yours. By default the task's own grade praises or
    blames the whole answer, which is PPO with a reward of +1 or -1 on every token. `--reward` is ignored. KL price
    0.02 and the critic network are `ppo`'s.
    """
    file, _, name = critic.rpartition(":")
    if critic != "task" and not file.endswith(".py"):
        raise UserError(f"critic is {critic!r}; give 'task' or mine.py:function")

    def scorer(context: Context) -> Critiqued:
        judge = of_task(asked_task(context)) if critic == "task" else function_of(file, name)
        return Critiqued(judge, context.role("policy").decode)

    phase = Phase("ppo", token_ppo(beta), steps, asked_task, rewards=scorer)
    return Plan((phase,))
