"""Plans that learn from comparisons alone: whom each answer is compared with, by whom, and what it earns for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.systems.policy_gradient.nash_md import Mixed
from tests.wiring.formulas import clipped, k3, mean, ratio
from tests.wiring.spies import traced
from tests.wiring.trace import Step, Trace, Update


def size(text: str) -> int:
    return sum(map(ord, text)) % 7


def prefer(prompt: Any, a: str, b: str) -> float:
    """The chance that a is better; 1/2 where the two are as good."""
    return 0.5 + (size(a) > size(b)) * 0.4 - (size(a) < size(b)) * 0.4


def judged(trace: Trace, step: int) -> set[tuple[str, str, str]]:
    """Questions to the judge at a step, either order."""
    return {(c.args[0].last, *sorted(c.args[1:])) for c in trace.calls if c.step == step and c.phase}


def learned(trace: Trace) -> list[tuple[Step, Update]]:
    return list(zip(trace.steps, trace.updates, strict=True))


@pytest.mark.parametrize("name", ["nash-md", "spo-minimaximalist", "writing-zero"])
def test_nobody_who_compares_is_a_sentence_before_a_model_is_looked_for(name: str) -> None:
    with pytest.raises(pt.UserError, match="nobody here compares: give a judge of two answers, --reward"):
        pt.run(method=f"{name}(steps=1)", model="no/such/folder", task="arithmetic")


# ---- Nash-MD


def test_nash_md_is_judged_against_the_mixture_of_itself_and_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, wrong, plain = [], [], Mixed.logits

    def seen(mixed: Mixed, h: torch.Tensor) -> torch.Tensor:
        made, (own, old) = plain(mixed, h), h.split([mixed.one.width, mixed.two.width], -1)
        own, old = mixed.one.logits(own), mixed.two.logits(old)
        apart.append(float((own - old).abs().max()))
        wrong.append(float((made - 0.875 * own - 0.125 * old).abs().max()))
        return made

    monkeypatch.setattr(Mixed, "logits", seen)
    trace = traced("nash-md(steps=2)", None, prefer, steps=None, lr=0.02)
    for at, (step, made) in enumerate(learned(trace)):
        other = [d for d in trace.samples if d.step == at and d.roles == ()]
        assert len(other) == 1 and len(other[0].texts) == len(step.groups), "one answer of the mixture to each prompt"
        asked = {
            (g.prompt.last, *sorted((r.text, rival)))
            for g, rival in zip(step.groups, other[0].texts, strict=True)
            for r in g.rollouts
        }
        assert judged(trace, at) == {x for x in asked if x[1] != x[2]}
        wins = [
            prefer(None, r.text, rival)
            for g, rival in zip(step.groups, other[0].texts, strict=True)
            for r in g.rollouts
        ]
        assert [r.reward for r in step.rollouts] == pytest.approx(wins)
        own, old, ref = made.batch["mask_BT"], made.batch["old_logp_BT"], made.batch["ref_logp_BT"]
        credit = torch.tensor(wins) - 0.5 - 0.008 * ((old - ref) * own).sum(-1)
        (only,) = made.passes
        torch.testing.assert_close(only.pull["logp_BT"], credit[:, None] * own / len(made.rows), rtol=1e-3, atol=1e-6)
    assert max(wrong) < 1e-4 and max(apart) > 1e-2, "seven eighths of the policy's logits, one of the start's"
    mixtures = {d.weights for d in trace.samples if d.step >= 0 and d.roles == ()}
    assert len(mixtures) == 2, "it moves with the policy"
    first, second = trace.updates
    assert second.reference == first.before != second.before and all(
        len(g.rollouts) == 8 for g in trace.steps[0].groups
    )


def test_the_mixture_is_of_logits_at_each_token() -> None:
    """What it says has the log-probability of softmax((1 - beta) l + beta l_start), teacher-forced on both models."""
    from posttrain.core.sampling import Sampling
    from posttrain.core.types import Prompt
    from posttrain.policies.load import load_model
    from posttrain.systems.policy_gradient.nash_md import Opponent
    from tests.models.tiny import randomise
    from tests.wiring.spies import tiny_folder

    one, two = load_model(tiny_folder()), load_model(tiny_folder())
    randomise(two.model, seed=3)
    mixed = Opponent(one, two, Sampling(max_tokens=5), beta=0.25).mixture()
    (said,) = mixed.sample([Prompt.text("p", "1+2=?")], 3, Sampling(max_tokens=5))
    with torch.no_grad():
        logits = (
            0.75 * one.forward(said, ("dist_BTV",))["dist_BTV"] + 0.25 * two.forward(said, ("dist_BTV",))["dist_BTV"]
        )
    for row, dist_TV in zip(said, logits.log_softmax(-1), strict=True):
        want = dist_TV[torch.arange(len(row.actions)), row.actions]
        torch.testing.assert_close(row.logp_T, want, rtol=1e-4, atol=1e-4)
    assert [r.text for r in said] != [
        r.text for r in one.sample([Prompt.text("p", "1+2=?")], 3, Sampling(max_tokens=5))[0]
    ]


# ---- SPO


def test_spo_is_judged_against_its_own_other_answers() -> None:
    trace = traced("spo-minimaximalist(steps=2)", None, prefer, steps=None, lr=0.02, num_generations=4)
    for at, (step, made) in enumerate(learned(trace)):
        assert not [d for d in trace.samples if d.step == at and d.roles == ()], "nobody else answers"
        wins = []
        for g in step.groups:
            for r in g.rollouts:
                rivals = [o.text for o in g.rollouts if o is not r]
                wins.append(sum(prefer(None, r.text, o) for o in rivals) / len(rivals))
        assert [r.reward for r in step.rollouts] == pytest.approx(wins)
        (only,) = made.passes
        earned, group_B = torch.tensor(wins), made.batch["group_B"]
        credit = torch.cat([earned[group_B == g] - earned[group_B == g].mean() for g in group_B.unique()])
        want = clipped(ratio(only), credit[:, None] * made.batch["mask_BT"]) + k3(0.01, only)
        torch.testing.assert_close(only.pull["logp_BT"], want * mean("answers", only), rtol=1e-3, atol=1e-6)
        assert made.reference == trace.updates[0].before


def test_spo_asks_the_judge_in_the_orders_that_were_asked_for() -> None:
    def first(prompt: Any, a: str, b: str) -> float:
        return 1.0  # whoever comes first is better: in both orders nobody is

    for orders, due in (("both", [0.5] * 4), ("as given", [1, 2 / 3, 1 / 3, 0])):
        asked = f"spo-minimaximalist(steps=1, orders={orders!r})"
        trace = traced(asked, None, first, steps=None, num_generations=4, prompts=1, says=["a", "b", "c", "d"])
        assert [r.reward for r in trace.steps[0].rollouts] == pytest.approx(due)


def test_spo_ends_with_the_average_of_its_weights_where_that_is_asked_for() -> None:
    """The steps are the same until the last has been taken."""
    plain, mean = (
        traced(f"spo-minimaximalist(steps=3{more})", None, prefer, steps=None, lr=0.02, num_generations=4).updates
        for more in ("", ", average=0.67")
    )
    assert [u.after for u in plain[:2]] == [u.after for u in mean[:2]]
    assert plain[2].before == mean[2].before and plain[2].after != mean[2].after


def test_the_average_is_of_the_last_weights_and_survives_a_restart() -> None:
    from posttrain.policies.load import load_model
    from posttrain.systems.policy_gradient.spo_minimaximalist import averaged
    from tests.wiring.spies import tiny_folder

    policy, rule = load_model(tiny_folder()), averaged.fn(steps=4, share=0.5)
    rule.start(policy)
    name, p = next(iter(policy.named_parameters()))
    began = p.detach().clone()
    for step, moved in enumerate((1.0, 2.0, 3.0, 5.0)):
        with torch.no_grad():
            p.copy_(began + moved)
        if step == 3:  # as a run that was killed finds it again
            again = averaged.fn(steps=4, share=0.5)
            again.start(policy)
            again.load({k: x.clone() for k, x in rule.tensors().items()})
            rule = again
        rule.after_step(policy, step)
    torch.testing.assert_close(p.detach(), began + 4.0)
    torch.testing.assert_close(dict(rule.policy.named_parameters())[name].detach(), began)


# ---- Writing-Zero


def test_writing_zero_is_judged_against_one_drawn_sibling_who_is_not_trained_on() -> None:
    trace = traced("writing-zero(steps=2, limit=1.0)", None, prefer, steps=None, lr=0.02)
    for at, (step, made) in enumerate(learned(trace)):
        questions = set()
        for g in step.groups:
            (bar,) = [r for r in g.rollouts if r.info["reference"]]
            rest = [r for r in g.rollouts if r is not bar]
            assert len(rest) == 15 and bar.reward == 0.0
            assert [r.reward for r in rest] == [1.0 if size(r.text) > size(bar.text) else -1.0 for r in rest], (
                "a tie is lost"
            )
            questions |= {(g.prompt.last, *sorted((r.text, bar.text))) for r in rest if r.text != bar.text}
        assert judged(trace, at) == questions
        assert len(made.rows) == 15 * len(step.groups)
        own, (only,) = made.batch["mask_BT"], made.passes
        earned = torch.tensor([r.reward for r in step.rollouts if not r.info["reference"]])
        torch.testing.assert_close(
            only.pull["logp_BT"],
            clipped(ratio(only), earned[:, None] * own) * mean("tokens", only),
            rtol=1e-3,
            atol=1e-6,
        )
        assert not made.reference


def test_writing_zero_leaves_out_groups_that_nearly_all_won_or_lost() -> None:
    trace = traced("writing-zero(steps=2)", None, prefer, steps=None, prompts=6)
    for step in trace.steps:
        even = [g for g in step.groups if abs(sum(r.reward for r in g.rollouts)) <= 0.6 * 15]
        assert [g.prompt.id for g in step.kept] == [g.prompt.id for g in even]
    assert sum(len(s.kept) for s in trace.steps) < 12, "some group must be left out for this to show"


def test_writing_zero_trains_its_judge_by_imitation_and_then_for_being_right(tmp_path: Any) -> None:
    pairs = tmp_path / "pairs.jsonl"
    told = [{"prompt": f"{i}+1=?", "chosen": f"good{i}", "rejected": "bad"} for i in range(8)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in told))
    trace = traced(f"writing-zero(steps=1, n=4, limit=1.0, pairs={str(pairs)!r}, passes=0.25)", says=["A", "B", "!"])
    assert trace.parts == ["judge", "judge-rl", "brpo"]
    assert {u.role for u in trace.updates} == {"judge", "policy"}
    taught, paid, learned = ([s for s in trace.steps if s.phase == name] for name in trace.parts)
    for r in (r for s in taught for r in s.rollouts):
        assert r.text == ("A" if r.prompt.last.split("A: ")[1].startswith("good") else "B"), "both orders are taught"
    for r in (r for s in paid for r in s.rollouts):
        first = r.prompt.last.split("A: ")[1].startswith("good")
        assert r.reward == float(r.text == ("A" if first else "B")), "paid for naming the preferred one"
    assert not trace.calls and {r.reward for s in learned for r in s.rollouts} <= {1.0, 0.0, -1.0}
    start, first = (trace.of(phase=p, role=role)[0] for p, role in (("brpo", "policy"), ("judge", "judge")))
    assert start.before == first.before != first.after, "the judge is a copy, the policy begins as it was"


def test_writing_zero_takes_a_file_of_pairs_or_a_judge() -> None:
    with pytest.raises(pt.UserError, match="does not use --reward"):
        traced("writing-zero(steps=1, pairs='pairs.jsonl')", None, prefer)
