"""ToolRL's rewards, worked out by hand.

The claim to come: toolrl against GRPO with grain="coarse" and against SFT on the same rows, equal answers and updates; the share of held-out
turns whose calls are all right; expected: fine above coarse, and above SFT on combinations of tools that were not seen.
"""

from __future__ import annotations

import itertools
import json
import random

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.gold_calls import GoldCall, gold_calls, tools_of
from posttrain.environments.task import of_rows
from posttrain.systems.agents_multiturn.toolrl import (
    calls_right,
    dynamic_scale,
    greedy,
    instructed,
    matched,
    overlap,
    toolrl_correct,
    toolrl_form,
    toolrl_length,
    validate,
)

GOLD = [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}]


def asked(answer: object = GOLD) -> Prompt:
    return Prompt.text("p", "1+2?", json.dumps(answer) if isinstance(answer, list) else answer)


def turn(*calls: object, thought: str = "so") -> str:
    lines = "\n".join(c if isinstance(c, str) else json.dumps(c) for c in calls)
    return f"<think>{thought}</think>\n<tool_call>\n{lines}\n</tool_call>"


@pytest.mark.derived("reward/toolrl-correct")
def test_correctness() -> None:
    """s_max = 1 + (1 + 2) + (1 + 0) = 5.

    all, in any order:          s = 5                                       R = 3
    b is 3:                     J(names) 1, add: J 1 + one value, now: 1    s = 4, R = 6 * 4/5 - 3 = 1.8
    only add(a=1, c=2):         names 1/2, J{a,b},{a,c} = 1/3, one value    s = 11/6, R = 6 * 11/30 - 3 = -0.8
    now twice, no add:          names {add,now},{now,now}: 1/3, now 1       s = 4/3, R = 6 * 4/15 - 3 = -1.4
    """
    a, b = GOLD
    right = [
        (turn(a, b), 3.0),
        (turn(b, {"name": "add", "parameters": {"b": 2, "a": 1}}), 3.0),
        (turn({"name": "add", "arguments": {"a": 1, "b": 3}}, b), 1.8),
        (turn({"name": "add", "arguments": {"a": 1, "c": 2}}), -0.8),
        (turn(b, b), -1.4),
        (turn({"name": "sub", "arguments": {}}), -3.0),  # a name that is none of them: 0
        (turn('{"name": "add"'), -3.0),
        (turn({"name": "add"}), -3.0),
        ("<think>so</think>\nno idea", -3.0),
        (f"<think>{turn(a, b)}</think>\nno", -3.0),  # a call in a thought is none
        (turn({"name": "add", "arguments": {"a": True, "b": 2}}, b), 1.8),  # true is not 1
    ]
    for text, want in right:
        assert toolrl_correct(asked(), text) == pytest.approx(want), text
    assert toolrl_correct(asked("It is 3."), turn(a)) == 0.0  # no call is wanted: nothing to be right about
    assert toolrl_correct(asked(), turn(a, {"name": "now", "arguments": {"x": 1}}), grain="coarse") == -3.0
    assert toolrl_correct(asked(), turn(b, a), grain="coarse") == 3.0


def test_the_best_matching_and_the_greedy_one() -> None:
    """Gold f(x=1, y=1), f(x=1, y=2); said f(x=1, y=2), f(x=3, y=3). s_max = 1 + 3 + 3 = 7; names 1.

    Worth (J + equal values): gold 1: 1+1, 1+0; gold 2: 1+2, 1+0. Greedy takes 2 + 1, the best matching 1 + 3.
    R: 6 * 4/7 - 3 = 3/7 and 6 * 5/7 - 3 = 9/7.
    """
    gold = [{"name": "f", "arguments": {"x": 1, "y": k}} for k in (1, 2)]
    text = turn({"name": "f", "arguments": {"x": 1, "y": 2}}, {"name": "f", "arguments": {"x": 3, "y": 3}})
    assert toolrl_correct(asked(gold), text, matching="greedy") == pytest.approx(3 / 7)
    assert toolrl_correct(asked(gold), text) == pytest.approx(9 / 7)
    with pytest.raises(UserError, match="'best' or 'greedy'"):
        toolrl_correct(asked(), text, matching="first")


def test_the_best_matching_is_the_best_of_all() -> None:
    draw = random.Random(0)
    for _ in range(60):
        rows, columns = draw.randint(1, 4), draw.randint(1, 5)
        worth = [[draw.choice((0.0, 0.5, 1.0, 2.5)) for _ in range(columns)] for _ in range(rows)]
        n = max(rows, columns)
        square = [[worth[i][j] if i < rows and j < columns else 0.0 for j in range(n)] for i in range(n)]
        best = max(sum(square[i][j] for i, j in enumerate(p)) for p in itertools.permutations(range(n)))
        assert matched(worth) == pytest.approx(best)
        assert greedy(worth) <= best + 1e-9
    assert matched([[], []]) == 0.0 and overlap([], []) == 1.0 and overlap(["a", "a"], ["a"]) == 0.5


