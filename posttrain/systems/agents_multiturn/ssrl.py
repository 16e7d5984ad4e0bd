"""SSRL: the policy plays its own search engine: it thinks, searches, writes what it remembers as the result, and answers, in one text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.answers import golds
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment, RolloutRequest
from posttrain.core.registry import reward, rollout
from posttrain.core.selfcheck import problems
from posttrain.core.squad import exact
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.mapped import each
from posttrain.environments.searching import Index, asked, information
from posttrain.evals.accuracy import EVAL_SEED, graded, held_out
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_task
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.scorers.spec import task_scorer
from posttrain.rollouts.resume import cut
from posttrain.rollouts.sample import sample

ASK = (
    "Answer the question. Reason inside <think> and </think> whenever you have new information. If you lack knowledge, write a query between "
    "<search> and </search>, and then, between <information> and </information>, what a search engine would find for it. Search as "
    "often as you need. At the end write the answer alone between <answer> and </answer>.\nQuestion: {question}"
)
BLOCKS = ("think", "search", "information", "answer")
_TAG = re.compile(r"<(?P<close>/?)(?P<name>[a-z_]+)>")
_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)
_INFORMATION = re.compile(r"<information>.*?(?:</information>|\Z)", re.DOTALL)
MOST_THINKS = 8

# ---- what answers are worth


def blocks(text: str) -> list[str] | None:
    """The names of a text's blocks in order; None where a tag is unknown, stands alone, or stands inside of another block."""
    names, inside = list[str](), ""
    for tag in _TAG.finditer(text):
        name = tag["name"]
        if name not in BLOCKS or (inside != name if tag["close"] else bool(inside)):
            return None
        inside = "" if tag["close"] else name
        names += [] if tag["close"] else [name]
    return None if inside else names


def form(text: str, graded: bool = True) -> float:
    """How well a text keeps to the form; graded: min(thinks / 2, 1) min(thinks, searches + 1) / max(thinks, searches + 1), else 1 for
    thinks, each search with its information, and one answer at the end, 0 otherwise."""
    names = blocks(text)
    if names is None:
        return 0.0
    thinks, searches = names.count("think"), names.count("search")
    if graded:
        even = min(thinks, searches + 1) / max(thinks, searches + 1)
        return min(thinks / 2, 1.0) * even if thinks <= MOST_THINKS else 0.0
    followed = all(names[i + 1 : i + 2] == ["information"] for i, name in enumerate(names) if name == "search")
    whole = (
        thinks > 0 and names.count("answer") == 1 and names[-1] == "answer" and names.count("information") == searches
    )
    return float(whole and followed)


@reward(title="Self-search", paper="arXiv:2508.10874", system="ssrl")
def self_search(prompt: Prompt, text: str, weight: float = 0.1, graded: bool = True) -> float:
    """Self-search (SSRL): the answer is a gold one, and a little for the form.

    r = (1 - weight) [EM] + weight form;  EM: the last <answer> is a gold answer up to case, punctuation and articles
    form, graded: min(thinks / 2, 1) min(thinks, searches + 1) / max(thinks, searches + 1);  else 1 for a text of the asked
    form; 0 for either where a tag is unknown or stands alone, or (graded) with more than 8 thinks
    """
    said = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    right = bool(said) and exact(said[-1], golds(prompt))
    return (1 - weight) * right + weight * form(text, graded)


def validate() -> list[str]:
    """Gold in the asked form is worth 1; a wrong answer at most the form."""
    prompt, way = (
        Prompt.text("self", "Capital of France?", "Paris"),
        "<think>I know it.</think><search>capital of France</search>",
    )
    way += "<information>It is Paris.</information><think>So.</think>"
    return problems(self_search, [(prompt, f"{way}<answer>paris</answer>", f"{way}<answer>Lyon</answer>")])


# ---- how answers are made


def place(decode: Callable[[Tensor], str], r: Rollout, char: int) -> int:
    """The first action that ends behind this character of the text; decoded prefixes only grow, so halving finds it."""
    lead, low, high = len(r.turns[-1].observation.lead), 0, len(r.actions)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if lead + len(decode(r.actions[: middle + 1])) > char else (middle + 1, high)
    return low


def remembered(decode: Callable[[Tensor], str], r: Rollout) -> Tensor:
    """Which actions of an answer are wholly or partly in <information> ... </information> (T,)."""
    inside_T = torch.zeros(len(r.actions), dtype=torch.bool)
    for block in _INFORMATION.finditer(r.text):
        inside_T[place(decode, r, block.start()) : place(decode, r, block.end() - 1) + 1] = True
    return inside_T


@rollout(title="Self-search (SSRL)", paper="arXiv:2508.10874", base="sample", system="ssrl")
def self_searched(ask: RolloutRequest, n: int = 5, mask: bool = True) -> list[Group]:
    """Self-search (SSRL): sample; what the policy wrote as information is no action of its own, so the loss does not see it.

    mask_t = 0 for every token of <information> ... </information>, tags and all, found by the ids that were sampled; mask=False
    trains on them too
    """
    groups = sample(ask, n=n)
    for r in (r for g in groups for r in g.rollouts if mask):
        r.turns[-1].mask_T = r.turns[-1].mask_T & ~remembered(ask.policy.decode, r)
    return groups


