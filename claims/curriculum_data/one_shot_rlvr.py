"""1-shot RLVR: reinforcement learning on a single example teaches most of what the whole set teaches."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache

from claims.machinery.claim import Check, Claim, claim
from posttrain.core.answers import final_answer
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.school import school
from posttrain.evals.accuracy import accuracy
from posttrain.methods.grpo import grpo
from posttrain.policies.load import load_model
from posttrain.prompts.uniform import uniform
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.runs.in_memory import Listed, fit

ENV = school("counting", think=True)
HOW = Sampling(max_tokens=40)
COPIES, STEPS, TEST, POOL = 4, 20, 100, 24
METHOD = grpo.but(terms=())


@cache
def example(seed: int) -> tuple[Prompt, str]:
    """Of 24 training prompts the one whose outcome varies most (p (1 - p) of 16 answers), and its commonest wrong answer."""
    prompts = [ENV.prompt(1000 * seed + i) for i in range(POOL)]
    made = load_model("pocket", "cpu").sample(prompts, 16, HOW, seed)
    graded = [[(ENV.grade(p, r.text), r.text) for r in group] for p, group in zip(prompts, made, strict=True)]
    right = [sum(g for g, _ in answers) / 16 for answers in graded]
    best = max(range(POOL), key=lambda i: right[i] * (1 - right[i]))
    wrong = Counter(text for grade, text in graded[best] if grade == 0)
    return prompts[best], final_answer(wrong.most_common(1)[0][0]) or "none"


def trained(seed: int, prompts: list[Prompt] | None) -> dict[str, float]:
    """Held-out accuracy before and after 20 steps of 4 prompts (copies, where there is one) with 8 answers each."""
    policy = load_model("pocket", "cpu")
    before = accuracy(policy, ENV, TEST, HOW).accuracy
    config = Config(seed=seed, steps=STEPS, prompts=COPIES, lr=1e-4, warmup=5, sampling=HOW)
    env = ENV if prompts is None else Listed(prompts)
    copies = uniform.but(repeat=COPIES)  # type: ignore[attr-defined]
    method = METHOD if prompts is None else METHOD.but(prompts=copies)
    rows = fit(policy, method, env, config, build_scorer("", ENV))
    after = accuracy(policy, ENV, TEST, HOW).accuracy
    last = sum(r["reward"] for r in rows[-3:]) / 3
    return {
        "gain": after - before,
        "accuracy": after,
        "train": last,
        "share": after - before if prompts else (after - before) / 2,
    }


def one(seed: int) -> dict[str, float]:
    return trained(seed, [example(seed)[0]])


def wrong_label(seed: int) -> dict[str, float]:
    """The same example, its label replaced by the wrong answer the model gives most often."""
    prompt, wrong = example(seed)
    return trained(seed, [dataclasses.replace(prompt, answer=wrong)])


def full(seed: int) -> dict[str, float]:
    return trained(seed, None)


claim(
    Claim(
        id="one-shot-rlvr",
        title="1-shot RLVR",
        paper="arXiv:2504.20571",
        family="curriculum-data",
        says="RL with a verifiable reward on one well-chosen example raises held-out accuracy about as far as RL on the "
        "whole set; with a wrong label it does not.",
        experiment="The embedded model on counting problems with a written chain of thought, 20 steps of 32 answers: one example (largest "
        "p (1 - p) of 24) repeated 4 times, fresh problems each step, or the one example labelled with the model's commonest "
        "wrong answer to it. "
        "Accuracy on 100 held-out problems, one answer each.",
        arms={"one example": one, "whole set": full, "one, wrong label": wrong_label},
        checks=(
            Check("one example helps", "gain", "one example", 0.1),
            Check("the label matters", "gain", "one example", "one, wrong label", margin=0.1),
            Check("at least half of the whole set's gain", "share", "one example", "whole set"),
        ),
        seeds=tuple(range(5)),
        level="pocket",
        departures="The experiment does not run the plan. The paper "
        "trains Qwen2.5-Math-1.5B on one question repeated 128 times for 2,000 epochs, chosen by the variance of its accuracy "
        "over a run on the whole set, with KL 0.001 and an entropy bonus; here 20 steps of 4 copies, chosen by p (1 - p) at the "
        "start, with neither. Its controls (a random example, a reward for the form alone) are not run.",
        tried="Chosen on seeds 101-103: thinking rather than answers alone (without the written steps one example is learned "
        "by heart and held-out accuracy falls), learning rate 1e-4 (at 2e-4 single examples collapse), no KL or entropy term (under "
        "Adam they move the weights by themselves once the example is always right).",
    ),
    __file__,
)
