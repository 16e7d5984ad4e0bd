"""Rewards named file.py:f run in a process of their own: killed when they hang, told when they end it."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.rewards.runtime import file_process, file_reward
from posttrain.rewards.runtime.conventions import Answers
from posttrain.rewards.runtime.file_reward import FileReward
from posttrain.rewards.runtime.messages import packed, unpacked
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.scorers.spec import build_scorer
from tests.cli.conftest import call

PROMPTS = [Prompt.text(f"p{i}", f"What is {i}+1?", str(i + 1), tags=["b", "a"]) for i in range(6)]
REWARDS = r"""
import os, re, subprocess, sys, time
calls = 0

def right(prompt, text):
    return float(text == prompt.answer)

def backtracks(prompt, text):
    if text == "hang":
        re.match(r"(a+)+$", "a" * 40 + "b")   # holds the interpreter for hours
    return 1.0

def ends(prompt, text):
    if text == "end":
        os._exit(3)
    return 1.0

def counts(prompt, text):
    global calls
    calls += 1
    return float(calls)

def spins(prompt, text):
    global calls
    calls += 1
    while text == "spin":
        pass
    return float(calls)

def later(prompt, text):
    time.sleep(0.05)   # by now the others have begun, too
    return backtracks(prompt, text)

async def blocks(prompt, text):
    if text == "block":
        time.sleep(600)
    return 1.0

def starts(prompt, text):
    child = subprocess.Popen(["sleep", "600"])
    return float(child.pid)

def garbles(prompt, text):
    for fd in range(3, 12):
        try:
            os.write(fd, text.encode() + b"\n")
        except OSError:
            pass
    return 1.0

def trl(prompts, completions, answer, **columns):
    return [None if c == "skip" else float(c == a) for c, a in zip(completions, answer)]

def whole(prompts, texts):
    if "hang" in texts:
        re.match(r"(a+)+$", "a" * 40 + "b")
    return [1.0] * len(texts)

def moves(prompt, text):
    os.chdir("/")
    return 1.0

async def waits(prompt, text):
    return 2.0

def prefer(prompt, a, b):
    return 0.5

def wants_more(completions, nowhere):
    return [1.0] * len(completions)

class Scorer:
    def score(self, groups):
        return None

scorer = Scorer()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
    made.write_text(REWARDS)
    return made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_process, "_GRACE", 0.5)


def scored(file: Path, name: str, texts: list[str], timeout: float = 5.0) -> tuple[list[float], Any]:
    scorer = RewardSum([(name, FileReward(str(file), name), 1.0)], timeout=timeout)
    return scorer.texts(PROMPTS[: len(texts)], texts)


def test_the_same_numbers_as_in_process(file: Path) -> None:
    assert scored(file, "right", ["1", "2", "x"])[0] == [1.0, 1.0, 0.0]
    assert scored(file, "waits", ["a", "b"])[0] == [2.0, 2.0]
    totals, report = scored(file, "trl", ["1", "skip", "x"])
    assert totals[0] == 1.0 and math.isnan(totals[1]) and totals[2] == 0.0 and report.rewards[0].skipped == 1


def test_a_pattern_that_holds_the_interpreter_is_killed_and_only_that_answer_is_late(file: Path) -> None:
    began = time.monotonic()
    totals, report = scored(file, "backtracks", ["a", "hang", "b", "c"], timeout=0.2)
    assert [math.isnan(x) for x in totals] == [False, True, False, False]
    assert report.rewards[0].late == 1 and "no result within 0.2 s" in report.why and time.monotonic() - began < 20


def test_a_batch_that_holds_the_interpreter_is_late_as_a_whole(file: Path) -> None:
    totals, report = scored(file, "whole", ["a", "hang"], timeout=0.2)
    assert all(map(math.isnan, totals)) and report.rewards[0].late == 2


def test_a_reward_that_ends_python_is_a_failure_of_that_answer(file: Path) -> None:
    totals, report = scored(file, "ends", ["a", "end", "b"])
    assert [math.isnan(x) for x in totals] == [False, True, False]
    assert "ends ended its process (exit code 3)" in report.why


