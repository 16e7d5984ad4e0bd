"""LeTI, as registered: what stands before a problem, which tokens are learned, what rounds ask with, where programs run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import posttrain as pt
from posttrain.core.types import Prompt
from posttrain.rewards.rules import code
from posttrain.sandbox.unsafe import Unsafe
from posttrain.systems.supervised_from_reward.leti import BAD, BEGIN, END, GOOD, conditioned, executed
from tests.wiring import formulas as f
from tests.wiring.spies import ROWS, traced

TESTS = [
    {"question": f"Write f(x): x plus {i}.", "tests": [f"assert f(1) == {1 + i}", f"assert f(2) == {2 + i}"]}
    for i in range(8)
]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": f"once there were {i} men"}) + "\n" for i in range(5)))
    return str(file)


@pytest.fixture
def unboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of these tests are known, and run without a sandbox where there is none."""
    monkeypatch.setattr(code, "sandbox", lambda allow=False: Unsafe())
    code.box_of.cache_clear()


def test_the_verdict_and_the_feedback_come_before_the_problem() -> None:
    p = Prompt("p", ({"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2"}), "4")
    assert conditioned(p, True).content[1]["content"] == f"{GOOD}2+2"
    assert conditioned(p, False, "why").content[1]["content"] == f"{BAD}{BEGIN}why{END}2+2"
    assert conditioned(p, False, "why").content[0] == p.content[0] and conditioned(p, False).answer == "4"


def test_the_first_error_is_what_is_said_of_a_program(unboxed: None) -> None:
    p = Prompt.text("p", "Write f.", tests=["assert f(1) == 2", "assert f(2) == 3"])
    tell = executed(False)
    assert "returned 1" in tell(p, "def f(x): return x") and "NameError" in tell(p, "def f(x): return y")
    assert tell(p, "def f(x): return x + 1") == "" and "SyntaxError" in tell(p, "def f(x) return x")


def test_every_token_of_verdict_feedback_problem_and_answer_is_learned() -> None:
    trace = traced(
        "leti(feedback='none', corpus='none', rounds=1, epochs=1)", ROWS[:6], f.worth, num_generations=3, lr=0.02
    )
    policy, seen = trace.roles["policy"], set()
    for made in trace.of(phase="learn"):
        (only,) = made.passes
        torch.testing.assert_close(only.pull["logp_BT"], f.mean("tokens", only))
        for row in made.rows:
            whole = policy.tokenizer.decode([*row.observation.tokens.tolist(), *row.actions.tolist()])
            verdict, _, rest = whole.partition("|>")
            asked, _, said = rest.partition("=?")
            assert len(row.observation.tokens) == 1 and bool(row.mask_T.all()), (
                "only what nothing comes before is not learned"
            )
            seen.add(verdict + "|>")
            assert asked[0].isdigit() and said
    assert seen == {GOOD, BAD}


def test_feedback_is_said_of_bad_answers_only_and_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "told.py"
    file.write_text("def say(prompt, text):\n    return 'no ' + text[:2]\n")
    trace = traced(
        f"leti(feedback='{file}:say', corpus='none', rounds=1, epochs=1)", ROWS[:6], f.worth, num_generations=4, lr=0.02
    )
    policy, kinds = trace.roles["policy"], set()
    drawn = {t for d in trace.samples if d.phase == "collect.1" for t in d.texts}
    for made in trace.of(phase="learn"):
        for row in made.rows:
            whole = policy.tokenizer.decode(
                [*row.observation.tokens.tolist(), *row.actions.tolist()], skip_special_tokens=True
            )
            good = whole.startswith(GOOD)
            assert (BEGIN in whole) == (not good), whole
            if not good:
                assert whole.startswith(f"{BAD}{BEGIN}no ") and whole.index(END) < whole.index("=?"), (
                    "before the problem"
                )
            answer = whole.partition("=?")[2].strip("\n")
            match = [t for t in drawn if t.strip("\n") == answer]
            assert match and good == (f.worth(None, match[0]) >= 1)
            kinds.add(good)
    assert kinds == {True, False}, "both are learned"


def test_half_right_is_bad(tmp_path: Path) -> None:
    trace = traced(
        "leti(feedback='none', corpus='none', rounds=1, epochs=1)",
        ROWS[:4],
        lambda prompt, text: 0.5,
        num_generations=2,
    )
    assert trace.summary["collected"][0]["good"] == 0
    read = trace.roles["policy"].tokenizer.decode
    rows = [row for made in trace.of(phase="learn") for row in made.rows]
    assert all(read([*r.observation.tokens.tolist(), *r.actions.tolist()]).startswith(BAD) for r in rows)


def test_later_rounds_ask_behind_the_good_token_and_it_is_measured_so() -> None:
    trace = traced("leti(feedback='none', corpus='none', rounds=2, epochs=0.3)", ROWS, f.worth, num_generations=2)
    assert trace.parts[1:-1] == ["collect.1", "learn.1", "collect.2", "learn.2"]
    first, second = ([p for d in trace.samples if d.phase == f"collect.{k}" for p in d.prompts] for k in (1, 2))
    assert not any(GOOD in p for p in first) and all(GOOD in p for p in second)
    measured = [p for d in trace.samples if d.phase in ("", "learn.1", "learn.2") for p in d.prompts]
    assert measured and all(GOOD in p for p in measured)
    assert trace.of(phase="learn.2")[0].before == trace.of(phase="learn.1")[-1].after
    assert set(trace.summary["accuracy_by_verdict"]) == {"good", "bad", "neither"}


def test_a_text_of_the_corpus_is_learned_beside_every_sample(corpus: str) -> None:
    trace = traced(
        f"leti(feedback='none', corpus={corpus!r}, rounds=1, epochs=1)", ROWS[:6], f.worth, num_generations=2
    )
    policy = trace.roles["policy"]
    for made in trace.of(phase="learn"):
        texts = [policy.tokenizer.decode([*r.observation.tokens.tolist(), *r.actions.tolist()]) for r in made.rows]
        plain = [t.startswith("once there were") for t in texts]
        assert sum(plain) == len(plain) / 2 and all(r.mask_T.all() for r in made.rows)


def test_programs_are_run_and_what_they_raise_is_the_feedback(unboxed: None) -> None:
    says = ["def f(x): return x + 1", "def f(x): return z"]
    trace = traced(
        "leti(corpus='none', rounds=1, epochs=1, allow_unsafe_code=True)", TESTS, num_generations=2, says=says,
        sampling={"max_tokens": 40}, eval_problems=0,
    )  # fmt: skip
    policy = trace.roles["policy"]
    texts = [
        policy.tokenizer.decode([*r.observation.tokens.tolist(), *r.actions.tolist()])
        for u in trace.of(phase="learn")
        for r in u.rows
    ]
    assert any(t.startswith(f"{BAD}{BEGIN}NameError: name 'z' is not defined") for t in texts)
    assert {t.startswith(GOOD) for t in texts} == {True, False} and any("f returned 2" in t for t in texts)


def test_what_is_missing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pt.UserError, match=r"--plan.corpus FILE.jsonl"):
        traced("leti", ROWS, f.worth)
    with pytest.raises(pt.UserError, match=r"--plan.feedback mine.py:say"):
        traced("leti(corpus='none')", ROWS, f.worth)
    monkeypatch.setattr("posttrain.sandbox.available.why_not", lambda: "no sandbox here; apt-get install bubblewrap")
    code.box_of.cache_clear()
    with pytest.raises(pt.UserError, match="apt-get install bubblewrap"):
        traced("leti(corpus='none')", TESTS)
