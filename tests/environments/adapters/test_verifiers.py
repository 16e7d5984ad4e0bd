"""Environments in the style of `verifiers`: the package's own where it is installed, and a stranger's class that only looks like one."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from posttrain.core.errors import UserError
from posttrain.core.types import End
from posttrain.environments.adapters.verifiers import Verifiers, is_verifiers
from posttrain.environments.task import task
from posttrain.rollouts.episode import episodes
from tests.environments.adapters.said import seen, turn
from tests.runs import tiny_run

ROWS = [{"question": f"write {c}", "answer": c, "info": {"row": i}} for i, c in enumerate("abcdefghijkl")]


class Rubric:
    def __init__(self, funcs: list[Any], weights: list[float] | None = None) -> None:
        self.funcs, self.weights = funcs, weights or []


class Plain:
    """No class of anybody's: turns as they were written for earlier versions of the package, (messages, state)."""

    max_turns = 3

    def __init__(self, rubric: Any, rows: Any = ROWS) -> None:
        self.dataset, self.rubric = rows, rubric

    def setup_state(self, state: Any) -> Any:
        return state | {"tries": 0}

    def is_completed(self, messages: Any, state: Any) -> bool:
        return bool(messages[-1]["content"] == state["answer"])

    async def env_response(self, messages: Any, state: Any) -> Any:
        state["tries"] += 1
        return [{"role": "user", "content": f"no {state['tries']}", "name": None}], state


async def hit(completion: Any, answer: str, **more: Any) -> float:
    return float(completion[-1]["content"] == answer and set(more) == {"prompt", "state", "task", "info"})


def tries(state: Any, info: Any) -> float:
    return float(state["tries"] + 100 * info["row"])


def play(env: Any, texts: list[Any], index: int = 0) -> list[pt.Step]:
    async def all_of() -> list[pt.Step]:
        return [await talk.step(x if isinstance(x, pt.Turn) else turn(x)) for x in texts]

    talk = env.open(env.prompt(index), 1)
    return asyncio.run(all_of())


def test_turns_and_a_weighted_rubric_of_plain_and_async_rewards() -> None:
    env = Verifiers(Plain(Rubric([hit, tries], [1.0, 0.5])), "letters")
    assert (env.size("train"), env.size("test"), env.prompt(0, "test").answer) == (11, 1, "j")
    first, last = play(env, ["x", "b"], index=1)
    assert first.messages == [{"role": "user", "content": "no 1"}] and first.reward is None
    assert last.messages is None and last.stop == "answered" and last.reward == 1.0 + 0.5 * 101
    assert last.info == {"metrics": {"hit": 1.0, "tries": 101.0}}
    limited = play(env, ["x", "y", "z"])
    assert limited[-1].stop == "max_turns" and limited[-1].reward == 0.5 * 2


def test_without_env_response_there_is_one_turn_and_a_cut_off_one_is_graded_as_it_stands() -> None:
    class Single:
        dataset, eval_dataset, rubric = ROWS[:2], ROWS[2:], Rubric([hit])
        system_prompt = "Be brief."

    env = Verifiers(Single())
    assert env.prompt(0).content[0] == {"role": "system", "content": "Be brief."} and env.size("test") == 10
    assert [s.reward for s in play(env, ["a"])] == [1.0] and play(env, ["x"])[0].stop == "answered"
    many = Verifiers(Plain(Rubric([hit])))
    (cut,) = play(many, [turn("a", stopped=False)])
    assert cut.messages is None and cut.stop == "length" and cut.reward == 1.0


def test_a_fork_goes_its_own_way() -> None:
    async def both() -> list[str]:
        talk: Any = Verifiers(Plain(Rubric([hit]))).open(Verifiers(Plain(Rubric([hit]))).prompt(0), 1)
        await talk.step(turn("x"))
        other = talk.fork()
        return [seen(await one.step(turn("y"))) for one in (talk, other)]

    assert asyncio.run(both()) == ["no 2", "no 2"]