def test_state_lasts_from_step_to_step(file: Path) -> None:
    scorer = RewardSum([("counts", FileReward(str(file), "counts"), 1.0)], workers=1)
    assert scorer.texts(PROMPTS[:2], ["a", "b"])[0] == [1.0, 2.0]
    assert scorer.texts(PROMPTS[:1], ["a"])[0] == [3.0]


def test_a_late_call_that_still_runs_ends_before_the_next_scoring(file: Path) -> None:
    """Else every spinning thread would slow down all later calls, until all of them are late."""
    scorer = RewardSum([("spins", FileReward(str(file), "spins"), 1.0)], timeout=0.2, workers=1)
    process = scorer.rewards["spins"].process
    first = process.popen.pid
    totals, report = scorer.texts(PROMPTS[:2], ["spin", "b"])
    assert math.isnan(totals[0]) and totals[1] == 2.0 and report.rewards[0].late == 1
    assert scorer.texts(PROMPTS[:2], ["a", "b"])[0] == [1.0, 2.0] and process.popen.pid != first  # a new process
    second = process.popen.pid
    assert scorer.texts(PROMPTS[:1], ["a"])[0] == [3.0] and process.popen.pid == second  # which is kept


def test_a_loop_that_a_coroutine_blocks_ends_before_the_next_scoring(file: Path) -> None:
    scorer = RewardSum([("blocks", FileReward(str(file), "blocks"), 1.0)], timeout=0.2)
    process = scorer.rewards["blocks"].process
    assert math.isnan(scorer.texts(PROMPTS[:1], ["block"])[0][0])
    before = process.popen and process.popen.pid
    assert scorer.texts(PROMPTS[:1], ["a"])[0] == [1.0] and process.popen.pid != before


def test_of_several_that_run_the_one_that_hangs_is_found_alone(file: Path) -> None:
    totals, report = scored(file, "later", ["a", "hang", "b"], timeout=0.3)
    assert [math.isnan(x) for x in totals] == [False, True, False] and report.rewards[0].late == 1


def test_after_so_many_kills_the_rest_is_not_tried(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reward, "_KILLS", 1)
    totals, report = scored(file, "backtracks", ["hang", "hang", "a"], timeout=0.2)
    assert all(map(math.isnan, totals)) and report.rewards[0].late == 3


def test_an_interrupt_of_the_terminal_is_not_for_the_process_of_a_reward(file: Path) -> None:
    reward = FileReward(str(file), "counts")
    assert reward(PROMPTS[0], "a") == 1.0
    os.kill(reward.process.popen.pid, signal.SIGINT)  # type: ignore[union-attr]
    assert reward(PROMPTS[0], "a") == 2.0


def test_messages_hold_whatever_a_row_may_and_token_ids_where_they_are_wanted() -> None:
    info = {"tags": ("a", {"b"}), "by number": {1: "x", ("t",): b"\x00"}, "\0kind": "set", "of": [1]}
    prompts = [Prompt("p", ({"role": "user", "content": "?"},), "4", info)]
    answers = Answers(prompts * 2, ["a", "b"], lambda: [[1], [2, 3]])
    read, timeout, workers = unpacked(packed(answers, True, 2.5, 3))
    assert [p.info for p in read.prompts] == [info] * 2 and read.texts == ["a", "b"] and (timeout, workers) == (2.5, 3)
    assert read.ids() == [[1], [2, 3]] and unpacked(packed(answers, False, 1.0, 1))[0].ids() == []


def test_what_a_reward_has_started_ends_with_its_process(file: Path) -> None:
    for end in (lambda process: process.kill(), lambda process: (process.popen.stdin.close(), process.popen.wait(20))):
        reward = FileReward(str(file), "starts")
        child = int(reward(PROMPTS[0], "a"))
        os.kill(child, 0)  # it runs
        end(reward.process)
        wait = time.monotonic() + 10
        while time.monotonic() < wait and Path(f"/proc/{child}/stat").exists():
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                break
            time.sleep(0.01)
        else:
            assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("line", ["garbage", "[1, 2]", '{"began": 0, "ended": 5}', "[" * 100_000, '{"outcomes": 3}'])
