"""Environments in the style of the package `verifiers`, by what they have, not by their class: `--task mine.py:load_environment`.

    dataset, eval_dataset (or get_dataset(), get_eval_dataset())   rows with prompt (messages) or question, answer, info, task
    rubric                                                         reward functions with weights, plain or async
    setup_state, env_response, is_completed                        turns; without env_response there is one

Each reward function gets those of prompt, completion, answer, state, task, info (and the rubric's own objects, such as parser) that
it names. One that fails masks the episode, where the package itself counts it as 0. Without an eval_dataset one row in ten is held out.
From 0.2 on the package has tasksets in the place of these (`adapters/tasksets.py`).
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from posttrain.core.adopt import adopt as adopt_ours
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Message, Prompt
from posttrain.environments.adapters.tasksets import Tasks, installed, is_taskset
from posttrain.environments.base import SPLITS
from posttrain.environments.held_out import one_in_ten
from posttrain.tools.calls import parse

_GROUP = {"states", "prompts", "completions", "answers", "tasks", "infos"}  # arguments of a reward of a whole group


def is_verifiers(env: Any) -> bool:
    """Whether an object is an environment of that style: it has rows and a rubric, and no prompts of ours."""
    rows = callable(getattr(env, "get_dataset", None)) or hasattr(env, "dataset")
    return rows and hasattr(env, "rubric") and not callable(getattr(env, "prompt", None))


def adopt(env: Any, name: str = "") -> Environment:
    """Whatever somebody wrote as an environment: ours, one that looks like ours, or one of this style, old or new."""
    return Tasks(env, name) if is_taskset(env) else adopt_ours(Verifiers(env, name) if is_verifiers(env) else env, name)


class Verifiers(Environment):
    """One such environment; every episode has a state of its own."""

    def __init__(self, env: Any, name: str = "") -> None:
        self.env = env
        self.name = str(getattr(env, "env_id", "") or name or type(env).__name__)
        self.rows = split_rows(env, self.name)
        self.rewards = rewards_of(env.rubric, self.name)

    def size(self, split: str) -> int:
        return len(self.rows[split])

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Row number `index`; passes over a split repeat it."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        place = index % len(self.rows[split])
        row = self.rows[split][place]
        tools = getattr(self.env, "oai_tools", None)
        info = {"split": split, "place": place} | ({"tools": list(tools)} if tools else {})
        return Prompt(f"{self.name}-{split}-{place}", messages_of(row, self.env, self.name), row.get("answer"), info)

    def open(self, prompt: Prompt, key: int) -> Episode:
        return Talk(self, prompt)


class Talk(Episode):
    """One conversation: the package's state, and all messages so far."""

    def __init__(self, of: Verifiers, prompt: Prompt) -> None:
        self.of, self.prompt = of, prompt
        self.said: list[Message] = [dict(m) for m in prompt.content]
        self.state: Any = None

    def fork(self) -> Talk:
        new = copy.copy(self)
        new.said, new.state = copy.deepcopy(self.said), copy.deepcopy(self.state)
        return new

    async def step(self, turn: Turn) -> Step:
        env = self.of.env
        if self.state is None:
            self.state = await self.begun()
        answer = message_of(turn.text, self.prompt)
        asked, self.said = list(self.said), [*self.said, answer]
        paid = await self.noted(asked, answer, turn)
        if not turn.stopped:
            return await self.ended("length", paid)
        if not hasattr(env, "env_response") or await self.over():
            return await self.ended(self.reason(), paid)
        added = await self.answered()
        if self.state.get("final_env_response") is not None:
            self.said += added or list(self.state["final_env_response"])
            await self.over()
            return await self.ended("answered", paid)
        if not added:
            raise RuntimeError(f"{self.of.name}.env_response gave no messages")
        self.said += added
        return Step(added, reward=paid)

    async def begun(self) -> Any:
        """The state that the environment makes of the row."""
        env, row = self.of.env, self.of.rows[self.prompt.info["split"]][self.prompt.info["place"]]
        given = {
            "prompt": copy.deepcopy(self.said),
            "task": "default",
            "example_id": self.prompt.info["place"],
            **copy.deepcopy(row),
        }
        given["prompt"] = copy.deepcopy(self.said)
        if hasattr(env, "init_state"):
            state = await awaited(env.init_state(given, None, "policy", None))
        else:
            state = given | {"trajectory": [], "turn": 0}
        if hasattr(env, "setup_state"):
            state = await awaited(env.setup_state(state)) or state
        if list(state["prompt"]) != self.said:
            raise UserError(f"{self.of.name}.setup_state changes the prompt; prompts are those of the rows here")
        return state

    async def noted(self, asked: list[Message], answer: Message, turn: Turn) -> float | None:
        """The turn is in the state's trajectory; an environment that pays turns says so there."""
        step = {
            "prompt": asked, "completion": [answer], "response": None, "tokens": None, "reward": None, "advantage": None,
            "is_truncated": not turn.stopped, "trajectory_id": self.state.get("trajectory_id", ""), "extras": {},
        }  # fmt: skip
        if hasattr(self.of.env, "add_trajectory_step"):
            await awaited(self.of.env.add_trajectory_step(self.state, step))
        else:
            self.state["trajectory"].append(step)
            self.state["turn"] = self.state.get("turn", 0) + 1
        paid = step["reward"]
        return None if paid is None else float(paid)

    async def over(self) -> bool:
        """What is_completed says, of (state) or of (messages, state) as it was once; an error of the environment is one here too."""
        done = (
            bool(await fitting(self.of.env.is_completed, self.said, self.state))
            if hasattr(self.of.env, "is_completed")
            else False
        )
        if (error := self.state.get("error")) is not None:
            raise error if isinstance(error, Exception) else RuntimeError(str(error))
        most = int(getattr(self.of.env, "max_turns", 0) or 0)
        return done or 0 < most <= len(self.state["trajectory"])

    async def answered(self) -> list[Message]:
        """What the environment says next."""
        env = self.of.env
        if hasattr(env, "get_prompt_messages"):
            every = list(await awaited(env.get_prompt_messages(self.state)))
            if self.state.get("final_env_response") is not None:
                return []
            if every[: len(self.said)] != self.said:
                raise RuntimeError(f"{self.of.name} rewrites what was said before; here a conversation only goes on")
            return plain(every[len(self.said) :])
        given = await fitting(env.env_response, self.said, self.state)
        if isinstance(given, tuple):  # (messages, state), as it was once
            given, self.state = given
        return plain([{"role": "user", "content": given}] if isinstance(given, str) else given)

    def reason(self) -> str:
        """Why it is over: at its limit of turns, where it has more than one, else because all is said."""
        most = int(getattr(self.of.env, "max_turns", 0) or 0)
        limit = str(self.state.get("stop_condition") or "max_turns_reached") == "max_turns_reached"
        return "max_turns" if limit and 1 < most <= len(self.state["trajectory"]) else "answered"

    async def ended(self, stop: str, paid: float | None) -> Step:
        """The rubric's sum, and what each of its functions gave."""
        self.state["completion"] = self.said[len(self.prompt.content) :]
        known = {
            "prompt": list(self.prompt.content), "completion": self.state["completion"], "answer": self.state.get("answer", ""),
            "state": self.state, "task": self.state.get("task", "default"), "info": self.state.get("info") or {},
        }  # fmt: skip
        found: dict[str, float] = {}
        total = 0.0
        for function, weight, objects in self.of.rewards:
            name = getattr(function, "__name__", type(function).__name__)
            found[name] = float(await awaited(function(**named(function, known | objects))))
            total += weight * found[name]
        return Step(None, reward=total + (paid or 0.0), stop=stop, info={"metrics": found})


