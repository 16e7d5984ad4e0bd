"""What sets the RLHF workflow apart, on the registered plan."""

from __future__ import annotations

from typing import Any

import pytest

import posttrain as pt
from tests.wiring.spies import ROWS, traced


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def test_rounds_collect_new_prompts_and_dpo_learns_best_against_worst_from_the_rounds_start() -> None:
    trace = traced("rlhf-workflow(rounds=2, prompts=10, epochs=1)", rows=ROWS, reward=length)
    assert trace.parts == ["collect.1", "dpo.1", "collect.2", "dpo.2"]
    one, two = trace.of(phase="dpo.1"), trace.of(phase="dpo.2")
    assert one[0].reference == one[0].before and two[0].reference == two[0].before == one[-1].after != one[0].before
    draws = {k: [d for d in trace.samples if d.phase == f"collect.{k}"] for k in (1, 2)}
    asked = {k: {p for d in some for p in d.prompts} for k, some in draws.items()}
    assert asked[1] and not asked[1] & asked[2], "each round has new prompts"
    assert {d.weights for d in draws[2]} == {one[-1].after}, "the second round's answers are of the policy by then"
    said = {c.args[1] for c in trace.calls if c.phase == "collect.1"}
    for step in (s for s in trace.steps if s.phase == "dpo.1"):
        for g in step.groups:
            chosen, rejected = (r.text for r in g.rollouts)
            assert len(chosen) > len(rejected) and {chosen, rejected} <= said
    assert all(update.optimiser_steps == 1 for update in (*one, *two))


def test_epochs_are_passes_over_a_rounds_pairs() -> None:
    trace = traced("rlhf-workflow(rounds=1, prompts=10, epochs=3, beta=0.2)", rows=ROWS, reward=length, prompts=4)
    assert len(trace.updates) == round(3 * trace.summary["pairs"]["round 1"] / 4)
    assert {p.method.loss.params["beta"] for p in trace.phases} == {0.2}


def test_a_scorer_is_asked_for() -> None:
    with pytest.raises(pt.UserError, match="rlhf-workflow scores answers with a reward model: --reward FOLDER"):
        traced("rlhf-workflow", rows=ROWS)
    with pytest.raises(pt.UserError, match="does not use --task"):
        traced("rlhf-workflow(optimiser='ppo')", rows=ROWS)


def test_a_small_file_is_gone_through_again_with_other_answers() -> None:
    trace = traced("rlhf-workflow(rounds=1, prompts=40, epochs=0.1)", rows=ROWS[:8], reward=length)
    said = [t for d in trace.samples if d.phase == "collect.1" for t in d.texts]
    assert len(said) == 320 and len(set(said)) > 160


def test_the_start_may_stay_the_reference() -> None:
    trace = traced(
        "rlhf-workflow(optimiser=\"dpo(reference='start')\", rounds=2, prompts=10, epochs=1)", rows=ROWS, reward=length
    )
    one, two = trace.of(phase="dpo.1"), trace.of(phase="dpo.2")
    assert {u.reference for u in (*one, *two)} == {one[0].before} and two[0].before == one[-1].after != one[0].before


def test_a_penalty_counts_characters() -> None:
    """Every character earns 1 and costs 2: the shortest is the best."""
    trace = traced(
        "rlhf-workflow(optimiser='dpo(penalty=2.0)', rounds=1, prompts=10, epochs=1)", rows=ROWS, reward=length
    )
    pairs = [[r.text for r in g.rollouts] for s in trace.steps for g in s.groups]
    assert pairs and all(len(chosen) < len(rejected) for chosen, rejected in pairs)


def test_options_of_the_optimiser_are_known() -> None:
    with pytest.raises(pt.UserError, match="reference"):
        traced("rlhf-workflow(optimiser=\"dpo(reference='sft')\")", rows=ROWS, reward=length)
    with pytest.raises(pt.UserError, match="has no option 'penlty' here"):
        traced("rlhf-workflow(optimiser='dpo(penlty=1)')", rows=ROWS, reward=length)
    with pytest.raises(pt.UserError, match="has no option 'penalty' here"):
        traced("rlhf-workflow(optimiser='ppo(penalty=1)')")


def test_every_optimiser_of_the_study_begins_with_sft_and_is_measured_itself() -> None:
    how: dict[str, Any] = {"num_generations": 4, "sampling": {"max_tokens": 6}, "lr": 0.05}
    trace = traced("rlhf-workflow(optimiser='all', rounds=2, prompts=10, steps=1)", rows="", prompts=4, **how)
    measured, sft = trace.summary["measured"], trace.of(phase="sft")[-1].after
    for name in ("online-dpo", "ppo", "grpo", "raft"):
        one, two = (trace.of(name, f"{name}.{i}") for i in (1, 2))
        assert (
            one[0].before == sft and two[0].before == one[-1].after and {u.reference for u in (*one, *two)} <= {sft, ""}
        )
        kl = [abs(measured[f"{name}-measured.{i}"]["kl"]) for i in (1, 2)]
        assert min(kl) > 1e-4 and kl[0] != kl[1]
    assert len({measured[f"{name}-measured.2"]["kl"] for name in ("online-dpo", "ppo", "grpo", "raft")}) == 4
