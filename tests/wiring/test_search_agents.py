"""What sets the search agents apart, on the registered plans with a real index.

Claims to come, each on the embedded model that can search, against its baseline with the same questions, samples and updates:
ssrl: arms direct GRPO, ssrl, ssrl without the mask; accuracy with its own information and with the real index; ssrl above direct, the real
index adds where facts are missing, masked at least as good as unmasked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from posttrain.core.types import Prompt
from posttrain.systems.agents_multiturn.ssrl import blocks, form, self_search
from tests.wiring.spies import traced

ROWS = [
    {"question": f"who is {n}?", "answer": a, "supporting": [n]}
    for n, a in zip(("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal") * 3, "stuvwxyz" * 3, strict=True)
]
ROWS = [r | {"question": f"{i} {r['question']}"} for i, r in enumerate(ROWS)]
FACTS = [{"title": r["supporting"][0], "text": f"{r['supporting'][0]} is {r['answer']}."} for r in ROWS[:8]]


@pytest.fixture
def documents(tmp_path: Path) -> str:
    file = tmp_path / "facts.jsonl"
    file.write_text("".join(json.dumps(d) + "\n" for d in FACTS))
    return str(file)


def searching(name: str, says: list[str], **settings: Any) -> Any:
    return traced(name, rows=ROWS, says=says, positions=2048, sampling={"max_tokens": 400}, **settings)


# ---- SSRL

SELF = "<think>hm</think><search>ada</search><information>ada is\nq.</information><think>so</think><answer>s</answer>"


@pytest.mark.derived("reward/self-search")
def test_the_reward_of_ssrl() -> None:
    """r = 0.9 EM + 0.1 form, form = min(thinks / 2, 1) min(thinks, searches + 1) / max(thinks, searches + 1). Two thinks and one search:
    1 * 2/2 = 1. One think, no search: 1/2 * 1/1. Three thinks, one search: 1 * 2/3. One think, two searches: 1/2 * 1/3."""
    prompt = Prompt.text("p", "who?", ["The Ada", "Bob"])
    think, search = "<think>a</think>", "<search>q</search><information>i</information>"
    for head, want in (
        (think + search + think, 1.0),
        (think, 0.5),
        (think * 2 + search + think, 2 / 3),
        (think + search * 2, 1 / 6),
    ):
        assert form(f"{head}<answer>x</answer>") == pytest.approx(want)
        assert self_search(prompt, f"{head}<answer>ada.</answer>") == pytest.approx(0.9 + 0.1 * want)
        assert self_search(prompt, f"{head}<answer>Cyd</answer>") == pytest.approx(0.1 * want)
    assert form(think * 8) == pytest.approx(1 / 8) and form(think * 9) == 0.0
    for bad in ("<think>a", "a</think>", "<b>a</b><think>a</think>", "<think><search>q</search></think>"):
        assert blocks(bad) is None and form(bad) == form(bad, graded=False) == 0.0
    # the 1 or 0 of the text: right and well formed 1, right alone 0.9, well formed alone 0.1, else 0
    good, lone = think + search + think, think + "<search>q</search>" + think
    values = [
        self_search(prompt, f"{head}<answer>{a}</answer>", graded=False) for head in (good, lone) for a in ("bob", "x")
    ]
    assert values == pytest.approx([1.0, 0.1, 0.9, 0.0])
    assert form(f"{good}<answer>a</answer>{think}", graded=False) == 0.0, "the answer comes last"


def test_ssrl_does_not_train_on_what_it_wrote_as_information() -> None:
    trace = searching("ssrl(steps=2)", says=[SELF, "no"])
    assert [len(g.rollouts) for s in trace.steps for g in s.groups] == [5] * 4
    made = trace.updates[0]
    policy = trace.phases[0].loop.policy
    for row, mask_T, pull_T in zip(made.rows, made.batch["mask_BT"], made.passes[0].pull["logp_BT"], strict=True):
        own = policy.decode(row.actions[mask_T[: len(row.actions)] > 0])
        assert own == row.text.replace("<information>ada is\nq.</information>", ""), "tags and all, across lines"
        assert bool((pull_T[mask_T == 0] == 0).all()) and bool((pull_T[mask_T > 0] != 0).any())
    worth = {(r.text == SELF, r.prompt.answer == "s"): r.reward for s in trace.steps for r in s.rollouts}
    assert worth[True, False] == pytest.approx(0.1) and worth[False, False] == 0.0
    assert worth.get((True, True), 1.0) == pytest.approx(1.0)
    (term,) = trace.phases[0].method.terms
    assert term.defaults()["coef"] == 0.001 and trace.phases[0].method.aggregate.name == "token-mean"
    assert made.optimiser_steps == 1 and made.reference
    asked = [p for d in trace.samples for p in d.prompts]
    assert asked and all("<information>" in p and "who is" in p for p in asked), "held-out questions too"
    other = searching("ssrl(steps=1, mask=False)", says=[SELF, "no"]).updates[0]
    assert bool((other.batch["mask_BT"].sum(-1) == other.batch["length_B"]).all())


def test_ssrl_swaps_its_information_for_that_of_a_real_index(documents: str) -> None:
    says = [f"<search>{n}</search><information>{n} is q.</information><answer>q</answer>" for n in ("ada", "bob")]
    trace = searching(f"ssrl(steps=1, documents={documents!r})", says=says)
    assert trace.parts == ["grpo", "sim2real"]
    real = [p for d in trace.samples if d.phase == "sim2real" for p in d.prompts]
    stems = [d for d in trace.samples if d.phase == "sim2real"]
    assert {"accuracy_self_search", "accuracy_sim2real", "accuracy_sim2real_if_unsure"} <= set(trace.summary)
    texts = [t for d in stems for t in d.texts]
    swapped = [t for t in texts if "Doc 1 (Title: ada) ada is s." in t]
    assert (
        swapped and all(t.startswith("<search>ada</search>\n<information>Doc 1 (Title: ada)") for t in swapped) and real
    )
    assert not any("</search>\n<information>Doc 1" in t and "ada is q." in t.split("</information>")[0] for t in texts)


def test_ssrl_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(pt.UserError, match="give rows with a question and an answer"):
        traced("ssrl", rows=[{"question": f"q{i}"} for i in range(20)])
    with pytest.raises(pt.UserError, match="no documents"):
        (tmp_path / "none").mkdir()
        searching(f"ssrl(documents={str(tmp_path / 'none')!r})", says=[SELF])
    with pytest.raises(pt.UserError, match="a weight of 0 to 1"):
        traced("ssrl(weight=2)")