def test_a_reward_that_writes_into_the_pipe_of_its_process_fails_and_ends_no_run(file: Path, line: str) -> None:
    totals, report = scored(file, "garbles", [line])
    assert math.isnan(totals[0]) and "garbles wrote into the pipe over which its process replies" in report.why


def test_a_file_that_became_unusable_fails_and_does_not_end_the_run(tmp_path: Path, capsys: Any) -> None:
    mine = tmp_path / "changing.py"
    mine.write_text("import os\ndef f(prompt, text):\n    if text == 'end':\n        os._exit(0)\n    return 1.0\n")
    scorer = RewardSum([("f", FileReward(str(mine), "f"), 1.0)])
    assert scorer.texts(PROMPTS[:1], ["a"])[0] == [1.0]
    mine.write_text("def f(:\n")
    totals, report = scorer.texts(PROMPTS[:2], ["end", "b"])
    assert (all(map(math.isnan, totals)) and "SyntaxError" in report.why) or "exit code 0" in report.why
    assert "has changed since the run began" in capsys.readouterr().err


def test_it_cannot_move_the_run_to_another_folder(file: Path) -> None:
    here = os.getcwd()
    assert scored(file, "moves", ["a"])[0] == [1.0] and os.getcwd() == here


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import sys\nsys.exit(0)\n", "line 2: SystemExit: 0"),
        ("import os\nos._exit(0)\n", "ended Python with exit code 0"),
        ("import os\nos.kill(os.getpid(), 9)\n", "ended Python with exit code -9"),
        ("1/0\n", "line 1: ZeroDivisionError"),
        (
            "import os\nfor fd in range(3, 12):\n    try: os.write(fd, b'x\\n')\n    except OSError: pass\n",
            "wrote into the pipe",
        ),
        ("def g(prompt, text): return 1.0\n", "no function in"),
        ("def f(a): return 1.0\n", "cannot be called with a prompt and a text"),
        ("f = 3\n", "a reward is a function, got 3"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence_and_not_a_silent_exit(tmp_path: Path, body: str, told: str) -> None:
    mine = tmp_path / "bad_reward.py"
    mine.write_text(body)
    said = call("run", "grpo", "--reward", f"{mine}:f", "--runs", str(tmp_path))
    assert said.code == 2 and told in said.err and said.err.count("\n") == 1
    said = call("run", "grpo", "--reward", f"win_rate(judge='{mine}:f')", "--runs", str(tmp_path))
    assert said.code == 2 and said.err.startswith("error: ") and said.err.count("\n") == 1


def test_prompts_that_only_this_process_can_read_are_scored_here_and_it_is_said(file: Path, capsys: Any) -> None:
    odd = [Prompt("p", ({"role": "user", "content": "?"},), "1", {"check": lambda x: x})]
    scorer = RewardSum([("right", FileReward(str(file), "right"), 1.0)])
    assert scorer.texts(odd, ["1"])[0] == [1.0] and scorer.texts(odd, ["2"])[0] == [0.0]
    assert capsys.readouterr().err.count("its time-out is best effort") == 1


def test_a_scorer_in_a_file_sees_rollouts_so_it_stays_here(file: Path) -> None:
    from posttrain.environments.school import school

    made = build_scorer(f"{file}:scorer", school("arithmetic", level=1))
    assert type(made).__name__ == "Scorer"


def test_a_missing_column_is_told_with_the_nearest(file: Path) -> None:
    _, report = scored(file, "wants_more", ["a"])
    assert "asks for the column 'nowhere'" in report.why


def test_a_python_object_is_said_to_have_a_weaker_time_out_once(tmp_path: Path, capsys: Any) -> None:
    import posttrain as pt

    def mine(prompt: Prompt, text: str) -> float:
        return 1.0

    for _ in range(2):
        with pytest.raises(UserError, match="no model named"):
            pt.run(model="nowhere", reward=mine, runs=str(tmp_path), steps=1)
    assert capsys.readouterr().err.count("the reward mine runs in the training process") == 1
