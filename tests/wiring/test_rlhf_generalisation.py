"""RLHF generalisation and diversity: four phases, two test sets, frozen layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.systems.study_benchmark_survey.rlhf_generalisation_diversity import freeze
from tests.runs.tiny_run import policy
from tests.wiring.spies import ROWS, traced

PAIRS = [{"prompt": r["question"], "chosen": f"{r['answer']} {r['answer']}", "rejected": "no"} for r in ROWS]


def test_sft_then_a_reward_model_then_ppo_measured_on_both_sets(tmp_path: Path) -> None:
    far = tmp_path / "far.jsonl"
    far.write_text(
        "".join(json.dumps({"prompt": f"far {i}", "chosen": "1", "rejected": "2"}) + "\n" for i in range(20))
    )
    name = f"rlhf-generalisation-diversity(ood='{far}',steps=1,frozen=0.0)"
    trace = traced(name, rows=PAIRS, reward=lambda prompt, text: float(len(text)), num_generations=2, prompts=8)
    assert [(p.name, p.role) for p in trace.phases] == [
        ("sft", "policy"),
        ("reward-model", "reward-model"),
        ("ppo", "policy"),
    ]
    sft, (ppo,) = trace.of("policy", "sft"), trace.of("policy", "ppo")
    assert trace.of("reward-model")[0].before == sft[-1].after == ppo.before == ppo.reference
    assert {r.text for u in sft for r in u.rows} <= {p["chosen"] for p in PAIRS}, "the preferred answers are imitated"
    method = trace.phases[2].method
    assert method.epochs == 4 and method.shaping[0].params == {"coef": 5.0, "kind": "k2"}
    assert ppo.optimiser_steps == 4 * method.minibatches
    measured = trace.summary["measured"]
    assert set(measured) == {"sft-measured", "best-of-16", "ppo-measured"}
    for found in measured.values():
        assert found["gap"]["gold"] == pytest.approx(found["in"]["gold"] - found["out"]["gold"])
    assert measured["best-of-16"]["in"]["proxy"] > measured["sft-measured"]["in"]["proxy"]
    assert any("far" in p for d in trace.samples for p in d.prompts)


def test_the_last_layers_alone_are_left_to_learn() -> None:
    model: Any = policy()  # two layers
    freeze(model, 0.5)
    live = [name for name, p in model.named_parameters() if p.requires_grad]
    assert live and all(".layers.1." in name for name in live)


def test_the_other_set_must_be_named() -> None:
    with pytest.raises(UserError, match=r"--plan\.ood"):
        traced("rlhf-generalisation-diversity", rows=PAIRS)
