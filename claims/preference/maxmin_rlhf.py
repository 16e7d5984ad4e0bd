"""MaxMin-RLHF: a policy that serves the worst-served group leaves no minority behind, as one reward for all does."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import APART, ASKED, HOW, requests
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.language.labels import label_pairs
from posttrain.environments.school.instructions import politeness, warmth, words_of
from posttrain.evals.accuracy import answers, held_out

PAIRS, NOISE, STEPS, ROUNDS = 400, 0.05, 20, 4
MANY, FEW = 8, 2  # annotators of each taste, with as many pairs each
LONG, KIND = 16, 3  # words, marks of kindness: more changes nothing


def brief(prompt: Prompt, text: str) -> float:
    """What most want: few words; 16 or more are worth nothing."""
    return 1 - min(len(words_of(text)), LONG) / LONG


def kind(prompt: Prompt, text: str) -> float:
    """What few want: marks of politeness and warmth, up to 3."""
    return min(politeness(text) + warmth(text), KIND) / KIND


def people(bench: Bench) -> str:
    """A file of pairs: two of the start's own answers each, compared by one of ten annotators, eight of whom want one thing and two another."""
    env, rows = requests(), []
    prompts = [env.prompt(APART + 10_000 * bench.seed + i) for i in range(PAIRS + PAIRS // 4)]
    made = bench.policy(None).sample(prompts, 2, Sampling(**HOW), bench.seed, -1)
    for who in range(MANY + FEW):
        taste, mine = (brief if who < MANY else kind), slice(who, None, MANY + FEW)
        texts = [[r.text for r in two] for two in made[mine]]
        for r in label_pairs(prompts[mine], texts, taste, NOISE, 0.1, bench.seed):
            both = {k: r[k] for k in ("chosen", "rejected")}
            rows.append({"prompt": r["prompt"][0]["content"], **both, "annotator": f"person {who}"})
    return bench.rows("pairs", rows)


def tastes(policy: Policy, env: Environment) -> dict[str, float]:
    """What each group gets from two answers to each of 200 held-out requests, and what the worst-served one does."""
    groups = answers(policy, env, held_out(env, 200, "test"), Sampling(**HOW), 2)
    told = [(g.prompt, r.text) for g in groups for r in g.rollouts]
    many, few = fmean(brief(p, t) for p, t in told), fmean(kind(p, t) for p, t in told)
    return {"majority": many, "minority": few, "worst": min(many, few)}


def served(seed: int, **options: Any) -> Measured:
    """The registered plan: EM, then 20 steps of PPO on the prompts of the pairs."""
    with Bench(seed) as bench:
        told = ", ".join(f"{k}={v!r}" for k, v in (options | {"rounds": ROUNDS, "steps": STEPS}).items())
        common = {"prompts": 16, "sampling": HOW, "num_generations": 4, "eval_problems": 0}
        run = bench.run("plan", method=f"maxmin-rlhf({told})", task=people(bench), **common)
        asked = {k: ASKED[k] for k in ("level", "think", "sampling")}
        return bench.measured(run, "instructions", 200, tastes, **asked)


claim(
    Claim(
        id="maxmin-rlhf",
        title="MaxMin-RLHF",
        paper="arXiv:2402.08925",
        family="preference",
        says="Where annotators want different things, one reward model serves the majority alone; a mixture of reward models found by EM, and a policy that "
        "improves the worst-served group, raises what the minority gets.",
        experiment=f"The embedded model answers small requests; {PAIRS} comparisons of its own answers by ten annotators, eight of whom want few words and two of whom want "
        "kindness; who belongs together is not told. The registered plan with two groups; with one (a single reward, as many passes over the pairs); with two whose "
        "rewards are averaged. What each group gets, from 0 to 1, from held-out requests, which no arm sees.",
        arms={
            "MaxMin": partial(served, groups=2),
            "single reward": partial(served, groups=1),
            "average": partial(served, groups=2, how="mean"),
        },
        checks=(
            Check("the minority gets more than by a single reward", "minority", "MaxMin", "single reward", margin=0.1),
            Check("the worst-served group gets more than by a single reward", "worst", "MaxMin", "single reward", margin=0.05),
            Check("and no less than by the average", "worst", "MaxMin", "average", margin=-0.05),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("samples"), Shared("updates"), Shared("prompts", within=0.05)),
        tried="Not tried on any seed beyond seeing that its arms run (60 pairs, one step), when most wanted many words, which kindness brings too; few words and "
        "kindness are at odds. Seed 100, MaxMin alone: 0.82 for the majority, 0.22 for the minority.",
    ),
    __file__,
)  # fmt: skip
