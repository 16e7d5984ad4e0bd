"""Agents on the embedded model that acts: pocket-2, the workshop's experts, and a bench for tasks with turns.

Experts are right part of the time, as those that pocket-2 was trained on: a system that is tried in a form that pocket-2 has never seen is
first shown conversations in that form, the same ones in every arm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from claims.machinery.arms import Bench, Measured
from posttrain.core import rng as draws
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Message, Prompt, Rollout
from posttrain.environments.task import task as make_task
from posttrain.environments.workshop import SKILLS, workshop
from posttrain.environments.workshop.scene import conversation
from posttrain.evals.accuracy import answers, graded, held_out
from posttrain.policies.load import load_model
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.spec import task_scorer
from posttrain.rollouts.sample import sample

MODEL = "pocket-2"
HOW: dict[str, Any] = {"max_tokens": 64}
Figure = Callable[[Sequence[Rollout]], float]


class AgentBench(Bench):
    """A bench whose runs begin with pocket-2, and which measures tasks with turns."""

    def run(self, name: str, **settings: Any) -> Path:
        return super().run(name, **{"model": MODEL, "prompts": 8, "sampling": HOW} | settings)

    def policy(self, run: Path | None) -> Any:
        """The policy that a run ended with; None: pocket-2 as it comes."""
        return load_model(MODEL) if run is None else super().policy(run)

    def taught(self, rows: Sequence[Sequence[Message]], passes: float = 2.0, **columns: Any) -> Path:
        """A run that has imitated these conversations, every turn of the assistant: what the arms of a claim begin with."""
        file = self.rows("shown", [{"messages": list(said)} | columns for said in rows])
        return self.once("shown", method="sft", task=file, steps=round(passes * len(rows) / 16), prompts=16)

    def looked(
        self,
        run: Path | None,
        env: Environment | str,
        problems: int = 200,
        figures: Mapping[str, Figure] | None = None,
        how: Mapping[str, Any] = HOW,
        rollout: Part = sample,
    ) -> Measured:
        """On held-out problems, one episode each: `worth`, what it earned on average; `accuracy`, the share that earned 1; turns; and figures."""
        env = make_task(env) if isinstance(env, str) else env
        groups = answers(self.policy(run), env, held_out(env, problems, "test"), Sampling(**how), 1, rollout)
        found = graded(groups, Prescored() if env.opens else task_scorer(env), "accuracy")
        made = found.rollouts
        told = {"worth": found.accuracy, "accuracy": share(made, lambda r: r.total > 1 - 1e-6), "turns": turns(made)}
        return Measured(
            told | {k: figure(made) for k, figure in (figures or {}).items()}, self.tally.spent(), self.curves
        )


def share(made: Sequence[Rollout], good: Callable[[Rollout], bool]) -> float:
    """Of rollouts."""
    return sum(map(good, made)) / max(len(made), 1)


def turns(made: Sequence[Rollout]) -> float:
    """Per episode."""
    return sum(len(r.turns) for r in made) / max(len(made), 1)


def told(name: str) -> Figure:
    """The mean of what episodes keep under a name."""
    return lambda made: sum(float(r.info.get(name) or 0.0) for r in made) / max(len(made), 1)


def expert_runs(skill: str, seed: int, n: int, care: float, level: int | None = None) -> list[dict[str, Any]]:
    """Runs of an expert on the first training problems of a workshop task: index, actions, messages, what was earned.

    care: how often it goes the right way; else it falls into one of the task's habits.
    """
    env, module, out = workshop(skill, level), SKILLS[skill], []
    for index in range(n):
        rng = draws.python("expert", skill, seed, index)
        habit = "" if rng.random() < care else rng.choices(list(module.HABITS), list(module.HABITS.values()))[0]
        prompt = env.prompt(index)
        said, earned = conversation(module, prompt, habit, rng)
        actions = [m["content"] for m in said if m["role"] == "assistant"]
        out.append({"index": index, "actions": actions, "messages": said, "earned": earned})
    return out


def called(prompt: Prompt) -> list[dict[str, Any]]:
    """The calls that answer a problem of `tool_calls`."""
    found: list[dict[str, Any]] = json.loads(json.dumps(prompt.info["gold_calls"]))
    return found


def spoiled(call: Mapping[str, Any], rng: Random) -> dict[str, Any]:
    """A call with one argument under another name, or with another value."""
    name, value = rng.choice(sorted(call["arguments"].items()))
    rest = {k: v for k, v in call["arguments"].items() if k != name}
    changed = {f"the_{name}": value} if rng.random() < 0.5 else {name: f"{value}"[::-1]}
    return {"name": call["name"], "arguments": rest | changed}
