"""ReSeek: a search agent that judges what it has found, drops what does not help, and is paid for judging well."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.core import rng
from posttrain.core.answers import golds
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout, scorer
from posttrain.core.squad import exact, normal
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import STOPS, Group, Message, Prompt, Rollout
from posttrain.environments.searching import (
    INVALID,
    STOP,
    Document,
    Searching,
    Trail,
    action_of,
    information,
    plain,
    told,
)
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_index, asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of, texts_of
from posttrain.rewards.scorers.spec import build_scorer

ASK = (
    "Answer the question. Reason inside <think> and </think>. If you lack knowledge, write <search> words </search>, and the best documents "
    "come back between <information> and </information>. Whenever you have read some, first say whether they help: <judge> Yes </judge> or "
    "<judge> No </judge>; what does not help is taken away, so search again in other words. When you know enough, write the answer "
    "alone between <answer> and </answer>.\nQuestion: {question}"
)
DROPPED: Message = {"role": "user", "content": "<information></information>"}
MANY = 10  # answer tags, above which a right answer is worth a quarter
_JUDGE = re.compile(r"<judge>\s*(yes|no)\s*</judge>", re.IGNORECASE)
Useful = Callable[[Prompt, Sequence[Document]], bool]

# ---- what episodes are worth


def holds_answer(prompt: Prompt, found: Sequence[Document]) -> bool:
    """Whether some document holds a gold answer, word for word."""
    texts = [f" {normal(d.title)} {normal(d.text)} " for d in found]
    return any(f" {gold} " in text for gold in (normal(str(g)) for g in golds(prompt)) if gold for text in texts)


def judging(verdict: bool, useful: bool, right: bool, c: float = 0.1, code: bool = False) -> float:
    """What one judgement is worth: +c where it agrees with what the documents were, -c where it does not.

    code: as the released code pays it, where a right answer pays every Yes unseen: Yes +0.1 with a right answer, else -0.05
    (-0.025 if useful); No -0.05 if useful, else +0.02
    """
    if not code:
        return c if verdict == useful else -c
    if verdict:
        return 0.1 if right else -0.025 if useful else -0.05
    return -0.05 if useful else 0.02


@scorer(title="Answers and judgements", paper="arXiv:2510.00568")
class Judgements(BaseScorer):
    """Answers and judgements (ReSeek): EM of the answer, and for each (information, judgement) whether it was right; 0 without an answer.

    R = [EM] (a quarter above 10 answer tags) + sum_j +-c;  the component `yes` is the share of judgements that say Yes: "Yes" after
    every search is where this reward pulls
    """

    reported = ("em", "judged", "yes")

    def __init__(self, c: float = 0.1, code: bool = False) -> None:
        self.c, self.code = c, code

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [self.verdict(r) for r in answers_of(groups)]

    def verdict(self, r: Rollout) -> Verdict:
        answer, pairs = r.info["answer"], r.info["judged"]
        yes = sum(verdict for verdict, _ in pairs) / len(pairs) if pairs else None
        if answer is None:
            return Verdict(0.0, {"em": 0.0, "judged": 0.0, "yes": yes})
        right = exact(answer, golds(r.prompt))
        em = float(right) / (4 if "".join(t.text for t in r.turns).count("<answer>") > MANY else 1)
        paid = sum(judging(verdict, useful, right, self.c, self.code) for verdict, useful in pairs)
        return Verdict(em + paid, {"em": em, "judged": paid, "yes": yes})


# ---- how episodes are played


class Seeking(Searching):
    """Searching in which somebody knows whether documents help: what judgements are compared with."""

    useful: Useful = staticmethod(holds_answer)

    def right(self, prompt: Prompt, trail: Trail) -> float:
        return float(exact(trail.answer or "", golds(prompt)))


@dataclass
class Seeker:
    """An episode: its working context as messages, and the turns of that context; `judged` has an entry for each search."""

    prompt: Prompt
    index: int
    seen: Observation
    trail: Trail = field(default_factory=Trail)
    messages: list[Message] = field(default_factory=list)
    judged: list[bool | None] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    context: list[Turn] = field(default_factory=list)
    stop: str = ""
    at: int = 0  # where the last information stands among the messages

    def take(self, ask: RolloutRequest, turn: Turn, last: bool, drop: bool) -> None:
        """What a turn does: a judgement of the information before it, then a search or an answer."""
        self.turns.append(turn)
        self.context.append(turn)
        self.trail.texts.append(turn.text)
        found = _JUDGE.search(turn.text)
        bad = False
        if self.judged and self.judged[-1] is None and found:
            self.judged[-1] = found[1].lower() == "yes"
            bad = drop and not self.judged[-1]
        if bad:
            self.messages[self.at] = DROPPED
        kind, said = action_of(turn.text, plain(self.prompt))
        self.trail.answer = said if kind == "answer" else None
        if kind == "answer" or last or not turn.stopped:
            self.stop = "answered" if kind == "answer" else "max_turns" if last else "length"
            return
        reply = {"role": "user", "content": INVALID} if kind != "search" else self.search(ask, said)
        self.messages += [{"role": "assistant", "content": turn.text}, reply]
        self.at = len(self.messages) - 1 if kind == "search" else self.at
        if bad:  # the context is another one now, and what follows is a row of its own
            self.context, self.seen = (
                [],
                ask.policy.observe(Prompt(self.prompt.id, (*self.prompt.content, *self.messages))),
            )
        else:
            self.seen = ask.policy.extend(self.context, [reply])

    def search(self, ask: RolloutRequest, words: str) -> Message:
        key = rng.key(ask.seed, ask.step, self.prompt.id, self.index, len(self.trail.queries))
        found: Any = ask.env.retrieve(self.prompt, words, key)  # type: ignore[attr-defined]
        if inspect.isawaitable(found):
            raise UserError("reseek searches an index; a model that plays one is for zerosearch")
        self.trail.queries.append(words)
        self.trail.found.append(list(found))
        self.judged.append(None)
        return information(found)

    def ended(self, env: Seeking) -> Rollout:
        """As a rollout, with what was judged beside what was so; its reward is the answer's until a scorer says more."""
        useful = [env.useful(self.prompt, found) for found in self.trail.found]
        pairs = [(v, u) for v, u in zip(self.judged, useful, strict=True) if v is not None]
        info = told(self.trail) | {"judged": pairs}
        worth = env.right(self.prompt, self.trail)
        return Rollout(self.prompt, self.turns, STOPS[self.stop], self.stop, index=self.index, reward=worth, info=info)

    def pending(self) -> list[Turn]:
        return [*self.context, Turn.empty(self.seen, continues=bool(self.context))]

    def fits(self, window: int) -> bool:
        """Whether its context has room for a turn; one that outgrows the window ends there."""
        if window and sum(len(t.observation.tokens) + len(t) for t in self.pending()) >= window:
            self.stop = "max_context"
        return not self.stop


