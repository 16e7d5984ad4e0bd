"""Judges and critics named `file.py:function`: whatever they do, they do it in a process of their own."""

from __future__ import annotations

import inspect
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.rewards.runtime import file_function
from posttrain.rewards.scorers.judging import Criterion, Example, FunctionJudge, is_judge
from posttrain.rewards.scorers.pairwise import compare
from posttrain.rewards.scorers.spec import function_of, names_judge

JUDGES = '''
import os, re, sys
seen = []

def longer(prompt, a, b):
    """P(a wins): whether it is longer."""
    return float(len(a) > len(b))

def hangs(prompt, a, b):
    if "x" in a:
        re.match(r"(a+)+$", "a" * 60 + "b")  # keeps the interpreter for ever
    return 1.0

def always(prompt, a, b):
    while True:
        pass

def leaves(prompt, a, b):
    if "x" in a:
        sys.exit(3)
    if "y" in a:
        os._exit(4)
    return 1.0

def loud(prompt, a, b):
    print('{"value": 0.0}')
    os.write(1, b'{"value": 0.0}' + bytes([10]))
    return 1.0

def changes(prompt, steps):
    prompt.info["gold"] = "stolen"
    steps.clear()
    seen.append(1)
    return {"steps": steps, "calls": len(seen), "pair": (1, 2.5)}

def raises(prompt, a, b):
    raise KeyError("no such thing")

def told(prompt, text, aspect, sharp=2.0, reference=None, demonstrations=()):
    """Points by what it is told besides, with a parameter of its own between."""
    return sharp * len(aspect) + 10 * (text == reference) + 100 * len(demonstrations)

async def waits(prompt, text):
    return text.upper()

def besides(prompt, texts, *, aspect, demonstrations=()):
    return [len(t) + (aspect == "wit") + 10 * len(demonstrations) + 100 * (demonstrations[0]["prompt"].id == "e") for t in texts]

def odd(prompt, text):
    return object()

class Critic:
    def __call__(self, prompt, text):
        return text

critic = Critic()
number = 3
'''
ASKED = Prompt("p", "which?", info={"gold": "2", "places": (1, 2)})


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "judges_of_mine.py"
    path.write_text(JUDGES)
    sys.modules.pop(path.stem, None)  # of another test
    return str(path)


def test_a_judge_is_known_by_what_it_takes(file: str) -> None:
    judge = function_of(file, "longer")
    assert is_judge(judge) and list(inspect.signature(judge).parameters) == ["prompt", "a", "b"]
    assert judge(ASKED, "aa", "b") == 1.0 and judge(ASKED, "a", "bb") == 0.0
    assert names_judge(f"{file}:longer") and not names_judge(f"{file}:changes")


def test_what_a_judge_is_told_besides_goes_by_name(file: str) -> None:
    """The aspect, the gold answer and rankings to learn from, into the judge's own process."""
    judge, asked = FunctionJudge(function_of(file, "told")), Prompt("p", "which?", "2")
    shown = (Example("what?", ("a", "b")),)
    # 2 * len("true") + 10 where the text is the gold one + 100 for each ranking that is shown
    criterion = Criterion(aspect="true", reference=True, examples=shown)
    assert judge.points([asked, asked], ["2", "3"], criterion) == [118.0, 108.0]
    assert judge.points([asked], ["2"], Criterion(aspect="true")) == [8.0], "the gold answer is not for it to see"


def test_what_a_judge_may_ask_for_besides_is_sent_by_name(file: str) -> None:
    judge = FunctionJudge(function_of(file, "besides"))
    shown = Criterion(aspect="wit", examples=(Example(Prompt("e", "shown?"), ("good", "bad")),))
    assert judge.learns and judge.together([(ASKED, ["aa", "b"])], shown) == [[113.0, 112.0]]
    assert judge.rank([(ASKED, ["b", "aa"])], shown) == [(1, 0)]


def test_one_that_hangs_is_killed_and_masks_what_it_was_asked(file: str) -> None:
    start = time.monotonic()
    judge = FunctionJudge(function_of(file, "hangs", 0.5))
    found = compare(judge, [(ASKED, "x", "b"), (ASKED, "c", "b")], "as given")
    assert math.isnan(found[0]) and found[1] == 1.0, "the next question starts another process"
    assert time.monotonic() - start < 30


def test_one_that_always_hangs_is_left_alone_for_a_while(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_function, "_KILLS", 1)
    judge = function_of(file, "always", 0.3)
    with pytest.raises(TimeoutError, match=r"0\.3 s"):
        judge(ASKED, "a", "b")
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="not tried: 1 calls before it had to be killed"):
        judge(ASKED, "a", "b")
    assert time.monotonic() - start < 0.2
    time.sleep(0.6)
    with pytest.raises(TimeoutError, match=r"0\.3 s"):
        judge(ASKED, "a", "b")


@pytest.mark.parametrize("answer, told", [("x", "SystemExit: 3"), ("y", r"leaves ended its process \(exit code 4\)")])
def test_one_that_ends_python_ends_its_own_process(file: str, answer: str, told: str) -> None:
    judge = function_of(file, "leaves")
    with pytest.raises(ValueError, match=told):
        judge(ASKED, answer, "b")
    assert judge(ASKED, "a", "b") == 1.0


def test_prints_are_no_replies(file: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert function_of(file, "loud")(ASKED, "a", "b") == 1.0
    assert capfd.readouterr().out == ""


def test_what_it_does_to_its_arguments_stays_there(file: str) -> None:
    asked, steps = Prompt("p", "which?", info={"gold": "2", "places": (1, 2)}), ["one", "two"]
    function = function_of(file, "changes")
    assert function(asked, steps) == {"steps": [], "calls": 1, "pair": (1, 2.5)}
    assert function(asked, steps)["calls"] == 2, "the module lives from call to call"
    assert asked.info == {"gold": "2", "places": (1, 2)} and steps == ["one", "two"]


def test_what_it_raises_is_raised_here_with_its_line(file: str) -> None:
    with pytest.raises(ValueError, match=r"KeyError: 'no such thing' judges_of_mine.py:\d+ raise KeyError"):
        function_of(file, "raises")(ASKED, "a", "b")
    with pytest.raises(ValueError, match=r"Unreadable: they hold a builtins.object"):
        function_of(file, "odd")(ASKED, "a")


def test_other_forms(file: str, tmp_path: Path) -> None:
    assert function_of(file, "waits")(ASKED, "abc") == "ABC"
    assert function_of(file, "critic")(ASKED, "abc") == "abc"
    assert function_of(file, "number") == 3
    with pytest.raises(UserError, match=r"no function in .* named 'longr'; did you mean 'longer'"):
        function_of(file, "longr")
    (tmp_path / "ends_at_once.py").write_text("import os\nos._exit(0)\n")
    with pytest.raises(UserError, match="ended Python with exit code 0; a reward's file may only define things"):
        function_of(str(tmp_path / "ends_at_once.py"), "f")


def test_what_cannot_be_sent_is_asked_in_this_process(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    held: dict[str, Any] = {"object": object()}
    assert function_of(file, "longer")(Prompt("p", "which?", info=held), "aa", "b") == 1.0
    assert "what longer is asked cannot be sent to another process: they hold a builtins.object" in capsys.readouterr().err  # fmt: skip