# ---- rows, messages, rewards


def split_rows(env: Any, name: str) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The rows to train on and those to test with."""
    train = read(env, "dataset")
    test = read(env, "eval_dataset") if getattr(env, "eval_dataset", None) is not None else None
    if train is None and test is None:
        raise UserError(f"{name} has no rows: neither dataset nor eval_dataset is set")
    if train is None or test is None:
        return {**one_in_ten(list(train if train is not None else test or ()), name)}
    if not len(train) or not len(test):
        raise UserError(f"{name} has {len(train)} rows to train on and {len(test)} to test with; it needs one of each")
    return {"train": train, "test": test}


def read(env: Any, name: str) -> Any:
    """A data set of the environment, which may be made only when it is asked for."""
    get = getattr(env, f"get_{name}", None)
    made = callable(get) and (getattr(env, name, None) is not None or name == "dataset")
    found = get() if made else getattr(env, name, None)  # type: ignore[misc]
    return found() if callable(found) else found


def messages_of(row: Mapping[str, Any], env: Any, name: str) -> tuple[Message, ...]:
    """The prompt of a row: its messages, or its question as one, after the environment's system message."""
    asked = row.get("prompt", row.get("question"))
    if asked is None:
        raise UserError(f"a row of {name} has neither prompt nor question; it has: {', '.join(map(str, row))}")
    content = plain([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)
    system = getattr(env, "system_prompt", None)
    if system and content and content[0]["role"] != "system":
        content = [{"role": "system", "content": str(system)}, *content]
    return tuple(content)


def plain(messages: Any) -> list[Message]:
    """Messages as dicts without the empty fields that tables and typed objects add."""
    dicts = [m.model_dump() if hasattr(m, "model_dump") else dict(m) for m in messages]
    return [{k: v for k, v in m.items() if v is not None} for m in dicts]


def message_of(text: str, prompt: Prompt) -> Message:
    """What the policy said, with the calls that it wrote where it has tools; a call that cannot be read has no arguments, which the
    environment answers as it answers any call that is wrong."""
    schemas = prompt.info.get("tools") or ()
    if not schemas:
        return {"role": "assistant", "content": text}
    read = parse(text, {one["function"]["name"]: one["function"].get("parameters", {}) for one in schemas})
    written = [(call.name, json.dumps(call.arguments)) for call in read.calls] + [("", fault) for fault in read.faults]
    if not written:
        return {"role": "assistant", "content": text}
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(written)
    ]
    return {"role": "assistant", "content": read.text, "tool_calls": calls}


