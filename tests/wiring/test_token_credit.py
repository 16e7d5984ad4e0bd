"""Critics and token-level credit as registered: who learns from whose answers, at which rate, which tokens carry credit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.config import Config
from posttrain.core.metrics import describe
from posttrain.core.plan import Context
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.task import of_rows
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.systems.policy_gradient.pure import Checked
from posttrain.systems.policy_gradient.text2grad import written_by
from tests.models import tiny
from tests.wiring.spies import ROWS, tiny_folder, traced
from tests.wiring.trace import Trace


def even(prompt: Any, text: str) -> float:
    """Right or wrong by the length: about half of the answers each."""
    return float(len(text) % 2)


def begins(prompt: Any, text: str) -> float:
    """Right or wrong by the first letter."""
    return float(ord(text[:1] or " ") % 2)


def weights(trace: Trace, role: str) -> list[str]:
    """Fingerprints of a role's weights over its updates, the first before any."""
    mine = trace.of(role)
    return [mine[0].before, *(u.after for u in mine)]


def test_prime_teaches_its_reward_model_from_the_policys_fresh_answers() -> None:
    trace = traced("prime(steps=2)", reward=even, prompts=12, lr=1e-3)
    judge, policy = trace.of("prm"), trace.of("policy")
    assert len(judge) == len(policy) == 2 and {d.roles for d in trace.samples if d.phase} == {("policy",)}
    for mine, other, step in zip(judge, policy, (0, 1), strict=True):
        rounds = [s for s in trace.steps if s.step == step]
        kept = [g for s in rounds for g in s.kept][:12]
        assert len(rounds) > 1 and len(kept) == 12  # others are asked in the place of those left out
        assert [r.text for r in mine.rows] == [r.text for r in other.rows]  # the same answers, and those that were kept
        assert [r.text for r in mine.rows] == [r.text for g in kept for r in g.rollouts]
        assert all(0.2 <= sum(r.reward for r in g.rollouts) / 4 <= 0.8 for g in kept)
        assert torch.equal(mine.batch["reward:outcome_B"], torch.tensor([float(len(r.text) % 2) for r in mine.rows]))
    assert len(set(weights(trace, "prm"))) == len(set(weights(trace, "policy"))) == 3
    assert judge[0].reference == judge[1].reference == judge[0].before == policy[0].before  # the start
    first, second = trace.steps[0], trace.steps[-1]
    assert all(not r.stream("reward").any() for r in first.rollouts)  # a model that is its own reference pays nothing
    assert any(r.stream("reward").abs().sum() > 0 for r in second.rollouts)
    learners = trace.phases[-1].loop.learners
    assert [learners[k]._base_lr[0] for k in ("policy", "prm")] == pytest.approx([1e-3, 2e-3])


def test_oreal_teaches_its_token_model_alone_first_and_then_weighs_every_token() -> None:
    trace = traced("oreal", reward=begins, steps=8, prompts=6, lr=1e-3)
    policy = trace.of("policy")
    assert [u.before == u.after for u in policy] == [True, True] + [False] * 6  # a quarter of 8 steps alone
    assert {u.reference for u in policy} == {policy[0].before}  # a light KL holds it to the start
    assert [t.defaults()["coef"] for t in trace.phases[0].method.terms] == [1.0, 0.01]
    learner = trace.phases[0].loop.learner
    assert learner._base_lr[0] == pytest.approx(1e-3) and learner._base_lr[-1] == pytest.approx(4e-3)
    assert [len(s.rollouts) for s in trace.steps] == [96] * 8 and all(len(g.rollouts) == 2 for g in trace.steps[2].kept)
    assert not policy[0].batch["adv_BT"].any()  # a head of 0 knows no token, the last one neither
    later = policy[-1].batch
    last_BT = later["mask_BT"].cumsum(-1) == later["mask_BT"].sum(-1, keepdim=True)
    share = float((later["adv_BT"].abs() * last_BT * later["mask_BT"]).sum() / later["adv_BT"].abs().sum())
    assert 0 < share < 0.5, share  # answers of 1 to 6 letters of which the first decides
    assert not any(k.endswith("old_value_BT") for k in later)  # the state behind a token is read, not the one before it


