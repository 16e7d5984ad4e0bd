"""A task with tools: what is called with what, in which order, what comes back, why an episode ends, and what it earns."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, RolloutRequest, Step
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import STOPS, End, Prompt
from posttrain.environments.data import data
from posttrain.environments.task import task
from posttrain.environments.tooled import Tooled, ToolEpisode, with_tools
from posttrain.policies.load import load_model
from posttrain.rollouts.sample import sample
from posttrain.tools.one_call import Call
from posttrain.tools.tool import ToolError, tool
from posttrain.tools.written import render

ROWS = [{"question": f"What is {a}+1?", "answer": str(a + 1)} for a in range(20)]


class Spy:
    """A tool that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def look(self, what: str, n: int = 1) -> str:
        """Look something up.

        what: a word
        """
        self.calls.append((what, n))
        if what == "fail":
            raise ValueError("no such thing")
        if what == "refuse":
            raise ToolError("it is closed")
        return f"{what}!" * n


def turn(text: str, stopped: bool = True) -> Turn:
    made = Turn.of(Observation(torch.tensor([1])), torch.tensor([2]), torch.zeros(1), text)
    made.stopped = stopped
    return made


def call(name: str = "look", **arguments: Any) -> str:
    return render([Call(name, arguments)], "hermes", {})


def opened(spy: Spy | None = None, env: Environment | None = None, more: Any = (), **limits: Any) -> ToolEpisode:
    made = with_tools(env or data(ROWS), [(spy or Spy()).look, *more], **limits)
    return made.open(made.prompt(0), 0)


def step(episode: ToolEpisode, text: str, stopped: bool = True) -> Step:
    return asyncio.run(episode.step(turn(text, stopped)))


def test_calls_go_out_with_their_arguments_and_results_come_back_in_order():
    spy = Spy()
    episode = opened(spy)
    done = step(episode, f"I look.\n{call(what='b', n=2)}{call(what='a')}")
    assert sorted(spy.calls) == [("a", 1), ("b", 2)]
    assert done.messages == [
        {"role": "tool", "name": "look", "tool_call_id": "call00000", "content": "b!b!"},
        {"role": "tool", "name": "look", "tool_call_id": "call00001", "content": "a!"},
    ]
    assert done.reward is None
    (record,) = done.info["tools"]
    assert [c["arguments"] for c in record["calls"]] == [{"what": "b", "n": 2}, {"what": "a"}]
    assert [c["result"] for c in record["calls"]] == ["b!b!", "a!"] and not record["faults"]
    assert all(c["repaired"] is False and c["seconds"] >= 0 for c in record["calls"]) and json.dumps(record)
    again = step(episode, call(what="c"))
    assert again.messages[0]["tool_call_id"] == "call00002" and len(again.info["tools"]) == 2  # type: ignore[index]


def test_a_turn_without_calls_is_the_answer_and_the_task_grades_it():
    env = with_tools(data(ROWS), [Spy().look])
    prompt = env.prompt(0)
    for text, worth in ((f"It is {prompt.answer}", 1.0), ("It is 77", 0.0)):
        done = step(env.open(prompt, 0), text)
        assert (done.messages, done.stop, done.reward) == (None, "answered", worth)
    assert done.info["tools"] == [{"calls": [], "faults": [], "seconds": done.info["tools"][0]["seconds"]}]


def test_the_arguments_of_a_call_are_no_answer():
    env = with_tools(data(ROWS), [Spy().look])
    prompt = env.prompt(0)
    gold = str(prompt.answer)
    assert env.grade(prompt, gold) == 1.0 and env.grade(prompt, call(what=gold)) == 0.0
    last = step(opened(max_turns=1), call(what=gold))
    assert (last.stop, last.reward) == ("max_turns", 0.0)
    both = step(opened(max_turns=1), f"It is {gold}\n{call(what='a')}")  # said beside a call: no answer yet
    assert (both.stop, both.reward) == ("max_turns", 0.0)


ENDS = [
    ("max_turns", {"max_turns": 2}, [call(what="a"), call(what="b")]),
    ("max_calls", {"max_calls": 2}, [call(what="a"), call(what="b") + call(what="c")]),
    ("structural", {}, ['<tool_call>{"name": "look", "arguments": {"what": "a"}}']),
    ("content", {"faults": 2}, ["<tool_call>oops</tool_call>", call("nosuch")]),
    ("content", {"faults": 1}, [call(wath="a")]),
    ("answered", {"faults": 2}, ["<tool_call>oops</tool_call>", call(what="a"), "<tool_call>oops</tool_call>", "4"]),
    ("answered", {"max_turns": 2, "max_calls": 1}, [call(what="a"), "4"]),
]