@torch.no_grad()
def with_real_search(ask: RolloutRequest, index: Index, k: int, uncertain: bool = False) -> list[Group]:
    """One answer per prompt in which the information is that of a real index: at each search what follows it is taken away, the
    documents are written in its place, and the policy goes on. uncertain: only at the first search, and where the policy was less sure
    of the words of its search (-mean logp) than of those of the one before."""
    groups = sample(ask, n=1)
    going = [(g, list[float]()) for g in groups]
    for number in range(MOST_THINKS):
        searched = []
        for g, sure in going:
            r = g.rollouts[0]
            found = list(_SEARCH.finditer(r.text))[number : number + 1]
            if not found:
                continue
            a, b = (place(ask.policy.decode, r, c) for c in (found[0].start(1), found[0].end(1) - 1))
            sure.append(float(-r.logp_T[a : b + 1].mean()))
            searched.append((g, sure, found[0]))
        going = [(g, sure) for g, sure, _ in searched]
        real = [(g, at) for g, sure, at in searched if not uncertain or number == 0 or sure[-1] > sure[-2]]
        if real:
            go_on(ask, real, index, k, number)
    return groups


def go_on(ask: RolloutRequest, real: list[tuple[Group, re.Match[str]]], index: Index, k: int, number: int) -> None:
    """Answers with what the index finds in place of what the policy remembered, continued from there."""
    heads = [g.rollouts[0].text[: at.end()] + f"\n{information(index.best(at[1], k))['content']}\n" for g, at in real]
    stems = [ask.policy.written(g.prompt, head) for (g, _), head in zip(real, heads, strict=True)]
    stems = [cut(ask.policy, s, len(s) - 1) for s in stems]  # without the end
    keys = [[rng.key(ask.seed, ask.step, g.prompt.id, "search", number)] for g, _ in real]
    made = ask.policy.act([s.turns for s in stems], keys, ask.sampling, version=ask.step)
    for (g, _), stem, (turn,) in zip(real, stems, made, strict=True):
        g.rollouts[0] = replace(stem, turns=[turn], reward=None)


# ---- the plan


def asked_questions(context: Context) -> Environment:
    """The questions of --task with instructions to search in one's own memory."""
    env = asked_task(context)
    if env.opens or not env.graded:
        raise UserError(
            f"ssrl compares with gold answers; {env.name} has none, so give rows with a question and an answer"
        )
    return each(env, asked(ASK))


@plan(paper="arXiv:2508.10874", title="SSRL", uses=("task",))
def ssrl(
    steps: int = 100, weight: float = 0.1, graded_form: bool = True, beta: float = 0.001, mask: bool = True, documents: str = "", k: int = 3
) -> Plan:  # fmt: skip
    """SSRL (self-search RL): the policy thinks, writes queries, writes itself what a search would find, and answers, all in one text. GRPO
    pays right answers and the form, and what it wrote as information is left out of the loss, as the results of an engine would be.

    r = (1 - weight) EM + weight form;  A_i = (r_i - mean) / std over 5 answers;  mask_t = 0 inside <information>
    form = min(thinks / 2, 1) min(thinks, searches + 1) / max(thinks, searches + 1), 0 for unknown or unpaired tags
    documents: a folder or JSONL file. After training, held-out questions are asked three ways: with the policy's own information, with that
    of this real index in its place (sim2real; no further training), and with the real one only where the policy is unsure of its query; the
    summary has accuracy_self_search, accuracy_sim2real and accuracy_sim2real_if_unsure. k: documents per search.

    Departures: the graded form is the authors' code; the 1 or 0 that their text describes is `--plan.graded-form False`. Their mask does not
    match across lines and finds positions by encoding prefixes again; here it is by the ids that were sampled. Real information enters by
    continuing the text from there, theirs by turns. An unsure query is one with a higher mean -log p than the one before. 5 answers, weights
    0.9 and 0.1, KL 0.001 in the k3 form, one update per step, the mean over all tokens of a batch and temperature 1 are theirs; theirs
    are 256 questions a step (`--prompts 256`) for 5 epochs, 4,096 tokens (`--sampling.max-tokens 4096`, here 512) and a rate of 1e-6 (`--lr`).
    """
    if steps < 1 or not 0 <= weight <= 1 or beta < 0 or k < 1:
        raise UserError(
            f"got steps={steps}, weight={weight}, beta={beta}, k={k}; 1 step and document, a weight of 0 to 1, no beta below 0"
        )
    method = grpo.but(
        name="ssrl", title="SSRL", paper="arXiv:2508.10874", doc=__doc__, rollout=self_searched.but(n=5, mask=mask),
        terms=(kl.but(coef=beta, kind="k3"),), aggregate=token_mean,
    )  # fmt: skip

    def rewards(context: Context) -> RewardSum:
        paid = self_search.but(weight=weight, graded=graded_form)
        return RewardSum([("self_search", paid, 1.0)], context.config.reward_timeout)

    def ready(context: Context) -> None:
        asked_questions(context)
        if documents:
            context.made["index", documents] = Index(documents)

    def sim2real(context: Context) -> None:
        c, env = context.config, asked_questions(context)
        scorer: Any = task_scorer(env, c.reward_timeout)
        ask = RolloutRequest(
            {"policy": context.role("policy")}, held_out(env, c.eval_problems, "test"), c.sampling, EVAL_SEED, 0, env
        )
        index = context.made.get(("index", documents)) or Index(documents)
        ways = {"self_search": sample(ask, n=1), "sim2real": with_real_search(ask, index, k)}
        ways["sim2real_if_unsure"] = with_real_search(ask, index, k, uncertain=True)
        for name, made in ways.items():
            context.notes[f"accuracy_{name}"] = graded(made, scorer, "accuracy").accuracy

    learn = Phase("grpo", method, steps, asked_questions, rewards=rewards, measured=True)
    parts = (learn, *([Do("sim2real", sim2real)] if documents else []))
    return Plan(parts, ready=ready, settings=(("sampling.max_tokens", 512),))