@rollout(name="reseek", title="ReSeek", paper="arXiv:2510.00568", base="sample", at_test=True)
def judged_search(ask: RolloutRequest, n: int = 5, drop: bool = True) -> list[Group]:
    """ReSeek: episodes of searching in which the policy judges what it read; information judged No is dropped from the context.

    C_t = history + [judged Yes] o_t;  what follows a drop is a row of its own, with the credit of the episode; drop=False keeps all
    """
    if not isinstance(ask.env, Seeking):
        raise UserError("reseek samples in its own environment of searches; use posttrain run reseek")
    turns, window = ask.env.limits.turns, int(getattr(ask.policy, "window", 0))
    seekers = [Seeker(p, i, ask.policy.observe(p)) for p in ask.prompts for i in range(n)]
    for count in range(turns):
        going = [s for s in seekers if not s.stop and (count == 0 or s.fits(window))]
        if not going:
            break
        extra = [count] if count else []  # the first turn draws what a single answer would
        keys = [[rng.key(ask.seed, ask.step, s.prompt.id, s.index, *extra)] for s in going]
        version = ask.step if ask.version is None else ask.version
        made = ask.policy.act([s.pending() for s in going], keys, ask.sampling, version)
        for s, (turn,) in zip(going, made, strict=True):
            s.take(ask, turn, count + 1 == turns, drop)
    done = [s.ended(ask.env) for s in seekers]
    return [Group(p, done[k * n : (k + 1) * n]) for k, p in enumerate(ask.prompts)]