@pytest.mark.parametrize(("stop", "limits", "texts"), ENDS)
def test_why_an_episode_ends(stop, limits, texts):
    spy = Spy()
    episode = opened(spy, **limits)
    steps = [step(episode, text) for text in texts]
    assert all(s.messages for s in steps[:-1]) and steps[-1].messages is None
    assert steps[-1].stop == stop and stop in STOPS and steps[-1].reward == 0.0
    assert ("b", 1) not in spy.calls  # nothing is called whose result nobody would read


def test_a_turn_that_was_cut_off_calls_nothing_and_is_graded_as_it_stands():
    spy, gold = Spy(), data(ROWS).prompt(0).answer
    done = step(opened(spy), call(what="a"), stopped=False)
    assert (done.stop, done.reward, spy.calls) == ("length", 0.0, []) and STOPS[done.stop] is End.TRUNCATED
    assert step(opened(spy), f"It is {gold}", stopped=False).reward == 1.0
    half = step(opened(spy), '<tool_call>{"name": "look", "arg', stopped=False)
    assert (half.stop, half.info["tools"][0]["faults"]) == ("length", [])  # the limit's fault, and not the model's


def test_faults_come_back_as_observations_with_what_to_write():
    told = {
        "<tool_call>oops</tool_call>": "not JSON",
        call("lok", what="a"): "did you mean 'look'?",
        call(): "look needs what",
        call(what=3): "what of look is of type string",
        call(what="a", m=1): "has no argument 'm'",
    }
    for text, words in told.items():
        spy = Spy()
        done = step(opened(spy), text)
        (message,) = done.messages  # type: ignore[misc]
        assert message["content"].startswith("error: ") and words in message["content"] and not spy.calls
        assert done.info["tools"][0]["faults"] == [message["content"].removeprefix("error: ")]


def test_a_good_call_beside_a_bad_one_is_made():
    spy = Spy()
    done = step(opened(spy, faults=1), call(what="a") + "<tool_call>oops</tool_call>")
    assert spy.calls == [("a", 1)] and [m["name"] for m in done.messages] == ["look", "error"]  # type: ignore[union-attr]


def test_errors_of_a_tool_are_observations_and_no_faults():
    episode = opened(faults=1)
    for what, words in (("fail", "error: ValueError: no such thing"), ("refuse", "error: it is closed")):
        done = step(episode, call(what=what))
        assert done.messages[0]["content"] == words and not done.info["tools"][-1]["faults"]  # type: ignore[index]


def test_a_repaired_call_is_made_and_marked():
    done = step(opened(), '<tool_call>{"name": "look", "arguments": {"what": "a",}}</tool_call>')
    assert done.messages[0]["content"] == "a!" and done.info["tools"][0]["calls"][0]["repaired"] is True  # type: ignore[index]


def test_calls_of_a_turn_run_at_the_same_time():
    together = threading.Barrier(3)

    def meet(who: str) -> str:
        """Wait for two others."""
        together.wait(10)
        return who

    done = step(opened(more=[meet]), "".join(call("meet", who=n) for n in "xyz"))
    assert [m["content"] for m in done.messages] == ["x", "y", "z"]  # type: ignore[union-attr]


def test_one_deadline_for_an_episode():
    hold = threading.Event()

    def wait() -> str:
        """Wait."""
        hold.wait(30)
        return "late"

    began = time.monotonic()
    episode = opened(more=[wait], seconds=0.2)
    done = step(episode, call("wait"))
    hold.set()
    assert (done.stop, done.reward) == ("timeout", 0.0) and time.monotonic() - began < 10
    assert "no result within 0.2 s" in done.info["tools"][0]["calls"][0]["result"]
    slow = tool(wait, seconds=0.05)
    hold.clear()
    episode = opened(more=[slow], seconds=30)
    done = step(episode, call("wait"))  # a tool that is late alone is told, and the episode goes on
    hold.set()
    assert "within 0.05 s" in done.messages[0]["content"] and episode.spent < 5  # type: ignore[index]


def test_a_tool_may_end_the_episode_with_the_answer():
    def submit(answer: str) -> str:
        """Hand in the answer."""
        if not answer:
            raise ToolError("an answer is needed")
        return answer

    gold = str(data(ROWS).prompt(0).answer)
    episode = opened(more=[tool(submit, ends=True)])
    assert step(episode, call("submit", answer="")).messages  # it failed, so it goes on
    done = step(episode, call("submit", answer=gold))
    assert (done.messages, done.stop, done.reward) == (None, "tool_end", 1.0)


def test_async_tools_run_to_their_end():
    async def fetch(what: str) -> str:
        """Fetch."""
        await asyncio.sleep(0)
        return what.upper()

    assert step(opened(more=[fetch]), call("fetch", what="a")).messages[0]["content"] == "A"  # type: ignore[index]


def test_half_a_character_in_a_result_does_not_reach_the_tokenizer():
    done = step(opened(), '<tool_call>{"name": "look", "arguments": {"what": "\\ud800"}}</tool_call>')
    assert done.messages[0]["content"] == "?!"  # type: ignore[index]


