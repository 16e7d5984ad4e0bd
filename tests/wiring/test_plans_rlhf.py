"""What sets ReFT, SALSA, DR-PO, summarize-hf, Pairwise-RL, RLMT and T1 apart, on the registered plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.critic import SHARED
from tests.wiring.spies import ROWS, traced

SOLVED = [r | {"answer": f"it is so {r['answer']} #### {r['answer']}"} for r in ROWS]
STORIES = [{"prompt": f"tell {i}", "completion": f"a tale of the {i} men"} for i in range(24)]


def length(prompt: Any, text: str) -> float:
    return float(len(text))


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"tell {i}", "chosen": "good", "rejected": "bad"} for i in range(24)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(file)


def demonstrated(trace: Any, phase: str) -> set[str]:
    return {r.text for s in trace.steps if s.phase == phase for r in s.rollouts}


# ---- ReFT


def test_reft_imitates_solutions_then_takes_one_answer_per_question() -> None:
    trace = traced("reft(warmup=0.1, epochs=0.2)", rows=SOLVED)
    assert [(p.name, p.method.name) for p in trace.phases] == [("sft", "sft"), ("ppo", "reft")]
    assert all(text.startswith("it is so") for text in demonstrated(trace, "sft"))
    ppo = [s for s in trace.steps if s.phase == "ppo"]
    assert [len(g.rollouts) for s in ppo for g in s.groups] == [1] * (2 * len(ppo)) and len(ppo) == 2
    assert all(r.reward in (0.0, 0.1, 1.0) for s in ppo for r in s.rollouts)
    made = trace.of(phase="ppo")
    assert [u.optimiser_steps for u in made] == [2, 2] and trace.phases[1].method.critic.start == SHARED
    assert made[0].reference == trace.of(phase="sft")[-1].after, "the KL is to the policy of SFT"
    assert {"coef": 5.0, "per": "answer"}.items() <= trace.phases[1].method.terms[0].defaults().items()
    assert trace.summary["accuracy_before"] is not None and "accuracy_of_sft" in trace.summary


def test_reft_is_paid_by_the_reward_that_is_named() -> None:
    trace = traced("reft(warmup=0, epochs=0.1)", rows=SOLVED, reward=length)
    assert {c.args[1] for c in trace.calls if c.phase == "ppo"} == demonstrated(trace, "ppo")
    assert [p.name for p in trace.phases] == ["ppo"]


def test_reft_pays_a_little_for_a_wrong_answer_of_the_right_kind() -> None:
    trace = traced("reft(warmup=0, epochs=0.5)", rows=SOLVED, says=["99", "no"])
    assert {(r.text, r.reward) for s in trace.steps for r in s.rollouts} == {("99", 0.1), ("no", 0.0)}


def test_a_short_answer_with_a_thought_is_a_written_solution() -> None:
    thought = [{"prompt": r["question"], "completion": f"<think>{r['answer']}</think>{r['answer']}"} for r in ROWS]
    trace = traced("dr-po(warmup=0.1, epochs=0.1)", rows=thought, reward=length)
    assert all("</think>" in text for text in demonstrated(trace, "sft"))


def test_a_bare_answer_is_refused_by_every_warm_start() -> None:
    for name in ("reft", "t1", "rlmt(warmup=1)", "salsa", "dr-po"):
        with pytest.raises(pt.UserError, match="no written solution to imitate"):
            traced(name, reward=length)


# ---- with a reward model


def test_salsa_is_held_to_the_average_of_two_fine_tunings_of_the_same_rows(pairs: str) -> None:
    trace = traced(f"salsa(pairs={pairs!r}, warmup=0.3, epochs=0.1)", rows=STORIES)
    assert trace.parts == ["policy->base", "sft", "sft-other", "reward-model", "ppo"]
    assert trace.of("other")[0].before == trace.of(phase="sft")[0].before, "both begin with the base"
    one, other = trace.of(phase="sft")[-1].after, trace.of("other")[-1].after
    ppo = trace.of(phase="ppo")[0]
    assert len({one, other, ppo.reference}) == 3 and ppo.before == one
    kept = trace.phases[-1].loop.learner.reference.policy.model.state_dict()
    theirs = trace.roles["other"].model.state_dict()
    name = next(iter(theirs))
    # theta_1 = 2 theta_ref - theta_2, which PPO began with
    begun = {k: 2 * kept[k] - theirs[k] for k in theirs}
    assert not torch.equal(begun[name], theirs[name]) and torch.isfinite(begun[name]).all()


def test_two_fine_tunings_of_a_soup_see_the_same_rows(pairs: str) -> None:
    trace = traced(f"salsa(pairs={pairs!r}, epochs=0.1)", rows=STORIES)
    seen = {
        phase: {r.prompt.id for s in trace.steps if s.phase == phase for r in s.rollouts}
        for phase in ("sft", "sft-other")
    }
    assert seen["sft"] == seen["sft-other"] and len(seen["sft"]) >= 20


def test_a_learned_reward_pays_where_pairs_are_given(pairs: str) -> None:
    for name in ("salsa(warmup=0.1", "dr-po(warmup=0.1"):
        trace = traced(f"{name}, pairs={pairs!r}, epochs=0.1)", rows=STORIES)
        ppo = [r for s in trace.steps if s.phase == "ppo" for r in s.rollouts]
        assert all("reward_model" in r.rewards for r in ppo) and "reward_model_accuracy" in trace.summary
        judged = trace.of("reward_model")
        assert judged and all(r.text in ("good", "bad") for r in judged[0].rows)
        seen = [g.prompt.id for s in trace.steps if s.phase == "reward-model" for g in s.groups]
        assert len(seen) == len(set(seen)) >= 20, "one pass over the pairs"


@pytest.mark.parametrize("name", ["salsa", "dr-po"])
def test_who_pays_is_asked_for(name: str, pairs: str) -> None:
    with pytest.raises(pt.UserError, match=rf"{name} is paid by a reward model: .*--plan.pairs.*--reward runs/NAME"):
        traced(name, rows=STORIES)
    with pytest.raises(pt.UserError, match="does not use --reward"):
        traced(f"{name}(pairs={pairs!r})", rows=STORIES, reward=length)


def test_dr_po_begins_inside_demonstrations_and_learns_only_what_it_wrote() -> None:
    trace = traced("dr-po(warmup=0, epochs=0.2)", rows=STORIES, reward=length, num_generations=3)
    groups = [g for s in trace.steps if s.phase == "ppo" for g in s.groups]
    shown = [r for g in groups for r in g.rollouts]
    assert any(r.info["prefix"] > 0 for r in shown) and all(
        len({r.info["prefix"] for r in g.rollouts}) == 1 for g in groups
    )
    assert len({r.info["prefix"] for r in shown}) > 2, "a share of the demonstration that is drawn, not always the same"
    for update, step in zip(trace.of(phase="ppo"), trace.steps, strict=True):
        for r, mask_T in zip(step.rollouts, update.batch["mask_BT"], strict=True):
            assert float(mask_T[: r.info["prefix"]].sum()) == 0 < float(mask_T.sum())
    for g in groups:
        start = g.prompt.answer
        assert all(start.startswith(r.text[: r.info["prefix"]]) for r in g.rollouts)


def test_dr_po_takes_one_answer_four_passes_and_a_critic_that_begins_as_the_reward_model(pairs: str) -> None:
    trace = traced(f"dr-po(pairs={pairs!r}, warmup=0.1, epochs=0.1)", rows=STORIES)
    assert [len(g.rollouts) for s in trace.steps if s.phase == "ppo" for g in s.groups] == [1, 1]
    (ppo,) = trace.of(phase="ppo")
    assert ppo.optimiser_steps == 4 and trace.phases[-1].method.shaping[0].params["coef"] == 0.05
    assert float((ppo.batch["old_value_BT"] * ppo.batch["mask_BT"]).abs().sum()) > 0, (
        "a critic at 0 is not the reward model"
    )


def test_summarize_hf_is_the_three_phases_with_a_critic_from_the_reward_model(pairs: str) -> None:
    trace = traced(f"summarize-hf(pairs={pairs!r}, warmup=0.2, epochs=0.1)", rows=STORIES)
    assert trace.parts == ["sft", "policy->sft", "reward-model", "ppo", "measured"]
    compared = [g.prompt.id for s in trace.steps if s.phase == "reward-model" for g in s.groups]
    assert len(compared) == len(set(compared)) >= 20, "one pass over the comparisons"
    ppo = trace.of(phase="ppo")[0]
    assert ppo.reference == trace.of(phase="sft")[-1].after and ppo.optimiser_steps == 4
    assert [len(g.rollouts) for s in trace.steps if s.phase == "ppo" for g in s.groups] == [1, 1]
    note = trace.summary["reward_model"]
    last = [(row, r) for row, r in zip(ppo.rows, trace.steps[-1].rollouts, strict=True)]
    assert all(r.rewards["reward_model"] == r.reward for _, r in last) and note["std"] > 0
    old_BT = ppo.batch["old_value_BT"] * ppo.batch["mask_BT"]
    assert float(old_BT.abs().sum()) > 0, "a critic that begins at 0 is not the reward model"
    assert {"sft", "ppo"} == set(trace.summary["measured"])


def test_summarize_hf_asks_for_comparisons() -> None:
    with pytest.raises(pt.UserError, match=r"--plan.pairs pairs.jsonl"):
        traced("summarize-hf", rows=STORIES)


def test_pairwise_rl_judges_pairs_in_both_orders_and_chosen_answers_are_anchors(pairs: str) -> None:
    trace = traced(f"pairwise-rl(pairs={pairs!r}, epochs=0.1)", rows="")
    assert trace.parts == ["policy->start", "judge", "ppo"]
    lessons = [r for s in trace.steps if s.phase == "judge" for r in s.rollouts]
    assert {r.text for r in lessons} == {"A", "B"} and all("A: " in r.prompt.last for r in lessons)
    for r in lessons:
        first = r.prompt.last.split("A: ")[1].startswith("good")
        assert r.text == ("A" if first else "B")
    paid = [r for s in trace.steps if s.phase == "ppo" for r in s.rollouts]
    assert all(r.prompt.info["anchor"] == "good" and 0 <= r.reward <= 1 for r in paid)


def test_pairwise_rl_labels_its_own_pairs_only_by_a_reward_that_is_named() -> None:
    with pytest.raises(pt.UserError, match=r"--plan.pairs pairs.jsonl"):
        traced("pairwise-rl")
    trace = traced("pairwise-rl(own=6, epochs=0.1)", reward=length)
    assert trace.parts == ["policy->start", "pairs", "judge", "ppo"]
    assert {c.phase for c in trace.calls if c.phase} == {"pairs"}, "PPO is paid by the judge alone"
    anchors = [d for d in trace.samples if d.phase == "ppo" and "policy" not in d.roles]
    assert {d.roles for d in anchors} == {("start",)}, "anchors are answers of the start, whenever a prompt comes"


# ---- RLMT, T1


def test_rlmt_pays_for_what_follows_the_thought() -> None:
    says = ["<think>a</think>bcd", "<think>abcd"]
    trace = traced("rlmt(steps=1)", reward=length, says=says, num_generations=2)
    assert {c.args[1] for c in trace.calls if c.phase == "rlmt"} == {"bcd", "<think>abcd"}
    (made,) = trace.updates
    assert {(r.text, r.reward) for r in trace.steps[0].rollouts} == {(says[0], 3.0), (says[1], 11.0)}, "as it stands"
    strict = traced("rlmt(steps=1, strict=True)", reward=length, says=says, num_generations=2)
    assert {c.args[1] for c in strict.calls if c.phase == "rlmt"} == {"bcd", "[NULL]"}
    terms = [str(t) for t in trace.phases[0].method.terms]
    assert trace.phases[0].method.aggregate.name == "token-mean" and any("entropy" in t for t in terms)
    assert made.reference == made.before


def test_rlmt_asks_who_pays() -> None:
    with pytest.raises(pt.UserError, match=r"rlmt is paid by a model that reads the answer: --reward FOLDER"):
        traced("rlmt")


def test_t1_punishes_answers_that_do_not_end_and_follows_an_average() -> None:
    trace = traced("t1(steps=3, warmup=0.1, n=4)", rows=SOLVED, says=["1", "12345678"])
    assert [p.name for p in trace.phases] == ["sft", "t1"]
    first = next(s for s in trace.steps if s.phase == "t1")
    assert {r.reward for r in first.rollouts if r.truncated} == {-1.0} and any(r.truncated for r in first.rollouts)
    assert all(r.reward >= 0 for r in first.rollouts if not r.truncated)
    made = trace.of(phase="t1")
    assert len({u.reference for u in made}) == 3 and [u.optimiser_steps for u in made] == [2, 2, 2]
    assert [len(g.rollouts) for g in first.groups] == [4, 4]
    assert {d.how.temperature for d in trace.samples if d.phase == "t1"} == {1.2}


def test_t1_credits_an_answer_above_the_others_and_pays_for_entropy() -> None:
    trace = traced("t1(steps=1, warmup=0)", rows=SOLVED, reward=lambda prompt, text: float(len(text)), prompts=1)
    (made,), (g,) = trace.updates, trace.steps[0].groups
    assert len(g.rollouts) == 64
    R = torch.tensor([r.reward for r in g.rollouts])
    above_B = R - (R.sum() - R) / 63
    own_BT = made.batch["mask_BT"]
    torch.testing.assert_close(made.batch["adv_BT"] * own_BT, above_B[:, None] * own_BT, rtol=1e-4, atol=1e-4)
    first = made.passes[0]  # L = - 0.001 mean of the tokens' entropies: the pull is the same on each
    counted = torch.zeros_like(own_BT)
    counted[first.rows] = own_BT[first.rows]
    torch.testing.assert_close(first.pull["entropy_BT"] * counted, 0.001 * counted / counted.sum())


def test_a_plans_own_settings_give_way_to_what_is_asked_for() -> None:
    cool = traced("t1(steps=1, warmup=0, n=4)", rows=SOLVED, says=["1", "2"], sampling={"temperature": 1.0})
    assert {d.how.temperature for d in cool.samples if d.phase == "t1"} == {1.0}
