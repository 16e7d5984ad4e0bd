"""Plans in rounds, as registered: whose answers are compared by whom, which pairs come of it, and which reference each round has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.config import Config, from_dict
from posttrain.runs import plans
from posttrain.runs.build import load_policy
from tests.wiring.spies import ROWS, tiny_folder, traced
from tests.wiring.trace import Trace, Update


def longer(prompt: Any, a: str, b: str) -> float:
    """A judge: the longer answer is better."""
    return 0.5 if len(a) == len(b) else float(len(a) > len(b))


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def margin(made: Update, stream: str) -> torch.Tensor:
    (only,) = made.passes
    sums = (only.batch[stream] * only.batch["mask_BT"]).sum(-1)
    return sums[made.batch["chosen_P"]] - sums[made.batch["rejected_P"]]


def reference_logp(trace: Trace, made: Update, weights: dict[str, float]) -> torch.Tensor:
    """log ref of the rows by the roles themselves, as they are at the end (copies do not change)."""
    with torch.no_grad():
        return sum(w * trace.roles[r].forward(made.rows, ["logp_BT"])["logp_BT"] for r, w in weights.items())


def test_inpo_fits_the_knockouts_winner_and_loser_between_the_start_and_the_rounds_start() -> None:
    trace = traced("inpo(rounds=2, prompts=6, n=4, epochs=1)", ROWS, {"prefer": longer}, prompts=6)
    assert [p for p in trace.parts if "->" not in p] == ["collect.1", "inpo.1", "collect.2", "inpo.2"]
    assert trace.parts[0] == "policy->start" and trace.parts.count("policy->previous") == 2
    said = {k: [d for d in trace.samples if d.phase == f"collect.{k}"] for k in (1, 2)}
    assert {d.weights for d in said[2]} == {trace.of(phase="inpo.1")[-1].after}, "answers of the policy by then"
    assert not {p for d in said[1] for p in d.prompts} & {p for d in said[2] for p in d.prompts}
    for made in trace.updates:
        for a, b in zip(made.batch["chosen_P"].tolist(), made.batch["rejected_P"].tolist(), strict=True):
            assert len(made.rows[a].text) > len(made.rows[b].text)
    for k in (1, 2):
        own = {t for d in said[k] for t in d.texts}
        assert {r.text for u in trace.of(phase=f"inpo.{k}") for r in u.rows} <= own, "a round learns from its own pairs"
    first = trace.of(phase="inpo.1")[0]
    start_BT = reference_logp(trace, first, {"start": 1.0}) * first.batch["mask_BT"]
    torch.testing.assert_close(first.batch["ref_logp_BT"], start_BT, rtol=1e-4, atol=1e-4)  # still where the plan began
    last = trace.of(phase="inpo.2")[0]
    want_BT = reference_logp(trace, last, {"start": 1 / 3, "previous": 2 / 3})
    torch.testing.assert_close(last.batch["ref_logp_BT"], want_BT * last.batch["mask_BT"], rtol=1e-4, atol=1e-4)
    # (u - 100)^2, so every pair pulls by 2 (100 - u)
    (only,) = last.passes
    u = margin(last, "logp_BT") - margin(last, "ref_logp_BT")
    pull = only.pull["logp_BT"][last.batch["chosen_P"], 0]
    torch.testing.assert_close(pull, 2 * (100 - u) / len(u), rtol=1e-4, atol=1e-4)
    assert trace.summary["judge_calls"] > 0


def test_inpo_can_take_any_two_and_needs_a_judge() -> None:
    trace = traced("inpo(rounds=1, prompts=6, n=2, epochs=1, pairs='random')", ROWS, {"prefer": longer}, prompts=6)
    first = {t for d in trace.samples if d.phase == "collect.1" for t in d.texts}
    assert {row.text for made in trace.updates for row in made.rows} <= first
    gaps = [
        len(made.rows[a].text) - len(made.rows[b].text)
        for made in trace.updates
        for a, b in zip(made.batch["chosen_P"].tolist(), made.batch["rejected_P"].tolist(), strict=True)
    ]
    assert min(gaps) >= 0 < max(gaps), "who is preferred for certain is chosen"
    with pytest.raises(pt.UserError, match="inpo learns from comparisons"):
        traced("inpo", ROWS)
    with pytest.raises(pt.UserError, match="share between 0 and 1"):
        traced("inpo(share=2)", ROWS, {"prefer": longer})


def test_the_knockout_finds_the_longest_and_the_shortest_of_five() -> None:
    says = ["a", "abcde", "ab", "abcd", "abc"]
    trace = traced("inpo(rounds=1, prompts=2, n=5, epochs=1)", ROWS, {"prefer": longer}, says=says)
    made = trace.updates[0]
    assert {made.rows[i].text for i in made.batch["chosen_P"].tolist()} == {"abcde"}
    assert {made.rows[i].text for i in made.batch["rejected_P"].tolist()} == {"a"}
    # of two as long the first wins: "a" and "cc" go up, "b" and "dd" down, where "b" loses
    tied = {"says": ["a", "b", "cc", "dd"], "eval_problems": 0}
    trace = traced("inpo(rounds=1, prompts=2, n=4, epochs=1)", ROWS, {"prefer": longer}, **tied)
    made = trace.updates[0]
    assert {made.rows[i].text for i in made.batch["chosen_P"].tolist()} == {"cc"}
    assert {made.rows[i].text for i in made.batch["rejected_P"].tolist()} == {"b"}


def test_a_file_that_is_gone_through_again_is_answered_anew() -> None:
    rows = [{"question": "1+1=?", "answer": "2"}, {"question": "2+1=?", "answer": "3"}]
    trace = traced("inpo(rounds=2, prompts=2, n=6, epochs=1)", rows, {"prefer": longer}, lr=1e-12, eval_problems=0)
    one, two = ([t for d in trace.samples if d.phase == f"collect.{i}" for t in d.texts] for i in (1, 2))
    assert len(one) == len(two) == 12 and one != two, "the weights have hardly moved, the draws are others"


def test_apo_extrapolates_from_the_last_two_rounds() -> None:
    trace = traced("apo-accelerated(rounds=2, prompts=6, n=4, alpha=0.5, beta=0.2)", ROWS, length, prompts=6)
    one, two = trace.of(phase="apo.1")[0], trace.of(phase="apo.2")[0]
    (only,) = one.passes
    torch.testing.assert_close(
        one.batch["ref_logp_BT"], only.batch["logp_BT"], rtol=1e-4, atol=1e-4
    )  # both are the start
    assert {p.method.loss.params["beta"] for p in trace.phases} == {0.2}
    want_BT = reference_logp(trace, two, {"last": 1.5, "before": -0.5})
    torch.testing.assert_close(two.batch["ref_logp_BT"], want_BT * two.batch["mask_BT"], rtol=1e-4, atol=1e-4)
    plain_BT = reference_logp(trace, two, {"last": 1.0}) * two.batch["mask_BT"]
    assert float((want_BT * two.batch["mask_BT"] - plain_BT).abs().max()) > 1e-4, "it is not where the last round ended"
    twice = traced("apo-accelerated(rounds=1, prompts=6, n=4, epochs=2)", ROWS, length, prompts=3)
    assert len(twice.updates) == round(2 * twice.summary["pairs"]["round 1"] / 3), "passes over the pairs"
    with pytest.raises(pt.UserError, match="ranks answers by a reward"):
        traced("apo-accelerated", ROWS)


def test_sppo_fits_how_often_an_answer_wins() -> None:
    says = ["a", "abc", "ab", "abcd"]
    trace = traced("sppo(rounds=1, prompts=4, n=4, epochs=1)", ROWS, {"prefer": longer}, says=says, prompts=4)
    (made,) = trace.updates
    (only,) = made.passes
    ranked = made.batch["ranked_LK"]
    assert {(made.rows[a].text, made.rows[b].text) for a, b in ranked.tolist()} == {("abcd", "a")}
    # of 4 answers, itself among them for a half, the longest beats (3 + 1/2) / 4 and the shortest (0 + 1/2) / 4: targets (7/8 - 1/2) / 0.001
    # = 375 and -375; at the reference l = 0: pull 2 * 375, for a mean over 4 lists
    for at, target in ((0, 375.0), (1, -375.0)):
        torch.testing.assert_close(
            only.pull["logp_BT"][ranked[:, at], 0],
            torch.full((len(ranked),), 2 * target / len(ranked)),
            rtol=1e-4,
            atol=0.1,
        )
    assert made.reference == made.before


def test_sppo_may_take_the_winner_for_sure() -> None:
    how: dict[str, Any] = {"says": ["a", "abc", "ab", "abcd"], "prompts": 4}
    (made,) = traced("sppo(rounds=1, prompts=4, n=4, epochs=1, hard=True)", ROWS, {"prefer": longer}, **how).updates
    for at, target in ((0, 500.0), (1, -500.0)):  # (1 - 1/2) / 0.001, and (0 - 1/2) / 0.001
        pull = made.passes[0].pull["logp_BT"][made.batch["ranked_LK"][:, at], 0]
        torch.testing.assert_close(pull, torch.full((len(pull),), 2 * target / len(pull)), rtol=1e-4, atol=0.1)


def test_sppo_says_that_its_judge_says_nothing() -> None:
    mute = {"prefer": lambda prompt, a, b: float("nan")}
    with pytest.raises(
        pt.UserError, match="not one of 16 answers could be scored"
    ):  # equal ones beside them are no verdict either
        traced("sppo(rounds=1, prompts=4, n=4)", ROWS, mute, says=["a", "abc", "a", "abcd"], prompts=4)


MISTAKES = """
def alone(prompt, text): return 1.0
def pairs(prompt, a, b): return 1.0
"""


@pytest.mark.parametrize(
    "name, reward, told",
    [
        *((name, "pairs", "cannot be called with a prompt and a text") for name in ("apo-accelerated", "rso", "rlhf-workflow", "irpo")),
        *((name, "missing", "no function in .* named 'missing'") for name in ("apo-accelerated", "rso", "rlhf-workflow", "irpo")),
        *((name, "task", "no gold answers") for name in ("apo-accelerated", "rso", "rlhf-workflow", "irpo")),
        *((name, "missing", "no function in .* named 'missing'") for name in ("inpo", "sppo", "xpo", "osp", "nash-mp", "nash-prox", "nash-md")),
        *((name, "missing", "no function in .* named 'missing'") for name in ("codeultrafeedback", "okapi(warmup=0)", "cyclealign")),
        *((name, "pairs", "gives no points to one") for name in ("self-rewarding", "ultrafeedback", "huatuogpt(warmup=0, reference=False)")),
        ("codeultrafeedback(models='self,nosuch')", "alone", "no model named 'nosuch'"),
        ("ultrafeedback(models='nosuch')", "alone", "no model named 'nosuch'"),
        ("codeultrafeedback(sft='{rows}')", "alone", "has no answer to imitate"),
    ],
)  # fmt: skip
def test_a_mistake_in_what_judges_is_told_before_anything_is_loaded(
    name: str, reward: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*args: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(plans, "load_policy", loaded)
    rows, file = tmp_path / "rows.jsonl", tmp_path / "mistakes.py"
    rows.write_text("".join(f'{{"question": "how many are {i}?"}}\n' for i in range(40)))
    file.write_text(MISTAKES)
    monkeypatch.setitem(sys.modules, "mistakes", None)
    monkeypatch.delitem(sys.modules, "mistakes")
    with pytest.raises(pt.UserError, match=told):
        pt.run(
            model="pocket", task=str(rows), method=name.replace("{rows}", str(rows)), runs=tmp_path / "runs",
            reward=reward if reward == "task" else f"{file}:{reward}",
        )  # fmt: skip


WORKED = [{"question": r["question"], "answer": f"the sum of {r['question']} is {r['answer']}"} for r in ROWS]


def test_spin_prefers_demonstrations_to_the_rounds_own_answers() -> None:
    trace = traced("spin(rounds=2, prompts=5, epochs=1)", WORKED, prompts=5)
    one, two = trace.of(phase="spin.1"), trace.of(phase="spin.2")
    shown = {r["answer"] for r in WORKED}
    own = {k: {t for d in trace.samples if d.phase == f"answer.{k}" for t in d.texts} for k in (1, 2)}
    for made, mine in ((one[0], own[1]), (two[0], own[1] | own[2])):
        assert {made.rows[i].text for i in made.batch["chosen_P"].tolist()} <= shown
        assert {made.rows[i].text for i in made.batch["rejected_P"].tolist()} <= mine
    learned = {made.rows[i].text for made in two for i in made.batch["rejected_P"].tolist()}
    assert len(two) == 2 and learned & own[1] and learned & own[2], "the second round has both rounds' pairs"
    assert two[0].reference == two[0].before == one[-1].after
    (only,) = two[0].passes  # at the reference every pair pulls by beta / 2: 5 / 2 in the last round
    torch.testing.assert_close(
        only.pull["logp_BT"][two[0].batch["chosen_P"], 0], torch.full((5,), 2.5 / 5), rtol=1e-3, atol=1e-4
    )
    with pytest.raises(pt.UserError, match="no written solution"):
        traced("spin", ROWS)


def test_spin_forgets_what_is_older_than_the_round_before() -> None:
    trace = traced("spin(rounds=3, prompts=5, epochs=1)", WORKED, prompts=5, eval_problems=0)
    own = {k: {t for d in trace.samples if d.phase == f"answer.{k}" for t in d.texts} for k in (1, 2, 3)}
    made = trace.of(phase="spin.3")
    learned = {u.rows[i].text for u in made for i in u.batch["rejected_P"].tolist()}
    assert len(made) == 2 and learned <= own[2] | own[3] and learned & own[2] and learned & own[3]
    assert [p.method.loss.params["beta"] for p in trace.phases] == [0.1, 0.1, 5.0]


def by_start(start: Any, made: Update) -> torch.Tensor:
    """log pi(chosen) - log pi(rejected) of the model that the plan began with."""
    with torch.no_grad():
        sums = start.forward(made.rows, ["logp_BT"])["logp_BT"].sum(-1)
    return sums[made.batch["chosen_P"]] - sums[made.batch["rejected_P"]]


PAIRED = [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no" * (1 + i % 3)} for i, r in enumerate(ROWS)]


@pytest.mark.parametrize("order", ["given", "easy"])
def test_sdpo_goes_through_the_pairs_part_by_part_with_the_last_parts_policy_as_reference(order: str) -> None:
    trace = traced(f"sdpo(parts=2, order={order!r})", PAIRED, prompts=3, eval_problems=0)
    one, two = trace.of(phase="sdpo.1"), trace.of(phase="sdpo.2")
    assert one[0].reference == one[0].before and two[0].reference == two[0].before == one[-1].after
    seen = [{row.observation.key for made in some for row in made.rows} for some in (one, two)]
    assert seen[0] and seen[1] and not seen[0] & seen[1]
    start = load_policy(from_dict(Config, {"model": tiny_folder(), "threads": 1}))
    ahead = [[float(x) for made in some for x in by_start(start, made)] for some in (one, two)]
    assert (min(ahead[0]) >= max(ahead[1]) - 1e-3) == (order == "easy"), "those first that the start prefers by most"
    twice = traced(f"sdpo(parts=2, epochs=2, order={order!r})", PAIRED, prompts=3, eval_problems=0)
    assert [len(twice.of(phase=p.name)) for p in twice.phases] == [round(2 * p.loop.env.size / 3) for p in twice.phases]
    with pytest.raises(pt.UserError, match="cannot be divided"):
        traced("sdpo(parts=500)", PAIRED)


def test_irpo_pairs_right_with_wrong_and_imitates_the_right() -> None:
    says = ["3", "no", "3", "nono"]
    rows = [{"question": f"{i}: what is 1+2?", "answer": "3"} for i in range(12)]
    trace = traced("irpo(rounds=1, prompts=3, n=4, pairs=2)", rows, says=says, prompts=6, sampling={"max_tokens": 8})
    (made,) = trace.updates
    texts = [made.rows[i].text for i in made.batch["chosen_P"].tolist()]
    assert texts == ["3"] * 6 and {made.rows[i].text for i in made.batch["rejected_P"].tolist()} == {"no", "nono"}
    (only,) = made.passes  # at the reference: .1 / 2 of the pair and 1 / 2 of the mean over "3" and its end
    torch.testing.assert_close(
        only.pull["logp_BT"][made.batch["chosen_P"], 0], torch.full((6,), (0.05 + 0.5) / 6), rtol=1e-3, atol=1e-5
    )


def test_irpo_makes_so_many_pairs_at_most_and_is_held_to_the_rounds_start() -> None:
    rows = [{"question": f"{i}: what is 1+2?", "answer": "3"} for i in range(12)]
    how: dict[str, Any] = {"says": ["3", "no", "3", "nono"], "prompts": 3, "sampling": {"max_tokens": 8}}
    trace = traced("irpo(rounds=2, prompts=3, n=4, pairs=1, epochs=2)", rows, **how)
    assert [len(u.batch["chosen_P"]) for u in trace.updates] == [3] * 4, "one for each prompt, in two passes"
    (one, other), (two, _) = (trace.of(phase=f"irpo.{i}") for i in (1, 2))
    assert one.reference == one.before and two.reference == two.before == other.after != one.before


def test_irpo_takes_the_best_for_right_where_a_reward_is_not_0_or_1() -> None:
    says = ["a", "ab", "abc", "abcd"]
    trace = traced("irpo(rounds=1, prompts=3, n=4, pairs=3)", ROWS, length, says=says, prompts=9)
    (made,) = trace.updates
    assert {made.rows[i].text for i in made.batch["chosen_P"].tolist()} == {"abcd"}
    assert {made.rows[i].text for i in made.batch["rejected_P"].tolist()} == {"a", "ab", "abc"}


def test_rso_lets_every_accepted_answer_meet_one_other() -> None:
    says = ["a", "ab", "abc", "abcd"]
    trace = traced("rso(prompts=3, n=4, keep=4)", ROWS, length, says=says, prompts=6)
    (made,) = trace.updates
    both = [made.rows[i].text for name in ("chosen_P", "rejected_P") for i in made.batch[name].tolist()]
    assert sorted(both) == sorted(says * 3), "4 accepted ones are two pairs"


def test_rso_accepts_the_best_or_anybody_by_its_beta() -> None:
    how: dict[str, Any] = {"says": ["a", "ab", "abc", "abcd"], "prompts": 8}
    found = {}
    for beta in (1e-3, 1e6):
        (made,) = traced(f"rso(prompts=8, n=4, keep=2, beta={beta}, gamma=0.3)", ROWS, length, **how).updates
        both = zip(made.batch["chosen_P"].tolist(), made.batch["rejected_P"].tolist(), strict=True)
        found[beta] = {(made.rows[a].text, made.rows[b].text) for a, b in both}
        pull = made.passes[0].pull["logp_BT"][made.batch["chosen_P"], 0]
        torch.testing.assert_close(pull, torch.full((8,), 0.3 / 8), rtol=1e-3, atol=1e-6)
    assert found[1e-3] == {("abcd", "abc")} and len(found[1e6]) > 2


def test_rso_accepts_by_reward_and_pairs_two_by_two() -> None:
    trace = traced("rso(prompts=6, n=6, keep=4)", ROWS, length, prompts=6)
    said = {t for d in trace.samples if d.phase == "collect.1" for t in d.texts}
    for made in trace.updates:
        for a, b in zip(made.batch["chosen_P"].tolist(), made.batch["rejected_P"].tolist(), strict=True):
            assert len(made.rows[a].text) > len(made.rows[b].text) and {made.rows[a].text, made.rows[b].text} <= said
        (only,) = made.passes  # the hinge: gamma for every pair
        pairs = len(made.batch["chosen_P"])
        pulled = only.pull["logp_BT"].sum(-1) / only.batch["mask_BT"].sum(-1)
        torch.testing.assert_close(
            pulled[made.batch["chosen_P"]], torch.full((pairs,), 0.05 / pairs), rtol=1e-3, atol=1e-6
        )
    assert trace.updates[0].reference == trace.updates[0].before
    with pytest.raises(pt.UserError, match="weighs answers by a reward"):
        traced("rso", ROWS)


def test_rejection_sampling_is_the_tilted_distribution() -> None:
    """Two candidates, rewards 0 and log 4 (beta 1), one kept: the better one is accepted for sure, the worse one first with chance 1/4.
    In the order of the list the first accepted one is kept: worse with chance 1/4, better with 3/4."""
    import math
    import random

    from posttrain.systems.preference.rso import accepted

    draw = random.Random(0)
    kept = [accepted([0.0, math.log(4)], 1, 1.0, draw)[0] for _ in range(4000)]
    assert sum(kept) / 4000 == pytest.approx(0.75, abs=0.03)
    assert sorted(accepted([0.0, 5.0, 5.0], 3, 0.01, draw)) == [0, 1, 2], "rmax is taken anew once the best are gone"
    assert set(accepted([0.0, 5.0, 5.0], 2, 0.01, draw)) == {1, 2}


NAN = float("nan")


def fails(prompt: str, text: str) -> float:
    raise ValueError("no word from the service")


@pytest.mark.parametrize("plan", ["irpo(rounds=1, prompts=4, n=4)", "rso(prompts=4, n=4, keep=2)", "rest-em(rounds=1, n=2)"])  # fmt: skip
def test_a_reward_that_always_fails_is_told_and_not_taken_for_equal_answers(plan: str) -> None:
    with pytest.raises(pt.UserError, match=r"not one of .* answers could be scored.*no word from the service"):
        traced(plan, ROWS, fails)


@pytest.mark.parametrize("pairs", ["knockout", "random"])
def test_a_judge_that_never_says_is_told(pairs: str) -> None:
    says = ["a", "abcde", "ab", "abcd"]
    with pytest.raises(pt.UserError, match="the judge gave no number for any of"):
        traced(f"inpo(rounds=1, prompts=2, n=4, epochs=1, pairs={pairs!r})", ROWS, {"prefer": lambda p, a, b: NAN}, says=says)  # fmt: skip


def test_a_reward_that_stands_for_a_judge_says_why_it_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(pt.UserError, match="the judge gave no number"):
        traced("inpo(rounds=1, prompts=2, n=2, epochs=1)", ROWS, fails, says=["a", "bb"])
    assert "no word from the service" in capsys.readouterr().err


def test_sdpo_says_how_many_parts_there_can_be() -> None:
    rows = [{"prompt": "1?", "chosen": "a", "rejected": "b"}]
    with pytest.raises(pt.UserError, match=r"use --plan\.parts 1"):
        traced("sdpo(parts=3)", rows)
