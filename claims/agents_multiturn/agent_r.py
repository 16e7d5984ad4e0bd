"""Agent-R: runs that fail, notice it and go on as one that succeeds teach an agent to recover; good runs alone teach that less."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench
from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt
from posttrain.environments.mapped import Mapped
from posttrain.environments.workshop import workshop
from posttrain.environments.workshop.treasure import MOVES, moved

TASK, SKILL, LEVEL, TASKS, ROUNDS, PROBLEMS = "treasure(level=1)", "treasure", 1, 48, 2, 200
NEVER = 9.0  # a gap that no two runs have: good runs alone are learned


class Astray(Mapped):
    """The task begun in the middle of a run: the first move was made by somebody else, away from the treasure."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env, lambda p, split: p)

    @property
    def opens(self) -> bool:
        return True

    def open(self, prompt: Prompt, key: int) -> Any:
        return self.env.open(prompt, key)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        p = self.env.prompt(index, split)
        start, goal, size = tuple(p.info["start"]), tuple(p.info["treasure"]), p.info["size"]
        wrong = max(MOVES, key=lambda way: _apart(moved(start, way, size), goal))
        scene = self.env.skill.Scene(p)  # type: ignore[attr-defined]
        reply = scene.reply(wrong)
        said = [{"role": "assistant", "content": wrong}, {"role": "user", "content": reply.text or ""}]
        info = {**p.info, "start": scene.at, "budget": scene.left}
        return Prompt(f"{p.id}-astray", (*p.content, *said), p.answer, info)


def _apart(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def trained(seed: int, beta: float | None) -> Measured:
    """The registered plan, with pairs of runs that are so far apart, or the start; held-out fields, from the start and led astray."""
    with AgentBench(seed) as bench:
        run = None
        if beta is not None:
            plan = f"agent-r(rounds={ROUNDS}, tasks={TASKS}, beta={beta})"
            run = bench.run("run", method=plan, task=TASK, sampling={"max_tokens": 24})
        whole = bench.looked(run, TASK, PROBLEMS)
        astray = bench.looked(run, Astray(workshop(SKILL, LEVEL)), PROBLEMS)
        return Measured(whole | {"recovered": astray["accuracy"]}, whole.spent, whole.curves)


claim(
    Claim(
        id="agent-r",
        title="Agent-R",
        paper="arXiv:2501.11425",
        family="agents-multiturn",
        says="SFT on runs that are cut at their first error, noticed and continued as a good run makes an agent better, and better at recovering, than SFT on "
        "its good runs alone.",
        experiment="pocket-2 looks for a treasure by directions. The registered plan, 2 rounds of tree search on 48 fields, with revised runs; and the same plan with a "
        "gap that no pair reaches, so that good runs alone are learned. accuracy: treasures found in 200 held-out fields; recovered: the same after a "
        "first move away from it. The first arm learns from more rows, which are made of the same runs.",
        arms={
            "Agent-R": partial(trained, beta=0.2),
            "good runs alone": partial(trained, beta=NEVER),
            "start": partial(trained, beta=None),
        },
        checks=(
            Check("better than the start", "accuracy", "Agent-R", "start", margin=0.05),
            Check("recovers better than from good runs alone", "recovered", "Agent-R", "good runs alone", margin=0.02),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("updates", within=0.9, arms=("Agent-R", "good runs alone")),),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned. "
        "Then, as it stands, seed 100: Agent-R 0.65, recovered 0.23; the start 0.57.",
    ),
    __file__,
)