LINES = ["a\nb", "a\nb\nc", "b", "c\nb"]


def test_vineppo_values_every_line_by_nine_answers() -> None:
    says = ["a. b\nc", *LINES[:1], *LINES[2:]]  # a sentence is no line
    trace = traced("vineppo", reward=even, says=says, num_generations=2, steps=1, prompts=2)
    (step,), (made,) = trace.steps, trace.updates
    for g in step.groups:
        own, vines = [r for r in g.rollouts if not r.info.get("vine")], [r for r in g.rollouts if r.info.get("vine")]
        lines = [len([x for x in r.text.split("\n") if x]) for r in own]
        assert len(own) == 2 and len(vines) == 9 * sum(lines)
    assert len(made.rows) == 4 and not any(r.text == "" for r in made.rows) and made.optimiser_steps == 2 * 2
    method = trace.phases[0].method
    assert [t.params for t in method.terms] == [{"coef": 1e-4}] and (method.epochs, method.minibatches) == (2, 8)
    own_N = made.batch["adv_BT"][made.batch["mask_BT"] > 0]
    assert float(own_N.mean()) == pytest.approx(0.0, abs=1e-5)  # whitened over the batch
    assert float(own_N.std(unbiased=False)) == pytest.approx(1.0, abs=1e-2)


SEEN: list[tuple[str, list[str]]] = []
JUDGE = """from tests.wiring import test_token_credit
def judge(prompt, steps):
    test_token_credit.SEEN.append((prompt.last, list(steps)))
    return 0.5 if steps[-1].startswith("b") else -0.5
"""


def test_pure_pays_steps_by_a_function_that_sees_the_question_and_the_steps_before(tmp_path: Any) -> None:
    file = tmp_path / "judging_steps.py"
    file.write_text(JUDGE)
    SEEN.clear()
    trace = traced(
        f"pure(steps=1, checked=1, prm='{file}:judge')", reward=even, says=LINES, num_generations=4, prompts=1
    )
    assert (
        SEEN and all(asked.endswith("=?") for asked, _ in SEEN) and ["a\n", "b\n", "c"] in [steps for _, steps in SEEN]
    )
    (made,) = trace.of("policy")
    row = next(i for i, r in enumerate(made.rows) if r.text == "a\nb")
    assert made.batch["reward:outcome_B"][row] == even(None, "a\nb")
    # steps -.5 and .5: in min form -.5 softmin, nearly all of it on the worst step; the outcome stays on the last letter
    earned = made.batch["reward_BT"][row]
    assert float(earned[1]) == pytest.approx(-0.5, abs=1e-3) and float(
        earned[: len(made.rows[row])].sum()
    ) == pytest.approx(0.5, abs=1e-3)
    with pytest.raises(pt.UserError, match="none is named"):
        traced("pure", reward=even)


def test_pure_pays_steps_where_they_end_behind_a_prefill_too(tmp_path: Any) -> None:
    """The prefill is part of the text and no action: steps `so a`, `b` end at the second and the third of four tokens."""
    file = tmp_path / "judging_behind_a_prefill.py"
    file.write_text(JUDGE)
    how: dict[str, Any] = {"num_generations": 2, "prompts": 1, "prefill": "so "}
    trace = traced(f"pure(steps=1, prm='{file}:judge')", reward=even, says=["a\nb"], **how)
    (made,) = trace.of("policy")
    assert made.rows[0].text == "so a\nb" and ["so a\n", "b"] in [steps for _, steps in SEEN]
    assert trace.steps[0].rollouts[0].stream("reward").tolist() == [0.0, -0.5, 0.5, 0.0]


