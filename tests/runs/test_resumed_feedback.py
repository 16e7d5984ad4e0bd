"""Plans of AI feedback that are interrupted between any two parts end with the same weights, and ask nothing of the judge twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from posttrain.runs import plans
from posttrain.runs.build import load_policy
from posttrain.runs.trained import Trained, load_trained
from tests.wiring.spies import tiny_folder
from tests.wiring.trace import fingerprint

ROWS = [{"question": f"tell {i}", "answer": f"it is a tale of {i}"} for i in range(16)]
PLANS = {
    "cyclealign(rounds=2, prompts=3, n=3)": ("cycle.2", "learn.2"),
    "okapi(warmup=0.5, passes=0.5, epochs=0.3, layers=1)": ("reward-model", "ppo"),
}


HEARD: list[str] = []


class Interrupted(Exception):
    pass


def judge(prompt: Any, texts: list[str], demonstrations: list[Any]) -> list[float]:
    HEARD.append(prompt.id)
    return [float(len(t)) for t in texts]


@pytest.mark.parametrize("plan", PLANS)
def test_an_interrupted_plan_ends_the_same(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HEARD.clear()

    def run(name: str) -> Any:
        return pt.run(
            model=tiny_folder(), method=plan, task=ROWS, reward=judge, runs=tmp_path, name=name, prompts=2, threads=1, eval_problems=0,
            sampling={"max_tokens": 6}, lr=3e-3,
        )  # fmt: skip

    whole = run("whole")
    questions = len(HEARD)
    plain = plans.Walk.do
    for stop in PLANS[plan]:

        def do(self: Any, part: Any, stop: str = stop) -> None:
            if part.name == stop:
                raise Interrupted
            plain(self, part)

        with monkeypatch.context() as m, pytest.raises(Interrupted):
            m.setattr(plans.Walk, "do", do)
            run("broken")
    again = run("broken")
    assert len(HEARD) == 2 * questions and again["judge_calls"] == whole["judge_calls"] == questions
    ends = [fingerprint(load_trained(Trained(tmp_path / name), load_policy, "")[0]) for name in ("whole", "broken")]
    assert ends[0] == ends[1]