@pytest.mark.derived("reward/toolrl-form")
def test_form_depends_on_what_is_wanted() -> None:
    call, text = turn(GOLD[0]), "<think>so</think>\n<response>3</response>"
    both = f"{call}\n<response>3</response>"
    tagged = '<think>t</think>\n<tool_call>\n{"name": "now", "parameters": {}}\n</tool_call>\n<response>r</response>'
    table = {
        (json.dumps(GOLD), call): 1, (json.dumps(GOLD), text): 0, (json.dumps(GOLD), both): 0,
        ("It is 3.", text): 1, ("It is 3.", call): 0, (tagged, both): 1, (tagged, call): 0,
        ("<think>t</think>", "<think>so</think>"): 1, ("<think>t</think>", text): 0,
        (json.dumps(GOLD), call.replace("\n</tool", "</tool")): 0, (json.dumps(GOLD), call + "\n" + call): 0,
        (json.dumps(GOLD), call.replace("<think>so</think>\n", "")): 0, (json.dumps(GOLD), f"\n{call}\n"): 1,
    }  # fmt: skip
    for (answer, said), want in table.items():
        assert toolrl_form(asked(answer), said) == want, (answer, said)
    assert validate() == []


@pytest.mark.derived("reward/toolrl-length", "reward/calls-right")
def test_length_and_calls_that_are_right() -> None:
    assert toolrl_length(asked(), turn(GOLD[0], thought="a b " * 64)) == 0.25  # 128 of 512 words
    assert toolrl_length(asked(), turn(GOLD[0], thought="a " * 600)) == 1.0
    assert toolrl_length(asked(), "<think>never closed") == 0.0
    assert calls_right(asked(), turn(*reversed(GOLD))) == 1.0 and calls_right(asked(), turn(GOLD[0])) == 0.0
    assert calls_right(asked("It is 3."), "3") == 1.0 and calls_right(asked("It is 3."), turn(GOLD[0])) == 0.0


@pytest.mark.derived("shaping/toolrl")
def test_scale() -> None:
    """form 1, 0; correctness 3, -1.5; a length of 0.25 besides; at step 75, 30 and 29.

    smooth at 75 of 150: p = 1/2, a = 3/2, c = 5/2: 1.5 + 2.5 + 0.25 = 4.25; 0 - 1.25 + 0.25 = -1; as released 1 less (2 - 2p = 1)
    stages: at 29: 1 + 1 + 0.25 = 2.25;  -0.5 + 0.25;  at 30: 0.5 + 3 + 0.25 = 3.75;  -1.5 + 0.25
    """

    def batch(step: int) -> Batch:
        form, right = torch.tensor([1.0, 0.0]), torch.tensor([3.0, -1.5])
        parts = {"reward:form_B": form, "reward:correct_B": right, "reward:length_B": torch.full((2,), 0.25)}
        total_BT = torch.stack([torch.zeros(2), form + right + 0.25], 1)
        return Batch(mask_BT=torch.ones(2, 2), reward_BT=total_BT, version_B=torch.full((2,), step), **parts)

    def worth(step: int, **options: object) -> list[float]:
        shaped_BT = dynamic_scale(batch(step), **options)
        assert shaped_BT[:, 0].tolist() == [0.0, 0.0]
        return shaped_BT[:, 1].tolist()

    assert worth(75) == [4.25, -1.25]  # as it is
    assert worth(75, schedule="smooth") == pytest.approx([4.25, -1.0])
    assert worth(0, schedule="smooth") == pytest.approx([2 + 2 + 0.25, -1 + 0.25])
    assert worth(400, schedule="smooth") == pytest.approx([1 + 3 + 0.25, -1.5 + 0.25])
    assert worth(75, schedule="released") == pytest.approx([4.25, -2.0])
    assert worth(0, schedule="released") == pytest.approx([4.25, -0.75 - 2])
    assert worth(29, schedule="stages") == pytest.approx([2.25, -0.25])
    assert worth(30, schedule="stages") == pytest.approx([3.75, -1.25])
    with pytest.raises(UserError, match="expected one of"):
        worth(0, schedule="linear")


def test_gold_calls_are_read_in_every_layout() -> None:
    function = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    want = [GoldCall("add", {"a": 1})]
    said = {"role": "assistant", "content": "", "tool_calls": function}
    rows = [
        {"question": "q0", "answer": [{"name": "add", "arguments": {"a": 1}}]},
        {"question": "q1", "answer": '[{"name": "add", "parameters": {"a": 1}}]'},
        {"question": "q2", "answer": function},
        {"question": "q3", "answer": '<think>x</think>\n<tool_call>\n{"name": "add", "parameters": {"a": 1}}\n</tool_call>'},
    ]  # fmt: skip
    env = of_rows({"train": rows, "test": rows[:1]})
    assert [gold_calls(env.prompt(i, "train")) for i in range(3)] == [want] * 3
    talk = of_rows([{"messages": [{"role": "user", "content": "q"}, said]}])
    assert gold_calls(talk.prompt(0)) == want
    assert gold_calls(asked("[1, 2]")) == [] and gold_calls(asked("plain")) == []


def test_the_form_and_the_tools_are_told_once() -> None:
    tools = [{"type": "function", "function": {"name": "add", "description": "adds"}}]
    told = instructed(Prompt.text("p", "q", "a", tools=tools))
    assert told.content[0]["role"] == "system" and '"add"' in told.content[0]["content"] and "tools" not in told.info
    own = Prompt("p", ({"role": "system", "content": "mine"}, {"role": "user", "content": "q"}), "a")
    assert instructed(own).content == own.content
    both = instructed(Prompt(own.id, own.content, "a", {"tools": json.dumps(tools)}))
    assert both.content[0]["content"].startswith("mine\n\nYou may call tools")
    with pytest.raises(ValueError, match="a tool is"):
        tools_of(Prompt.text("p", "q", tools=["add"]))
