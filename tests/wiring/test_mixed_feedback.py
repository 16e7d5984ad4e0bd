"""HuatuoGPT and Okapi: a judge with the doctor's answer; rankings in translation, three parts of the data, PPO in the top blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from posttrain.core.types import Prompt
from posttrain.systems.preference.okapi import part_of, top_layers
from tests.wiring.spies import traced

WORKED = [{"question": f"tell {i}", "answer": f"it is a tale of {i}"} for i in range(24)]


def lengths(prompt: Any, text: str, aspect: str, reference: Any) -> float:
    return float(min(len(text), 10))


def several(prompt: Any, texts: list[str]) -> list[float]:
    return [float(len(t)) for t in texts]


@pytest.fixture
def distilled(tmp_path: Path) -> str:
    file = tmp_path / "distilled.jsonl"
    rows = [{"question": f"ask {i}", "answer": f"gladly, here is all of {i}"} for i in range(6)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(file)


# ---- HuatuoGPT


def test_huatuogpt_imitates_both_sources_and_its_judge_sees_the_doctors_answer(distilled: str) -> None:
    plan = f"huatuogpt(distilled={distilled!r}, warmup=1, prompts=6, epochs=0.1)"
    trace = traced(plan, rows=WORKED, reward={"judge": lengths}, sampling={"max_tokens": 8})
    assert trace.parts == ["sft", "policy->sft", "answers", "judged", "reward-model", "ppo"]
    shown = {r.text[:6] for s in trace.steps if s.phase == "sft" for r in s.rollouts}
    assert shown == {"it is ", "gladly"}
    calls = [c for c in trace.calls if c.phase == "judged"]
    assert len(calls) == 6 * 4 == trace.summary["judge_calls"]
    assert all(c.args[3] == "it is a tale of " + c.args[0].last.split()[1] for c in calls), (
        "the doctor's answer to this question"
    )
    pairs = [g.rollouts for s in trace.steps if s.phase == "reward-model" for g in s.groups]
    assert pairs and all(min(len(a.text), 10) > min(len(b.text), 10) for a, b in pairs)
    ppo = trace.of(phase="ppo")[0]
    assert ppo.reference == trace.of(phase="sft")[-1].after == ppo.before
    assert all("reward_model" in r.rewards for s in trace.steps if s.phase == "ppo" for r in s.rollouts)
    assert trace.phases[-1].method.shaping[0].params["coef"] == 0.02
    known = trace.phases[1].loop.env
    assert (
        len(known.test) == round(0.1 * trace.summary["pairs"]) > 0 and 0 <= trace.summary["reward_model_accuracy"] <= 1
    )
    size, steps = known.size, sum(s.phase == "reward-model" for s in trace.steps)
    assert steps == max(1, round(size / 2)), "one pass over the pairs, two in a step"


def test_huatuogpt_without_the_doctors_answer_and_what_it_asks_for(distilled: str) -> None:
    trace = traced(
        "huatuogpt(warmup=0, prompts=4, epochs=0.1, reference=False)", rows=WORKED, reward={"judge": lengths}
    )
    assert {c.args[3] for c in trace.calls if c.phase == "judged"} == {None}
    with pytest.raises(pt.UserError, match=r"two sources.*--plan\.distilled FILE"):
        traced("huatuogpt", rows=WORKED, reward={"judge": lengths})
    with pytest.raises(pt.UserError, match=r"the doctor's answer, and .* has none"):
        traced("huatuogpt(warmup=0)", rows=[{"question": f"tell {i}"} for i in range(8)], reward={"judge": lengths})
    with pytest.raises(pt.UserError, match="huatuogpt learns from a judge"):
        traced("huatuogpt(warmup=0)", rows=WORKED)


# ---- Okapi


@pytest.fixture
def translate(tmp_path: Path) -> str:
    file = tmp_path / "my_translation.py"
    file.write_text("def translate(text):\n    return text.upper()\n")
    return f"{file}:translate"


def test_okapi_ranks_in_translation_and_learns_in_the_language(translate: str) -> None:
    plan = f"okapi(translate={translate!r}, warmup=1, epochs=0.2, layers=1)"
    trace = traced(plan, rows=WORKED, reward={"judge": several}, sampling={"max_tokens": 8})
    assert [p for p in trace.parts if "layers" not in p] == [
        "sft",
        "policy->sft",
        "answers",
        "ranked",
        "reward-model",
        "ppo",
    ]
    calls = [c for c in trace.calls if c.phase == "ranked"]
    assert len(calls) == trace.summary["judge_calls"] and all(len(c.args[1]) == 4 for c in calls)
    assert all(t == t.upper() for c in calls for t in c.args[1]) and all(
        c.args[0].last.startswith("TELL") for c in calls
    )
    pairs = [g for s in trace.steps if s.phase == "reward-model" for g in s.groups]
    assert all(g.prompt.last.startswith("tell") for g in pairs)
    assert any(r.text != r.text.upper() for g in pairs for r in g.rollouts), "the pairs are in the language itself"
    assert all(len(g.rollouts[0].text) >= len(g.rollouts[1].text) for g in pairs)
    parts = [
        {r.prompt.id.split("|")[0] for s in trace.steps if s.phase == "sft" for r in s.rollouts},
        {c.args[0].id for c in calls},
        {r.prompt.id for s in trace.steps if s.phase == "ppo" for r in s.rollouts},
    ]
    assert all(parts) and not parts[0] & parts[1] and not parts[1] & parts[2] and not parts[0] & parts[2]
    ppo = trace.of(phase="ppo")
    assert ppo[0].optimiser_steps == 4 and ppo[0].reference == trace.of(phase="sft")[-1].after
    assert [len(g.rollouts) for s in trace.steps if s.phase == "ppo" for g in s.groups] == [1] * 2 * len(ppo)


def test_okapi_judges_the_text_itself_without_a_translation() -> None:
    trace = traced("okapi(warmup=0, epochs=0.2)", rows=WORKED, reward={"judge": several})
    assert any(t != t.upper() for c in trace.calls if c.phase == "ranked" for t in c.args[1])
    assert "translations" not in trace.summary and trace.parts[0] == "policy->sft"


def test_okapi_moves_the_top_blocks_alone() -> None:
    from posttrain.policies.load import load_model

    policy = load_model("pocket")
    blocks = list(policy.model.model.layers)
    top_layers(policy, 0)
    assert all(p.requires_grad for p in policy.parameters())
    top_layers(policy, 1)
    assert [any(p.requires_grad for p in b.parameters()) for b in blocks] == [False] * (len(blocks) - 1) + [True]
    assert policy.model.model.embed_tokens.weight.requires_grad
    before = [next(b.parameters()).clone() for b in blocks]
    trace_frozen(policy)
    moved = [not bool((next(b.parameters()) == w).all()) for b, w in zip(blocks, before, strict=True)]
    assert moved == [False] * (len(blocks) - 1) + [True]


def trace_frozen(policy: Any) -> None:
    """An update of SFT with the policy as it is."""
    from posttrain.core.config import Config
    from posttrain.methods.sft import sft
    from posttrain.runs.in_memory import Listed, fit

    told = [Prompt.text(f"p{i}", "Thank Mia.") for i in range(2)]
    rows = [Prompt(p.id, p.content, None, {"demonstration": "Thank you, Mia."}) for p in told]
    fit(policy, sft, Listed(rows), Config(steps=1, prompts=2, lr=1e-3, warmup=0))


def test_parts_are_dealt_by_id_in_their_ratio() -> None:
    dealt = [part_of(Prompt.text(f"row-{i}", "?"), [52, 42, 64]) for i in range(3000)]
    # 52/158 = 0.329, 42/158 = 0.266, 64/158 = 0.405
    assert [dealt.count(k) / 3000 for k in range(3)] == pytest.approx([0.329, 0.266, 0.405], abs=0.03)


def test_okapi_says_what_is_wrong(translate: str) -> None:
    with pytest.raises(pt.UserError, match="three numbers above 0"):
        traced("okapi(shares='1,2')", rows=WORKED, reward={"judge": several})
    with pytest.raises(pt.UserError, match=r"mine\.py:translate, or the address"):
        traced("okapi(translate='english')", rows=WORKED, reward={"judge": several})
    with pytest.raises(pt.UserError, match="none is left for part"):
        traced("okapi(shares='1,1,1000', warmup=0)", rows=WORKED, reward={"judge": several})
    with pytest.raises(pt.UserError, match="no written solution to imitate"):
        traced(
            "okapi", rows=[{"question": f"tell {i}", "answer": str(i)} for i in range(12)], reward={"judge": several}
        )