def rewards_of(rubric: Any, name: str) -> list[tuple[Any, float, dict[str, Any]]]:
    """Every function of a rubric, and of those it groups, with its weight and the objects that it may ask for."""
    found = []
    for one in getattr(rubric, "rubrics", None) or [rubric]:
        functions, weights = list(getattr(one, "funcs", ())), list(getattr(one, "weights", ()))
        objects = dict(getattr(one, "class_objects", {}))
        found += [(f, float(w), objects) for f, w in zip(functions, weights or [1.0] * len(functions), strict=True)]
    for function, _, _ in found:
        if _GROUP & set(inspect.signature(function).parameters):
            told = getattr(function, "__name__", "a reward")
            raise UserError(
                f"{told} of {name} scores a whole group; give it as --reward mine.py:{told}, or score each answer"
            )
    if not any(weight for _, weight, _ in found):
        raise UserError(f"the rubric of {name} pays for nothing; give it a reward function with a weight that is not 0")
    return found


def named(function: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function names; all of them where it takes any."""
    asked = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in asked.values()):
        return dict(known)
    return {k: v for k, v in known.items() if k in asked}


async def fitting(method: Any, messages: list[Message], state: Any) -> Any:
    """A method of (messages, state) or of (state)."""
    asked = inspect.signature(method).parameters
    return await awaited(method(list(messages), state) if "messages" in asked else method(state))


async def awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def verifiers(id: str = "", **options: Any) -> Environment:
    """An environment that is installed, by the id under which the package loads it."""
    if not id:
        raise UserError(
            "name the environment: --task \"verifiers(id='wordle')\"; one of your own: --task mine.py:load_environment"
        )
    try:
        package = import_module("verifiers")
    except ImportError:
        raise UserError("the package verifiers is not installed; type: pip install verifiers") from None
    try:
        if hasattr(package, "load_environment"):
            return Verifiers(package.load_environment(id, **options), id)
        return installed(import_module("verifiers.v1"), id, options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"verifiers cannot load {id!r}: {type(error).__name__}: {error}") from None
