"""Text2Grad: PPO on rewards that a critique in words puts on the tokens it quotes: only praised and blamed tokens move."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.core.credit import Span, token_ends
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import Policy, Scorer
from posttrain.core.registry import scorer
from posttrain.core.sampling import Sampling
from posttrain.core.terminal import printable
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.language.listed import Listed
from posttrain.environments.rows import read_rows
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_task
from posttrain.methods.sft import sft
from posttrain.policies.chat_api import ChatAPI
from posttrain.policies.remote import RemoteModel
from posttrain.prompts.uniform import distinct
from posttrain.rewards.runtime.score import say_once
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Prescored, Verdict, answers_of
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
    try:
        told = json.loads(critique[critique.find("{") : critique.rfind("}") + 1])
        spans = [(s["quote"], VERDICTS[s["verdict"]]) for s in told.get("spans", ())]
        return spans + [(str(quote), worth) for name, worth in VERDICTS.items() for quote in told.get(name, ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        told_as = '{"good": ["quote"], "poor": ["quote"]}'
        raise UserError(
            f"cannot read the critique {critique!r:.80}; it is a text with JSON like {told_as} in it"
        ) from None


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
        rollouts = answers_of(groups)
        many = getattr(self.critic, "many", None)  # a model writes them side by side
        told = many([(r.prompt, r.text) for r in rollouts]) if many else [None] * len(rollouts)
        return [self.one(r, critique) for r, critique in zip(rollouts, told, strict=True)]

    def one(self, r: Rollout, critique: str | None = None) -> Verdict:
        """One answer: its critique read, found and put on tokens."""
        try:
            told = self.critic(r.prompt, r.text) if critique is None else critique
            spans = find_quotes(r.text, read_critique(told))
            ends = token_ends(self.decode, r.actions, r.turns[-1].observation.lead)
            reward_T = self.scale * mark_tokens(spans, ends, r.mask_T)
        except Exception as error:  # a failed reward is data
            return Verdict(NAN, {"critique": caught(error)})
        return Verdict(0.0 if self.inner is None else None, {"critique": float(reward_T.sum())}, reward_T)


ASK = (
    "Question:\n{question}\n\nAnswer:\n{answer}\n\nSay in words what is good and what is poor in the answer; then quote it, word "
    'for word, as JSON: {{"good": ["..."], "poor": ["..."]}}'
)


def asked_of(prompt: Prompt, text: str, number: int = 0) -> Prompt:
    """What a critic is asked about an answer."""
    question = "\n".join(str(m["content"]) for m in prompt.content)
    return Prompt.text(f"{prompt.id}/critique{number}", ASK.format(question=question, answer=text))


class ModelCritic:
    """A language model as the critic: it writes the likeliest critique."""

    def __init__(self, policy: Policy, longest: int = 256) -> None:
        self.policy, self.how = policy, Sampling(longest, temperature=0.0)

    def many(self, answers: Sequence[tuple[Prompt, str]]) -> list[str]:
        asked = [asked_of(p, text, i) for i, (p, text) in enumerate(answers)]
        return [some[0].text for some in self.policy.sample(asked, 1, self.how)] if asked else []

    def __call__(self, prompt: Prompt, text: str) -> str:
        return self.many([(prompt, text)])[0]


# ---- the plan


def token_ppo(beta: float = 0.02) -> Method:
    """PPO as it is: GAE reads the tokens' rewards."""
    return ppo.but(
        name="text2grad", title="Text2Grad", paper="arXiv:2505.22338", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta),
    )  # fmt: skip


def read_critiques(file: str) -> list[dict[str, str]]:
    """Rows of question, answer and critique; one that cannot be read is an error before anything is trained."""
    rows = []
    for where, row in read_rows(file):
        missing = [k for k in ("question", "answer", "critique") if not isinstance(row, dict) or not row.get(k)]
        if missing or not isinstance(row, dict):
            raise UserError(f"{file}, {where}: no {', '.join(missing)}; each row has question, answer and critique")
        read_critique(str(row["critique"]))
        rows.append({k: str(row[k]) for k in ("question", "answer", "critique")})
    if not rows:
        raise UserError(f"{file} has no rows; each row has question, answer and critique")
    return rows


