"""What sets distillation apart, on the registered methods: whose answers, whose distribution, how it is averaged, who is frozen."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

import posttrain as pt
from posttrain.policies.load import load_model, save_model
from tests.wiring import formulas as f
from tests.wiring.spies import ROWS, tiny_folder, traced
from tests.wiring.trace import Pass, fingerprint


@cache
def tutor(positions: int = 512) -> str:
    """The tiny model with other weights, as a folder."""
    made = load_model(tiny_folder(positions), "cpu")
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    path = Path(tiny_folder(positions)).with_name(f"tutor-{positions}")
    save_model(made, path)
    return str(path)


def named(method: str, **parts: str) -> str:
    """The method with other parts, as it is typed."""
    return f"{method}({', '.join(f'{k}={v!r}' for k, v in parts.items())})"


LONG = [{"question": f"{i}: count to {n}", "answer": "123456789"[:n]} for i, n in enumerate([2, 5, 9, 3, 7, 4] * 4)]


def middle(only: Pass, beta: float) -> torch.Tensor:
    """The divergence at every token, once more, from whole distributions."""
    p, q = f.dist(only, "ref_").exp(), f.dist(only).exp()
    m = beta * p + (1 - beta) * q
    return beta * (p * (p / m).log()).sum(-1) + (1 - beta) * (q * (q / m).log()).sum(-1)


def test_gkd_follows_the_teacher_on_its_own_answers_and_on_written_ones() -> None:
    trace = traced(named("gkd", reference=f"teacher(model='{tutor()}')"), LONG, steps=8, prompts=4, lr=0.01)
    teacher = fingerprint(load_model(tutor(), "cpu"))
    assert {u.reference for u in trace.updates} == {teacher}, "the reference is the teacher, at every step"
    written = [bool(u.batch["written_B"].all()) for u in trace.updates]
    sampled = [not bool(u.batch["written_B"].any()) for u in trace.updates]
    assert all(a != b for a, b in zip(written, sampled, strict=True)), "a step's answers are of one kind"
    assert 1 <= sum(written) <= 7, "and some steps are of each"
    answers = {r["answer"] for r in LONG}
    for u, given in zip(trace.updates, written, strict=True):
        assert u.optimiser_steps == 1 and len(u.rows) == 4
        if given:
            assert {row.text for row in u.rows} <= answers
        (only,), own_BT = u.passes, u.batch["mask_BT"]
        each_B = (middle(only, 0.5) * own_BT).sum(-1) / own_BT.sum(-1)
        assert only.loss == pytest.approx(float(each_B.mean()), rel=1e-4), (
            "the mean over an answer's tokens, then over answers"
        )
    last = trace.updates[-1].passes[0]
    p, q = f.dist(last, "ref_"), f.dist(last)
    inner = (q.exp() * (q - torch.logaddexp(p, q) + torch.log(torch.tensor(2.0)))).sum(-1, keepdim=True)
    slope = 0.5 * q.exp() * (q - torch.logaddexp(p, q) + torch.log(torch.tensor(2.0)) - inner)
    want = -(slope * f.mean("answers", last)[..., None]) @ last.heads["head_VD"]
    torch.testing.assert_close(last.pull["hidden_BTD"], want, atol=1e-6, rtol=1e-3)


def test_gkds_share_and_beta_are_what_they_say() -> None:
    whose = f"teacher(model='{tutor()}')"
    data = traced(
        named("gkd", reference=whose, rollout="student_or_data(share=0.0)", loss="gkd(beta=0.0)"), LONG, steps=3
    )
    assert all(u.batch["written_B"].all() for u in data.updates) and not [d for d in data.samples if d.phase == "train"]
    (only,) = data.updates[0].passes
    p, q = f.dist(only, "ref_"), f.dist(only)
    own_BT = only.batch["mask_BT"]
    each_B = ((p.exp() * (p - q)).sum(-1) * own_BT).sum(-1) / own_BT.sum(-1)
    assert only.loss == pytest.approx(float(each_B.mean()), rel=1e-4)
    prompts = [{"question": r["question"]} for r in ROWS]
    own = named("gkd", reference=whose, rollout="student_or_data(share=1.0)")
    alone = traced(own, prompts, steps=3, eval_problems=0)
    assert not any(u.batch["written_B"].any() for u in alone.updates), "prompts are enough where the student answers"
    with pytest.raises(
        pt.UserError, match="learns from written answers for a share of its steps, and the first prompt"
    ):
        traced(named("gkd", reference=whose), prompts, eval_problems=0)
    with pytest.raises(pt.UserError, match=r"share is 1.2; it is the probability"):
        traced(named("gkd", reference=whose, rollout="student_or_data(share=1.2)"), LONG)


def test_a_teachers_likeliest_tokens_are_enough() -> None:
    whose = f"teacher(model='{tutor()}', k=3)"
    trace = traced(named("gkd", reference=whose, loss="topk-divergence"), LONG, steps=2, lr=0.01)
    teacher = load_model(tutor(), "cpu")
    for u in trace.updates:
        every = teacher.forward(u.rows, ("dist_BTV",))["dist_BTV"]
        (only,), own_BT = u.passes, u.batch["mask_BT"] > 0
        ids = every.topk(3, -1).indices
        assert torch.equal(u.batch["topk_id_BTK"][own_BT], ids[own_BT])
        p, q = (x.exp().gather(-1, ids) for x in (every, f.dist(only)))
        p, q = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (p, q))
        each_BT = torch.where(own_BT, (p * (p / q).log()).sum(-1), 0.0).detach()
        assert only.loss == pytest.approx(float((each_BT.sum(-1) / own_BT.sum(-1)).mean()), rel=1e-3)
        assert "ref_hidden_BTD" not in only.batch


def test_on_policy_distillation_pays_each_token_by_the_teachers_log_probability() -> None:
    prompts = [{"question": r["question"]} for r in ROWS]
    method = named("on-policy-distillation", reference=f"teacher(model='{tutor()}')")
    trace = traced(method, prompts, prompts=3, lr=0.01, eval_problems=0)
    teacher = load_model(tutor(), "cpu")
    for step, u in zip(trace.steps, trace.updates, strict=True):
        assert [len(g.rollouts) for g in step.groups] == [4] * 3 and len(u.rows) == 12, "all answers teach, ungraded"
        assert u.optimiser_steps == 1 and not u.batch["written_B"].any()
        (only,), own_BT = u.passes, u.batch["mask_BT"]
        said_BT = teacher.forward(u.rows, ("logp_BT",))["logp_BT"].detach()
        credit_BT = (said_BT - u.batch["old_logp_BT"]) * own_BT
        torch.testing.assert_close(u.batch["adv_BT"], credit_BT, atol=1e-5, rtol=1e-4)
        longest = int(own_BT.sum(-1).argmax())
        assert len({round(float(x), 3) for x in credit_BT[longest][own_BT[longest] > 0]}) > 1, "each token its own"
        want = f.ratio(only) * credit_BT * f.mean("tokens", only)
        torch.testing.assert_close(only.pull["logp_BT"], want, atol=1e-6, rtol=1e-3)


def test_graded_tasks_show_how_accuracy_goes_along() -> None:
    trace = traced(named("on-policy-distillation", reference=f"teacher(model='{tutor()}')"), ROWS)
    assert "accuracy_after" in trace.summary
    rewards = {r.reward for s in trace.steps for r in s.rollouts}
    assert rewards <= {0.0, 1.0}
    with pytest.raises(pt.UserError, match="a teacher is needed, and none was named"):
        traced("on-policy-distillation", ROWS)


# ---- sequence-level distillation


def test_distil_imitates_what_the_teacher_says_once() -> None:
    trace = traced(f"distil(teacher='{tutor()}', questions=6, epochs=2)", ROWS, lr=0.01)
    assert trace.parts == ["teacher", "distil"]
    teacher = load_model(tutor(), "cpu")
    (drawn,) = [d for d in trace.samples if d.phase == "teacher"]
    assert drawn.weights == fingerprint(teacher) and drawn.how.temperature == 0 and len(drawn.texts) == 6
    rows = [r for s in trace.steps for r in s.rollouts]
    assert len(rows) == 12 and {r.text for r in rows} == set(drawn.texts), "every answer twice, in two passes"
    for u in trace.updates:
        torch.testing.assert_close(u.passes[0].pull["logp_BT"], f.mean("tokens", u.passes[0]))
        assert not u.reference


def test_distil_keeps_the_teachers_likeliest_tokens_in_few_bits() -> None:
    trace = traced(f"distil(teacher='{tutor()}', answers='data', epochs=1, k=4)", LONG, lr=0.01)
    assert trace.summary["answers"] > 16, "more than are labelled at one time"
    assert not [d for d in trace.samples if d.phase == "teacher"], "the answers are the data's"
    teacher = load_model(tutor(), "cpu")
    for u in trace.updates:
        assert {row.text for row in u.rows} <= {r["answer"] for r in LONG} and not u.reference
        kept = [row.streams_T for row in u.rows]
        assert {(s["topk_id"].dtype, s["topk_logp"].dtype) for s in kept} == {(torch.int32, torch.float16)}
        with torch.no_grad():
            every = teacher.forward(u.rows, ("dist_BTV",))["dist_BTV"]
        own_BT, ids = u.batch["mask_BT"] > 0, every.topk(4, -1).indices
        assert torch.equal(u.batch["topk_id_BTK"][own_BT], ids[own_BT])
        told, want = u.batch["topk_logp_BTK"], every.gather(-1, ids)
        torch.testing.assert_close(told[own_BT], want[own_BT], atol=2e-3, rtol=1e-3)
        (only,) = u.passes
        p, q = told.exp(), f.dist(only).exp().gather(-1, ids)
        p, q = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (p, q))
        each_BT = torch.where(own_BT, (p * (p / q).log()).sum(-1), 0.0)
        assert only.loss == pytest.approx(float((each_BT.sum(-1) / own_BT.sum(-1)).mean()), rel=1e-2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "a teacher is needed, and none was named"),
        ("teacher='http://localhost:1'", "is a server, which labels answers here but gives none"),
        ("teacher='pocket', answers='data'", "so say how many tokens: --plan.k 64"),
        ("teacher='pocket', answers='gold'", "no kind of answers named 'gold'"),
        ("teacher='pocket', epochs=0", "epochs is above 0"),
    ],
)
def test_mistakes_of_distil_are_one_sentence(options: str, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        traced(f"distil({options})", ROWS)
    with pytest.raises(pt.UserError, match="at temperature 0 a teacher's answers to a question are all the same"):
        traced(f"distil(teacher='{tutor()}', n=2)", ROWS, sampling={"temperature": 0.0})


# ---- relatives of imitation


def test_dft_imitates_by_how_likely_a_token_is() -> None:
    trace = traced("dft", LONG, prompts=4)
    for u in trace.updates:
        (only,) = u.passes
        assert {row.text for row in u.rows} <= {r["answer"] for r in LONG} and not u.reference
        want = only.batch["logp_BT"].exp() * f.mean("tokens", only)
        torch.testing.assert_close(only.pull["logp_BT"], want)


def test_weighted_sft_counts_rows_by_their_weight() -> None:
    rows = [r | {"weight": [0.0, 0.5, 3.0][i % 3]} for i, r in enumerate(LONG)]
    trace = traced("weighted-sft", rows, prompts=6, steps=3)
    weights = {r["question"]: r["weight"] for r in rows}
    seen = set()
    for step, u in zip(trace.steps, trace.updates, strict=True):
        weight_B = torch.tensor([weights[r.prompt.content[-1]["content"]] for r in step.rollouts])
        seen |= set(weight_B.tolist())
        (only,) = u.passes
        torch.testing.assert_close(only.pull["logp_BT"], weight_B[:, None] * f.mean("tokens", only))
    assert seen == {0.0, 0.5, 3.0}
    plain = traced("weighted-sft", LONG, steps=1)
    torch.testing.assert_close(plain.updates[0].passes[0].pull["logp_BT"], f.mean("tokens", plain.updates[0].passes[0]))
    for bad in (-1.0, "much", True):
        with pytest.raises(pt.UserError, match=r"has the weight .*; it is a number of 0 or more"):
            traced("weighted-sft", [r | {"weight": bad} for r in LONG])


def test_gold_weighs_by_an_old_policy_and_pays_by_the_start() -> None:
    method = named("gold", reference="old_and_start(every=2)")
    trace = traced(method, LONG, prompts=4, steps=5, lr=0.05)
    held = [u.reference for u in trace.updates]
    start = trace.updates[0].before
    assert held[0] == held[1] == start and held[2] == held[3] == trace.updates[1].after != start
    assert held[4] == trace.updates[3].after
    first = load_model(tiny_folder(), "cpu")
    for u in trace.updates:
        (only,), own_BT = u.passes, u.batch["mask_BT"]
        with torch.no_grad():
            begun_BT = first.forward(u.rows, ("logp_BT",))["logp_BT"] * own_BT
        torch.testing.assert_close(u.batch["start_logp_BT"] * own_BT, begun_BT, atol=1e-5, rtol=1e-4)
        far = torch.nn.functional.pad(begun_BT.exp(), (0, 5), value=1.0)
        returns = sum(far[:, k : k + own_BT.shape[1]] for k in range(6))
        weight = (u.batch["ref_logp_BT"] * own_BT).exp().clamp_min(0.1)
        torch.testing.assert_close(
            only.pull["logp_BT"], weight * returns * f.mean("tokens", only), atol=1e-6, rtol=1e-4
        )
    late = trace.updates[4].batch
    assert (late["ref_logp_BT"] - late["start_logp_BT"])[late["mask_BT"] > 0].abs().max() > 1e-3
    plain = traced("gold", LONG, steps=1)
    assert plain.updates[0].reference == plain.updates[0].before
