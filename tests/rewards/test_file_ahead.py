"""Rewards of files are begun as answers end, in their worker process, and nothing else changes."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime import file_process, file_reward
from posttrain.rewards.runtime.file_reward import FileReward
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rollouts.sources import LocalSource
from tests.runs.tiny_run import Count, config, method, policy

REWARDS = """
import re, time
from pathlib import Path
log = Path(__file__).with_name("log.txt")

def share(prompt, text):
    with log.open("a") as file:
        file.write(f"{prompt.id} {text!r}\\n")
    return text.count(prompt.answer) / max(len(text), 1)

async def waits(prompt, text):
    return share(prompt, text)

def odd(prompt, text):
    if text == "bad":
        raise ValueError("no a")
    if text == "hang":
        re.match(r"(a+)+$", "a" * 40 + "b")
    if text == "sleep":
        time.sleep(60)
    return 1.0

def listed(prompts, texts):
    with log.open("a") as file:
        file.write(f"{len(texts)}\\n")
    return [float(len(t)) for t in texts]
"""
PROMPT = Prompt.text("p", "which", "a")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_process, "_GRACE", 0.3)
    made = tmp_path / "ahead_rewards.py"
    made.write_text(REWARDS)
    return made


def scorer(file: Path, name: str, timeout: float = 20.0) -> RewardSum:
    return RewardSum([(name, FileReward(str(file), name), 1.0)], timeout=timeout)


def calls(file: Path) -> list[str]:
    log = file.with_name("log.txt")
    return log.read_text().splitlines() if log.exists() else []


def group(*texts: str) -> Group:
    made = [policy().written(PROMPT, "a") for _ in texts]
    for i, (r, text) in enumerate(zip(made, texts, strict=True)):
        r.index, r.turns[-1].text = i, text
    return Group(PROMPT, made)


def begun(made: RewardSum, *texts: str) -> None:
    """Told in the reverse order: whoever ends first, results are by answer."""
    for i, text in reversed(list(enumerate(texts))):
        made.begin(PROMPT, i, lambda text=text: text)  # type: ignore[misc]


def rewards(g: Group) -> list[float]:
    return [float("nan") if r.reward is None else r.reward for r in g.rollouts]


@pytest.mark.parametrize("name", ["share", "waits"])
def test_answers_are_graded_while_others_are_sampled(file: Path, name: str) -> None:
    made, g = scorer(file, name), group("aab", "b", "a")
    begun(made, "aab", "b")
    due = time.monotonic() + 20
    while len(calls(file)) < 2 and time.monotonic() < due:
        time.sleep(0.002)
    assert len(calls(file)) == 2  # nobody has asked for a score yet
    report = made.score([g])
    assert rewards(g) == pytest.approx([2 / 3, 0.0, 1.0]) and (report.n, report.masked) == (3, 0)
    assert len(calls(file)) == 3  # each once, the one that had not ended too


def test_a_run_gets_the_numbers_of_grading_afterwards(file: Path) -> None:
    m, p, settings = method(), policy(), config()
    made = scorer(file, "share")
    source = LocalSource({"policy": p}, Count(), m.rollout, made, m.prompts.live(), (settings.sampling, 6, 0))
    groups, report = source.next(0)
    got = [r.reward for g in groups for r in g.rollouts]
    assert len(calls(file)) == report.n == len(got)
    afterwards = RewardSum([("share", lambda prompt, text: Count().grade(prompt, text), 1.0)])
    afterwards.score(groups)
    assert got == [r.reward for g in groups for r in g.rollouts] and report.masked == 0


def test_failures_and_late_calls_mask_their_answer_alone(file: Path) -> None:
    texts = ("fine", "bad", "hang", "sleep", "fine too")
    made, g = scorer(file, "odd", timeout=0.5), group(*texts)
    begun(made, *texts)
    report = made.score([g])
    ahead = [math.isnan(x) for x in rewards(g)]
    assert ahead == [False, True, True, True, False]
    share = report.rewards[0]
    assert share.failed == 3 and share.late == 2 and "ValueError: no a" in share.error
    begun(made, "fine")
    assert made.score([h := group("fine")]).masked == 0 and rewards(h) == [1.0]  # the process was started again


def test_kills_are_counted_over_a_whole_scoring(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reward, "_KILLS", 1)
    made, g = scorer(file, "odd", timeout=0.3), group("hang", "hang", "fine")
    begun(made, "hang")
    while not made.files["odd"].kills.count:
        time.sleep(0.002)
    report = made.score([g])
    assert report.masked == 3 and report.rewards[0].late == 3
    assert made.score([h := group("fine")]).masked == 0 and rewards(h) == [1.0]  # the next scoring tries again


def test_a_reward_of_lists_gets_all_answers_at_once(file: Path) -> None:
    made, g = scorer(file, "listed"), group("a", "bb", "ccc")
    begun(made, "a", "bb")
    made.score([g])
    assert rewards(g) == [1.0, 2.0, 3.0] and calls(file) == ["3"]


def test_another_text_is_graded_again_and_nothing_is_kept(file: Path) -> None:
    made, g = scorer(file, "share"), group("aab")
    begun(made, "bbb", "aaa")  # one was changed after sampling, one was not kept
    made.score([g])
    assert rewards(g) == pytest.approx([2 / 3])
    ahead = made.files["share"]
    assert not ahead.found and not ahead.queue and not ahead.asking


def test_prompts_that_cannot_be_sent_are_graded_here(file: Path, capsys: Any) -> None:
    odd = Prompt("p", ({"role": "user", "content": "?"},), "a", {"check": print})
    made, g = scorer(file, "share"), group("ab", "a")
    for r in g.rollouts:
        r.prompt = odd
    made.begin(odd, 0, lambda: "ab")
    made.score([g])
    assert rewards(g) == [0.5, 1.0] and capsys.readouterr().err.count("its time-out is best effort") == 1
    assert not made.files and made.ahead == ["share"]  # from now on it is begun in this process