def test_a_grade_that_fails_or_hangs_breaks_the_episode_and_is_no_zero():
    class Bad(Environment):
        name = "bad"

        def prompt(self, index: int, split: str = "train") -> Prompt:
            return Prompt.text(f"{split}-{index}", "hello")

        def grade(self, prompt: Prompt, text: str) -> float:
            raise ValueError("no grade")

    with pytest.raises(ValueError, match="no grade"):
        step(opened(env=Bad()), "4")


# ---- replay and fork


def test_replay_restores_the_counters_and_calls_nothing():
    spy = Spy()
    live = opened(spy, max_calls=3)
    texts = [call(what="a"), "<tool_call>oops</tool_call>", call(what="b") + call(what="c")]
    steps = [step(live, text) for text in texts]
    calls = list(spy.calls)
    other = opened(spy, max_calls=3)
    for text, done in zip(texts, steps, strict=True):
        other.replay(turn(text), Step(done.messages, info=json.loads(json.dumps(done.info))))
    assert spy.calls == calls and vars(other) | {"use": 0} == vars(live) | {"use": 0}
    assert step(other, call(what="d")).stop == step(live, call(what="d")).stop == "max_calls"


def test_a_fork_is_independent_and_shares_the_tools():
    spy = Spy()
    spy.lock = threading.Lock()  # type: ignore[attr-defined]  # cannot be copied
    first = opened(spy)
    step(first, call(what="a"))
    second = first.fork()
    assert isinstance(second, ToolEpisode) and second.use is first.use
    step(second, call(what="b"))
    assert (first.turns, first.calls, second.turns, second.calls) == (1, 1, 2, 2) and len(first.said) == 1
    assert second.said[0] == first.said[0] and second.said[0] is not first.said[0]
    assert spy.calls == [("a", 1), ("b", 1)] and copy.deepcopy(first).said == first.said


# ---- as an environment


def test_the_task_keeps_its_prompts_splits_and_grade():
    plain = data(ROWS)
    env = with_tools(plain, [Spy().look], format="xml")
    assert env.opens and env.graded and env.name == plain.name and env.size("test") == plain.size("test")
    mine, theirs = env.prompt(3, "test"), plain.prompt(3, "test")
    assert (mine.id, mine.content, mine.answer) == (theirs.id, theirs.content, theirs.answer)
    assert mine.info["tool_format"] == "xml" and mine.info["tools"][0]["function"]["name"] == "look"
    assert not env.validate(2) and with_tools(task("arithmetic"), [Spy().look]).validate(3) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "hermse"}, "did you mean 'hermes'"),
        ({"max_turns": 0}, "max_turns of the tools is 0"),
        ({"max_calls": True}, "whole number"),
        ({"seconds": 0}, "seconds of the tools"),
        ({"tools": []}, "no tools were given"),
        ({"tools": [Spy().look, Spy().look]}, "two tools are named 'look'"),
    ],
)
def test_mistakes_are_told(change, words):
    with pytest.raises(UserError, match=words):
        with_tools(**{"env": data(ROWS), "tools": [Spy().look]} | change)


def test_a_task_with_turns_of_its_own_gets_no_tools():
    env = with_tools(data(ROWS), [Spy().look])
    with pytest.raises(UserError, match="turns of its own"):
        with_tools(env, [Spy().look])


def test_where_a_reward_scores_the_episode_pays_nothing():
    env = with_tools(data(ROWS), [Spy().look])
    paid = env.unpaid()
    gold = str(env.prompt(0).answer)
    assert isinstance(paid, Tooled) and step(paid.open(env.prompt(0), 0), gold).reward is None
    assert step(env.open(env.prompt(0), 0), gold).reward == 1.0 and paid.grade(env.prompt(0), gold) == 1.0


def test_episodes_of_a_real_model_call_tools_and_read_what_came_back():
    """The first turn's call is written for the model (a prefill); the second turn is its own, and its context holds the result."""
    spy = Spy()
    policy = load_model("pocket")
    env = with_tools(data(ROWS), [spy.look], format="xml", max_turns=2)
    prompt = env.prompt(0)
    prompt.info["prefill"] = "<look>oslo</look>"
    ask = RolloutRequest({"policy": policy}, [prompt], Sampling(max_tokens=40, temperature=1.0), env=env)
    (group,) = sample(ask, n=6)
    ended = [r for r in group.rollouts if r.info["tools"][0]["calls"]]
    assert ended and spy.calls == [("oslo", 1)] * len(ended)
    for r in ended:
        assert len(r.turns) == 2 and r.turns[1].continues
        seen = policy.tokenizer.decode(r.turns[1].observation.tokens.tolist())
        assert "<tool_response>\noslo!\n</tool_response>" in seen and "<|user|>" in seen
        row = r.row
        again = policy.forward([row])["logp_BT"][0].detach()
        assert torch.allclose(again[row.mask_T], row.logp_T[row.mask_T], atol=1e-4)
        assert int(row.mask_T.sum()) == sum(len(t) for t in r.turns)