def reranked(scorer: Any) -> Useful:
    """Whether a reranker's score of (gold answer, documents) is 0.5 or more."""

    def useful(prompt: Prompt, found: Sequence[Document]) -> bool:
        gold = golds(prompt)[0]
        return (
            texts_of(
                scorer, [Prompt.text("pair", str(gold), gold)], ["\n".join(f"{d.title}\n{d.text}" for d in found)]
            )[0]
            >= 0.5
        )

    return useful


# ---- the plan


@plan(paper="arXiv:2510.00568", title="ReSeek", uses=("task",))
def reseek(
    steps: int = 200, documents: str = "", turns: int = 4, k: int = 3, drop: bool = True, paid: str = "label", reranker: str = ""
) -> Plan:  # fmt: skip
    """ReSeek: a search agent says after each search whether what it found helps (<judge> Yes or No); what does not is dropped from its
    context, and it searches again. GRPO pays the answer, and each judgement by whether it was right.

    C_t = history + [judged Yes] o_t;  R = EM + sum_j c [judgement = useful] - c [judgement != useful], c = 0.1;  R = 0 without an answer
    turns: searches of an episode at most; documents: a folder or JSONL file that is searched. Useful: some document holds a gold answer word for word, or, with
    reranker (a reward model: runs/NAME, a folder, mine.py:function), its score of (gold answer, documents) is 0.5 or more.
    paid="code": judgements are paid as in the released code, which never sees whether a Yes was right if the answer is: Yes +0.1 with a right
    answer, else -0.05 (half if useful); No -0.05 if useful, else +0.02. drop=False: nothing is dropped, as in the released loop.

    Departures: dropping and the reward by labels are the paper's formulas and the default; the released code does neither. Its label is a
    reranker's (bge-reranker-v2-m3); without one here, the gold answer in the documents. It prints no c: 0.1 is the largest that its
    code pays. An empty `<information>` stays where something was dropped, so that turns alternate. 4 turns, 3 documents, 5 episodes, KL 0.001
    (k3) and a quarter for more than 10 answer tags are the authors'; theirs are 512 questions a step (`--prompts 512`) and a rate
    of 1e-6 (`--lr`). The metric reward/yes/mean watches the attractor, Yes after every search.
    """
    if steps < 1 or paid not in ("label", "code"):
        raise UserError(
            f"got steps={steps}, paid={paid!r}; at least 1 step, and judgements paid by 'label' or as in the 'code'"
        )
    method = grpo.but(
        name="reseek", title="ReSeek", paper="arXiv:2510.00568", doc=__doc__, rollout=judged_search.but(n=5, drop=drop),
        terms=(kl.but(coef=0.001, kind="k3"),), aggregate=token_mean,
    )  # fmt: skip

    def env(context: Context) -> Seeking:
        searched = asked_index(context, documents, "reseek").retrieve(k)
        made = Seeking(asked_task(context), searched, lambda prompt, trail: 0.0, turns, ASK)
        if reranker:
            made.useful = reranked(build_scorer(reranker, made, context.config.reward_timeout, context.config.device))
        return made

    def ready(context: Context) -> None:
        env(context)

    def rewards(context: Context) -> Judgements:
        return Judgements(code=paid == "code")

    learn = Phase("grpo", method, steps, env, rewards=rewards, measured=True)
    return Plan(
        (learn,),
        ready=ready,
        settings=(
            ("sampling.max_tokens", 500),
            ("sampling.stop", STOP),
        ),
    )
