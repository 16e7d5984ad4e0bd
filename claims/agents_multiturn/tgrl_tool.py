"""TGRL: tool use that was reinforced on arithmetic alone carries over to word problems, and the reward for the form keeps it valid."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench, Figure, share
from posttrain.core import rng as draws
from posttrain.core.protocols import Environment
from posttrain.core.types import Message, Prompt
from posttrain.environments.mapped import each
from posttrain.environments.school import school
from posttrain.environments.tooled import with_tools
from posttrain.environments.workshop.scene import near
from posttrain.rollouts.retraced import retrace
from posttrain.systems.agents_multiturn.tgrl_tool import ANSWER, form_of, interpreter, ruled

LEVEL, SHOWN, STEPS, PROBLEMS, CARE = 2, 240, 30, 150, 0.45
TRAINED, OTHER = "arithmetic", "word_problems"
HOW: dict[str, Any] = {"max_tokens": 64}


def tooled(name: str) -> Environment:
    """A school task with the calculator and the answer tool, as the plan has it."""
    task = school(name, level=LEVEL, think=False)
    return with_tools(each(task, ruled), [interpreter("calculator"), ANSWER], format="xml", max_turns=4)


def shown(env: Environment, seed: int, index: int) -> list[Message]:
    """The sum is calculated and its result given in a box; or (not careful) a guess, some of them without the tool."""
    prompt, rng = env.prompt(10_000 + index), draws.python("tooled", seed, index)
    texts = [f"<answer>\\boxed{{{near(rng, int(float(str(prompt.answer))))}}}</answer>"]
    if rng.random() < CARE:
        texts = [f"<calculator>{sum_of(prompt)}</calculator>", f"<answer>\\boxed{{{prompt.answer}}}</answer>"]
    elif rng.random() < 0.3:
        texts = [str(prompt.answer)]
    return retrace(env, prompt, texts).messages


def sum_of(prompt: Prompt) -> str:
    """The numbers and signs of a question, as the calculator takes them."""
    return "".join(c for c in prompt.last if c in "0123456789+-*/()").strip("-") or "0"


def valid(made: Any) -> float:
    return share(made, lambda r: form_of(r) > 0)


def trained(seed: int, plan: str) -> Measured:
    """Shown the form on arithmetic; then the registered plan on arithmetic, or nothing more; looked at on both tasks."""
    with AgentBench(seed) as bench:
        env, other = tooled(TRAINED), tooled(OTHER)
        run = bench.taught([shown(env, seed, i) for i in range(SHOWN)], tools=list(env.prompt(0).info["tools"]))
        if plan:
            how: dict[str, Any] = {"task": TRAINED, "level": LEVEL, "think": False, "sampling": HOW}
            run = bench.run("run", method=plan, model=str(run), **how)
        figures: dict[str, Figure] = {"valid": valid}
        here = bench.looked(run, env, PROBLEMS, figures, HOW)
        there = bench.looked(run, other, PROBLEMS, figures, HOW)
        return Measured(here | {f"other_{k}": x for k, x in there.items()}, here.spent, here.curves)


claim(
    Claim(
        id="tgrl-tool",
        title="TGRL",
        paper="arXiv:2510.11184",
        family="agents-multiturn",
        says="RL with an interpreter on mathematics alone, one answer tool and a reward for outcome and form without a word of the domain, "
        "teaches tool use that carries over to other domains.",
        experiment="pocket-2, shown 240 episodes with a calculator and an answer tool on arithmetic, right less than half of the time. 30 steps of the "
        "registered plan on arithmetic (8 questions, 8 episodes), with and without the reward for the form. Held-out: arithmetic, and word problems, "
        "which no training with tools has seen. valid: episodes whose calls were all good and which ended with the answer tool.",
        arms={
            "TGRL": partial(trained, plan=f"tgrl-tool(steps={STEPS}, tool='calculator', max_turns=4)"),
            "outcome alone": partial(
                trained, plan=f"tgrl-tool(steps={STEPS}, tool='calculator', max_turns=4, form=0.0)"
            ),
            "start": partial(trained, plan=""),
        },
        checks=(
            Check("better on arithmetic", "accuracy", "TGRL", "start", margin=0.05),
            Check("better on word problems too", "other_valid", "TGRL", "start", margin=0.05),
            Check("no less right than without the form", "accuracy", "TGRL", "outcome alone", margin=-0.05),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("samples", arms=("TGRL", "outcome alone")),
            Shared("updates", within=0.2, arms=("TGRL", "outcome alone")),
        ),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned, and "
        "the sizes above were not tried on any seed.",
    ),
    __file__,
)