def test_pure_says_that_its_judge_fails(tmp_path: Any) -> None:
    file = tmp_path / "judging_in_lists.py"
    file.write_text("def judge(prompt, steps):\n    return [0.5 for _ in steps]\n")
    with pytest.raises(pt.UserError, match=r"failed on every answer of the first step.*float"):
        traced(f"pure(steps=1, prm='{file}:judge')", reward=even, prompts=1, num_generations=2)


def test_critiques_are_of_different_answers_where_the_set_comes_round(tmp_path: Any) -> None:
    """32 answers to 12 rows: none is criticised twice because its question came again."""
    file = tmp_path / "writes_critiques.py"
    file.write_text('def critic(prompt, text):\n    return \'{"good": ["a"]}\'\n')
    env = of_rows([{"question": f"{a}+1=?", "answer": str(a + 1)} for a in range(13)])
    made = Context(None, Config(sampling=Sampling(max_tokens=6)), {"policy": tiny.policy()}, given={"env": env})
    rows = written_by(f"{file}:critic", made, 32)
    assert len(rows) == 32 and len({row["answer"] for row in rows}) > 24


def test_pure_checks_a_tenth_of_the_prompts_and_sums_where_that_is_asked(tmp_path: Any) -> None:
    file = tmp_path / "judging_steps_too.py"
    file.write_text(JUDGE)
    asked: dict[str, Any] = {"reward": even, "says": LINES, "num_generations": 4, "prompts": 4}
    (made,) = traced(f"pure(steps=1, checked=0, form='sum', prm='{file}:judge')", **asked).of("policy")
    assert float(made.batch["reward:outcome_B"].abs().sum()) == 0.0  # nobody's answer is checked
    row = next(i for i, r in enumerate(made.rows) if r.text == "a\nb")
    earned = made.batch["reward_BT"][row]
    assert [float(earned[1]), float(earned[2])] == [-0.5, 0.5]  # the steps as they were judged, not their minimum
    known = [Checked(Prescored(), 0.1).known(Prompt.text(f"row-{i}", "1+1=?", "2")) for i in range(1000)]
    assert 70 < sum(known) < 130
    for wrong, said in ((dict(checked=2), "share of prompts"), (dict(form="max"), "form of credit")):
        told = ", ".join(f"{k}={v!r}" for k, v in wrong.items())
        with pytest.raises(pt.UserError, match=said):
            traced(f"pure(steps=1, {told}, prm='{file}:judge')", **asked)


def test_pure_trains_its_step_model_from_finished_steps_and_checks_as_few_answers() -> None:
    asked: dict[str, Any] = {"reward": even, "says": LINES, "num_generations": 4, "prompts": 4}
    trace = traced("pure(steps=1, checked=0, prm='train', prm_steps=1)", **asked)
    assert trace.parts == ["label-steps", "step-model", "pure"] and trace.of("step_model")
    (made,) = trace.of("policy")
    assert float(made.batch["reward:outcome_B"].abs().sum()) == 0.0 and float(made.batch["reward_BT"].abs().sum()) > 0


def test_text2grad_trains_a_critic_on_critiques_and_pays_what_it_quotes(tmp_path: Any) -> None:
    file = tmp_path / "critiques.jsonl"
    file.write_text('{"question": "1+1=?", "answer": "22", "critique": "{\\"good\\": [\\"2\\"]}"}\n' * 4)
    trace = traced(
        f"text2grad(steps=1, critic_steps=2, longest=35, critiques='{file}')", says=['{"good": ["a"], "poor": ["b"]}'], prompts=2,
        num_generations=2, sampling={"max_tokens": 40},
    )  # fmt: skip
    assert trace.parts == ["critiques", "critic", "ppo"] and [p.role for p in trace.phases] == ["critic", "policy"]
    taught = trace.of("critic")
    assert len(taught) == 2 and taught[0].rows[0].text == '{"good": ["2"]}' and taught[1].before == taught[0].after
    (learned,) = trace.of("policy")
    assert learned.before == taught[0].before, "the critic is a copy: the policy has not moved"
    asked = [d for d in trace.samples if d.phase == "ppo" and d.weights == taught[-1].after]
    assert asked and all("quote it, word" in p for d in asked for p in d.prompts)
    assert {d.how.max_tokens for d in asked} == {35}, "critiques have a length of their own"
    row = learned.rows[0].text  # every sampler says the critique: its letters "a" are good, its letters "b" poor
    paid = trace.steps[-1].rollouts[0].stream("reward")
    assert float(paid[row.index("a")]) == 1.0 and float(paid[row.index("b")]) == -1.0