def written_by(name: str, context: Context, answers: int) -> list[dict[str, str]]:
    """Critiques of the policy's own answers: by a function of yours, or by a model that is served (http://...)."""
    c, env, policy = context.config, asked_task(context), context.role("policy")
    made = [some[0] for some in policy.sample(distinct(env, range(answers)), 1, c.sampling, c.seed)]
    if name.startswith("http"):
        api = ChatAPI(name)
        api.choose_model()
        asked = [asked_of(r.prompt, r.text, i) for i, r in enumerate(made)]
        told = [some[0].text for some in RemoteModel(api).sample(asked, 1, Sampling(512, temperature=0.0))]
    else:
        file, _, function = name.rpartition(":")
        critic = function_of(file, function, c.reward_timeout)
        told = [_said(critic, r) for r in made]
    rows = []
    for r, critique in zip(made, told, strict=True):
        try:
            read_critique(critique)
        except UserError:
            continue  # a critique without its quotes teaches nothing
        question = "\n".join(str(m["content"]) for m in r.prompt.content)
        rows.append({"question": question, "answer": r.text, "critique": critique})
    if not rows:
        raise UserError(f"{name} wrote no critique with its quotes in JSON for any of {len(made)} answers")
    return rows


def _said(critic: Critic, r: Rollout) -> str:
    """What the critic says; nothing where it fails, which teaches nothing."""
    try:
        return str(critic(r.prompt, r.text))
    except Exception as error:
        say_once(f"the critic failed, and what it cannot say is left out: {printable(str(error)[:300], one_line=True)}")
        return ""


def critic_model(critiques: str, steps: int) -> tuple[Do, Phase]:
    """Critiques, and a copy of the policy that learns to write them."""

    def collect(context: Context) -> None:
        own = critiques.startswith("http") or ".py:" in critiques
        rows = written_by(critiques, context, steps * context.config.prompts) if own else read_critiques(critiques)
        context.run.write_artifact("critiques", rows)
        context.notes["critiques"] = len(rows)

    def lessons(context: Context) -> Listed:
        rows = context.run.read_artifact("critiques")
        asked = [asked_of(Prompt.text(f"c{i}", r["question"]), r["answer"]) for i, r in enumerate(rows)]
        told = [replace(p, info={"demonstration": r["critique"]}) for p, r in zip(asked, rows, strict=True)]
        return Listed("critiques", tuple(told))

    learn = Phase(
        "critic", sft, steps, lessons, role="critic", make=lambda c: c.role("policy").clone(),
        rewards=lambda c: Prescored(),
    )  # fmt: skip
    return Do("critiques", collect), learn


NO_CRITIC = (
    "text2grad rewards the tokens that a critique quotes, and nobody writes critiques; give --plan.critiques FILE.jsonl (rows of "
    "question, answer, critique) or http://HOST/v1 (a served model) to train a critic on, or --plan.critic mine.py:function"
)


@plan(paper="arXiv:2505.22338", title="Text2Grad", uses=("task",))
def text2grad(
    steps: int = 60, critiques: str = "", critic: str = "", critic_steps: int = 60, longest: int = 256, beta: float = 0.02
) -> Plan:  # fmt: skip
    """Text2Grad: a critic writes what is good and what is poor, quoting it; quoted tokens earn +1 or -1.

    r_t = delta_t - beta log(pi / pi_ref);  delta_t = +1 in good spans, -1 in poor ones, 0 elsewhere;  GAE, PPO's clip
    critiques: what the critic learns from: FILE.jsonl with rows of question, answer and critique (words with {"good": [...],
    "poor": [...]} in them), or who writes such critiques of the policy's own answers: http://HOST/v1 (the one model that is
    served there) or mine.py:function of (prompt, answer). A copy of the policy then learns for `critic_steps` steps to write
    critiques, of at most `longest` tokens, and judges every answer. critic: mine.py:function, as the critic itself.

    Departures: the paper's critic is Llama-3.1-8B, trained on critiques by GPT-4o with a chain of reasoning; here it is of the
    policy's size and learns what it is given. A critique that is not readable masks its answer; the paper does not say what it
    does then. KL price 0.02 and the value network are `ppo`'s, the paper's KL adapts. `--reward` is refused: critiques pay.
    """
    file, _, name = critic.rpartition(":")
    if critic and not file.endswith(".py"):
        raise UserError(f"critic is {critic!r}; give mine.py:function, or critiques for one to be trained")
    if critiques and not critic and not critiques.startswith("http") and ".py:" not in critiques:
        read_critiques(critiques)

    def told(context: Context) -> Critiqued:
        return Critiqued(function_of(file, name, context.config.reward_timeout), context.role("policy").decode)

    def learned(context: Context) -> Critiqued:
        return Critiqued(ModelCritic(context.role("critic"), longest), context.role("policy").decode)

    learn = Phase("ppo", token_ppo(beta), steps, asked_task, rewards=told if critic else learned)
    parts = (learn,) if critic else (*critic_model(critiques, critic_steps), learn)
    return Plan(parts, missing="" if critiques or critic else NO_CRITIC)