def test_a_reward_that_fails_masks_the_episode() -> None:
    def broken(completion: Any) -> float:
        raise ValueError("no judge")

    class Single:
        dataset, rubric = ROWS, Rubric([hit, broken])

    env = Verifiers(Single(), "letters")
    ask = pt.RolloutRequest({"policy": tiny_run.policy()}, [env.prompt(0)], pt.Sampling(max_tokens=2), env=env, step=1)
    (group,) = episodes(ask, 2)
    assert {r.end for r in group.rollouts} == {End.ENV_ERROR} and "no judge" in str(group.rollouts[0].info["error"])


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (Plain(Rubric([hit]), []), "has 0 rows"),
        (Plain(Rubric([hit]), None), "neither dataset nor eval_dataset"),
        (Plain(Rubric([hit], [0.0])), "pays for nothing"),
        (Plain(Rubric([lambda completions: [0.0]])), "scores a whole group"),
        (Plain(Rubric([hit]), [{"text": "a"}] * 3), "neither prompt nor question; it has: text"),
    ],
)
def test_mistakes_are_one_sentence(made: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Verifiers(made).prompt(0)


def test_ours_are_not_taken_for_one_of_theirs() -> None:
    assert is_verifiers(Plain(Rubric([hit]))) and not is_verifiers(task("arithmetic")) and not is_verifiers(object())


NEW = find_spec("verifiers.v1") if find_spec("verifiers") else None  # from 0.2 on
MINE = '''
import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"Add {a} and 1", "answer": str(a + 1)} for a in range(20)]


async def right(completion, answer):
    return float(completion[-1]["content"].strip() == answer)


def brief(completion, parser):
    return 1 / (1 + len(completion[-1]["content"]))


def load_environment(weight=0.1):
    return vf.SingleTurnEnv(dataset=Dataset.from_list(ROWS), rubric=vf.Rubric(funcs=[right, brief], weights=[1.0, weight]))


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if messages[-1]["content"] == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "yes"}]
            return state["final_env_response"]
        return [{"role": "user", "content": "no"}]


def guess():
    def hit(completion):
        return float(completion[-1]["content"] == "yes")

    return Guess(dataset=Dataset.from_list(ROWS), rubric=vf.Rubric(funcs=[hit]), max_turns=3)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


def tools():
    return vf.ToolEnv(dataset=Dataset.from_list(ROWS), tools=[add], rubric=vf.Rubric(funcs=[right]), max_turns=4)
'''


@pytest.mark.skipif(
    not find_spec("verifiers") or bool(NEW), reason="needs the package as it was: pip install verifiers==0.1.10"
)
def test_the_package_itself(tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}_vf.py"
    file.write_text(MINE)
    single = task(f"{file}:load_environment(weight=0.5)")
    assert [s.reward for s in play(single, ["1"])] == [1.25] and single.size("test") == 2  # type: ignore[attr-defined]
    guess = task(f"{file}:guess")
    steps = play(guess, ["7", "1"])
    assert (
        seen(steps[0]) == "no" and steps[1].reward == 1.0 and steps[1].info["metrics"] == {"hit": 1.0, "num_turns": 2.0}
    )
    assert play(guess, ["7", "8", "9"])[-1].stop == "max_turns"
    tools = task(f"{file}:tools")
    assert tools.prompt(0).info["tools"][0]["function"]["name"] == "add"
    call = json.dumps({"name": "add", "arguments": {"a": 0, "b": 1}})
    steps = play(tools, [f"<tool_call>{call}</tool_call>", "<tool_call>{nope}</tool_call>", "1"])
    assert steps[0].messages[0]["role"] == "tool" and seen(steps[0]) == "1"  # type: ignore[index]
    assert (
        "Expecting value" in seen(steps[1]) and steps[2].reward == 1.0 and steps[2].info["metrics"]["add_calls"] == 1.0
    )