THOUGHT = "<think>ab. Wait, c.</think>2"
TWO = [{"question": "1+1=?", "answer": "2"}] * 8


def figures(trace: Trace) -> list[dict[str, float]]:
    """The metrics of each step's answers."""
    return [describe(s.groups, s.kept) for s in trace.steps]


@pytest.mark.derived("rollout/mrt", "advantage/mrt")
def test_mrt_learns_what_answers_add_to_a_thought_that_was_begun() -> None:
    """Answers are right where they end in 2. J is 1/4 at the cut, then 3/4, 0 and 1/4: p = .5, -.25, 0; outcomes 1, 0, 1.

    R = outcome + p = 1.5, -.25, 1: mean .75, std sqrt((.5625 + 1 + .0625) / 2) = .901388: A = .75, -1 and .25 over .901488."""
    go_on, probes = ["d.</think>2", "e.</think>3", "Hm.</think>2"], ["2333", "2223", "3333", "2333"]
    asked: dict[str, Any] = {
        "rows": TWO,
        "steps": 1,
        "prompts": 1,
        "num_generations": 3,
        "sampling": {"max_tokens": 40},
    }
    for seed in range(9):  # the cut is drawn: before the first episode or before the second
        trace = traced("mrt", says=[THOUGHT, *go_on, *"".join(probes)], eval_problems=0, seed=seed, **asked)
        if trace.steps[0].rollouts[0].info["prefix"]:
            break
    once, three, *forced = [d for d in trace.samples if d.step == 0]
    assert once.texts == [THOUGHT] and len(three.texts) == 3 and sum(len(d.texts) for d in forced) == (1 + 3) * 4
    assert {d.how.max_tokens for d in forced} == {64} and len(trace.steps[0].rollouts) == 3
    assert once.how.max_tokens == 40 == three.how.max_tokens + trace.steps[0].rollouts[0].info["prefix"]
    (made,) = trace.updates
    prefix = "<think>ab. "
    assert [r.text for r in made.rows] == [prefix + x for x in go_on]
    first = made.passes[0].batch
    for b, (row, said, credit) in enumerate(zip(made.rows, go_on, (0.75, -1.0, 0.25), strict=True)):
        before = len(row) - len(said.replace("</think>", "*")) - 1  # a letter is a token, a tag is one, and the end
        assert before == len(prefix.replace("<think>", "*")) and row.mask_T.tolist() == [False] * before + [True] * (
            len(row) - before
        )
        own = first["adv_BT"][b][first["mask_BT"][b] > 0]
        torch.testing.assert_close(own, torch.full_like(own, credit / 0.901488), rtol=1e-4, atol=0)
        assert not first["adv_BT"][b][:before].any() and not made.passes[0].pull["logp_BT"][b][:before].any()
    told = figures(trace)[0]
    assert (told["answers/thought"], told["answers/prefix"]) == (1.0, before) and told[
        "answers/progress"
    ] == pytest.approx(1 / 12)


def test_mrt_begins_anew_where_the_first_episode_is_drawn_and_where_nothing_was_thought() -> None:
    asked: dict[str, Any] = {
        "rows": TWO,
        "steps": 2,
        "prompts": 1,
        "num_generations": 2,
        "sampling": {"max_tokens": 40},
    }
    said = [
        "<think>ab.</think>2",
        "<think>c.</think>2",
        "3",
        *"2222" * 3,
        *"232",
        *"3333" * 3,
    ]  # in step 2 nobody thinks
    trace = traced("mrt", says=said, eval_problems=0, **asked)
    assert [[r.info["prefix"] for r in s.rollouts] for s in trace.steps] == [[0, 0], [0, 0]]
    assert all(r.mask_T.all() for s in trace.steps for r in s.rollouts)
    assert [m["answers/thought"] for m in figures(trace)] == [0.5, 0.0]
    assert [[r.info["progress"] for r in s.rollouts] for s in trace.steps] == [[0.0, 0.0]] * 2
    with pytest.raises(pt.UserError, match="no answer of the first step holds one"):
        traced("mrt", says=["4"], steps=1)


def test_mrt_on_whole_answers_samples_after_each_episode() -> None:
    said = "<think>ab. Wait, c.</think>4"
    trace = traced(
        "mrt(rollout='mrt(continued=False)')",
        says=[said],
        steps=1,
        prompts=1,
        num_generations=2,
        sampling={"max_tokens": 40},
    )
    probes = [d for d in trace.samples if d.step == 0 and any(t.count("</think>") > 1 for t in d.texts)]
    (only,) = probes
    assert len(only.texts) == 2 * 3 * 4 and only.how.max_tokens == 64  # answers x (episodes + 1) x 4
    assert {r.stream("reward") is not None for r in trace.steps[0].rollouts} == {True}
    assert figures(trace)[0]["answers/thought"] == 1.0


def test_a_critic_with_adapters_its_rate_its_norm_and_its_time_alone() -> None:
    trace = traced(
        "ppo", reward=even, steps=3, lora=4, lr=1e-3, critic_lr=5e-4, critic_warmup=1, critic_max_norm=0.25, prompts=4
    )
    learner = trace.phases[0].loop.learner
    assert [u.before == u.after for u in trace.of("policy")] == [True, False, False]
    assert (learner.updates, learner.critic_updates) == (2 * 4, 3 * 4)
    policy = learner.policy
    frozen = {p.data_ptr() for n, p in policy.model.named_parameters() if not n.endswith(("lora_a", "lora_b"))}
    beside = dict(policy.critic.model.named_parameters())
    assert all(p.data_ptr() in frozen for n, p in beside.items() if not n.endswith(("lora_a", "lora_b")))
    own = [p for n, p in beside.items() if n.endswith(("lora_a", "lora_b"))]
    assert own and all(p.requires_grad for p in own) and any(bool(p.detach().any()) for p in own)
    named = dict(learner.named_parameters())
    assert named and all(n.endswith(("lora_a", "lora_b")) or ".head." in n for n in named)
    saved = learner.tensors()["weights"]
    assert not any(n.startswith("critic.model") and not n.endswith(("lora_a", "lora_b")) for n in saved)
    assert {round(x, 9) for x in learner._base_lr} == {1e-3, 5e-4}


def test_a_run_that_is_made_longer_does_not_leave_its_critic_alone_again(tmp_path: Any) -> None:
    """VAPO's critic learns alone for a quarter of the run: 1 of 4 steps, and none of those that are added."""
    rates: list[float] = []

    class Watch:
        def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
            rates.append(metrics["lr"])

    how: dict[str, Any] = {
        "model": tiny_folder(), "task": [dict(r) for r in ROWS], "reward": even, "method": "vapo", "runs": tmp_path, "name": "v",
        "prompts": 1, "num_generations": 2, "sampling": {"max_tokens": 4}, "schedule": "constant", "eval_problems": 1, "threads": 1,
    }  # fmt: skip
    for steps in (4, 20):
        pt.run(steps=steps, callbacks=(Watch(),), **how)
    assert [bool(rate) for rate in rates] == [False, *[True] * 19]
