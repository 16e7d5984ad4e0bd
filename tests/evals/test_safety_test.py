"""The safety test: Student's t against tables, both bounds by hand, the multiplier's step, the gate."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Stopped
from posttrain.core.protocols import Environment
from posttrain.core.registry import find
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.school import school
from posttrain.evals.intervals import clopper_pearson
from posttrain.rewards.runtime.scorer import ScoreReport
from posttrain.systems.reward_shaping_safety.hc_rlhf import (
    Costed,
    fresh_prompts,
    margin,
    safety_test,
    student_quantile,
)


@pytest.mark.parametrize(
    ("dof", "p", "t"),  # printed tables of Student's t
    [
        (1, 0.95, 6.3138),
        (2, 0.95, 2.9200),
        (3, 0.99, 4.5407),
        (10, 0.95, 1.8125),
        (29, 0.975, 2.0452),
        (120, 0.9, 1.2886),
    ],
)
def test_student_tables(dof: int, p: float, t: float) -> None:
    assert student_quantile(p, dof) == pytest.approx(t, abs=1e-4)
    assert student_quantile(1 - p, dof) == pytest.approx(-t, abs=1e-4)
    assert student_quantile(0.5, dof) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.derived("eval/safety-test")
def test_bounds_by_hand() -> None:
    # costs -1, 0, 1 less 2: mean -2, s = 1, n = 3, t_{.95, 2} = 2.91999: U = -2 + 2.91999 / sqrt 3 = -.31415
    got = safety_test([-3.0, -2.0, -1.0], limit=-0.3, delta=0.05)
    assert got["upper"] == pytest.approx(-2 + 2.919986 / math.sqrt(3), abs=1e-5) and got["passed"] == 1
    assert safety_test([-3.0, -2.0, -1.0], limit=-0.4, delta=0.05)["passed"] == 0  # a mean far below is not enough
    # Hoeffding, width 2: 2 sqrt(ln 20 / 6) = 1.41324
    got = safety_test([-3.0, -2.0, -1.0], delta=0.05, bound="hoeffding", cost_range=(-3.0, -1.0))
    assert got["upper"] == pytest.approx(-2 + 2 * math.sqrt(math.log(20) / 6))


@pytest.mark.derived("eval/safety-test")
def test_hoeffding_is_a_bound_by_the_range_of_the_costs() -> None:
    # -3, 5, -4, .3 ten times: mean -1.7 / 4 = -.425, n = 40, all within (-4, 5), which is 9 wide
    # sqrt(ln 20 / 80) = sqrt(2.995732 / 80) = .193511;  U = -.425 + 9 * .193511 = 1.316602, though one of width 1 would have passed
    costs = [-3.0, 5.0, -4.0, 0.3] * 10
    got = safety_test(costs, limit=0.0, bound="hoeffding", cost_range=(-4.0, 5.0))
    assert (
        got["mean"] == pytest.approx(-0.425) and got["upper"] == pytest.approx(1.316602, abs=1e-5) and not got["passed"]
    )
    # twice as wide a range: U = -.425 + 18 * .193511 = 3.058203
    assert safety_test(costs, bound="hoeffding", cost_range=(-9.0, 9.0))["upper"] == pytest.approx(3.058203, abs=1e-5)
    with pytest.raises(UserError, match=r"the least and the most that a cost can be, which is not known here"):
        safety_test(costs, bound="hoeffding")
    with pytest.raises(UserError, match=r"a cost is 5, outside of hoeffding\(least=-4, most=4\)"):
        safety_test(costs, bound="hoeffding", cost_range=(-4.0, 4.0))
    # a harm that is there or not has the range (0, 1): U = .25 + .193511
    assert safety_test([0.0, 0.0, 1.0, 0.0] * 10, bound="hoeffding")["upper"] == pytest.approx(0.443511, abs=1e-5)


def test_the_plan_wants_the_range_before_it_begins_and_holds_costs_to_it() -> None:
    build = find("hc-rlhf", "plan")
    for unsaid in ("hoeffding", "hoeffding(least=1, most=0)", "hoeffding(least=0)"):
        with pytest.raises(UserError, match=r'say it: --plan\.bound "hoeffding\(least=0, most=1\)"'):
            build.but(cost="mine.py:harm", bound=unsaid)()
    with pytest.raises(UserError, match="the bound student takes no options"):
        build.but(cost="mine.py:harm", bound="student(least=0, most=1)")()
    rewards = build.but(cost="mine.py:harm", bound="hoeffding(least=-4, most=5)")().phases()[0].rewards
    assert inspect.getclosurevars(rewards).nonlocals["cost_range"] == (-4.0, 5.0)
    one = Rollout.single(Prompt.text("p", "?"), *[torch.zeros(1)] * 3, torch.ones(1))
    with pytest.raises(UserError, match=r"a cost is 3, outside of hoeffding\(least=0, most=2\)"):
        Costed(Fixed(1.0), Fixed(3.0), (0.0, 2.0)).score([Group(one.prompt, [one])])
    Costed(Fixed(1.0), Fixed(3.0), (0.0, 3.0)).score([Group(one.prompt, [one])])
    assert one.rewards["cost"] == 3.0


def test_too_few_costs_never_pass() -> None:
    assert safety_test([-100.0])["passed"] == 0 and safety_test([])["passed"] == 0


def test_the_test_is_wrong_as_rarely_as_it_says() -> None:
    # normal costs whose mean is exactly at the limit: passing is a mistake, made with probability delta
    draws = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mistakes = sum(safety_test(row, delta=0.1)["passed"] for row in draws.tolist()) / 2000
    assert mistakes == pytest.approx(0.1, abs=0.02)


@pytest.mark.derived("eval/safety-test")
def test_rare_harm_has_the_exact_bound() -> None:
    # no harm of n: (1 - p)^n = delta, p = 1 - delta^(1/n); one of two: 1 - p^2 = delta
    assert clopper_pearson(0, 59, 0.05) == pytest.approx(1 - 0.05 ** (1 / 59)) and clopper_pearson(3, 3, 0.1) == 1.0
    assert clopper_pearson(1, 2, 0.19) == pytest.approx(0.9)
    assert (
        safety_test([0.0] * 20, limit=0.1, delta=0.05)["passed"] == 0
    )  # its spread is 0, and it says little: U = .139
    assert safety_test([0.0] * 59, limit=0.05, delta=0.05)["passed"] == 1
    # wrong at most as rarely as it says, exactly: the chance of k so small that the limit p itself is above the bound
    p, n, delta = 0.1, 40, 0.05
    wrong = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1) if clopper_pearson(k, n, delta) < p]
    assert 0 < sum(wrong) <= delta
    with pytest.raises(UserError, match="0 and 1"):
        safety_test([0.5, 1.0], bound="exact")
    with pytest.raises(UserError, match="chance"):
        clopper_pearson(0, 5, 0.0)


class Rows(Environment):
    """Test prompts 0 to 7, of which 3 is there twice; 0 and 1 are also trained on."""

    name, asked = "rows", {"train": (0, 1, 100), "test": (0, 1, 2, 3, 3, 4, 5, 6)}

    def size(self, split: str) -> int:
        return len(self.asked[split])

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return Prompt.text(f"{split}-{index}", f"question {self.asked[split][index]}")


def test_the_safety_test_asks_each_prompt_once_and_none_that_was_trained_on() -> None:
    assert [p.last for p in fresh_prompts(Rows(), 5)] == [f"question {i}" for i in (2, 3, 4, 5, 6)]
    with pytest.raises(UserError, match=r"asks 6 prompts .* rows has 5 to test on.* --plan.n 5"):
        fresh_prompts(Rows(), 6)


def test_a_task_without_end_is_looked_through_until_there_are_enough() -> None:
    env = school("instructions", 1, think=False)
    assert len({env.prompt(i, "test").last for i in range(100)}) < 100, "requests come again"
    assert len({p.last for p in fresh_prompts(env, 100)}) == 100


def test_errors() -> None:
    with pytest.raises(UserError, match="chance"):
        margin([1.0, 2.0], 2, delta=1.0)
    with pytest.raises(UserError, match="did you mean 'student'"):
        margin([1.0, 2.0], 2, delta=0.1, bound="students")
    with pytest.raises(UserError, match="at least 2"):
        student_quantile(0.9, 0)


@pytest.mark.derived("shaping/pessimistic-cost")
def test_pessimistic_cost_by_hand() -> None:
    # costs 1 and 3: mean 2, s = sqrt 2. Their own: sqrt 2 / sqrt 2 t_{.9, 1} = 3.07768; the test's, n = 4: t_{.9, 3} = 1.63774,
    # 2 sqrt 2 / 2 * 1.63774 = 2.31612. U = 2 + 3.07768 + 2.31612 = 7.39380
    # lam = .5 (U - 1) = 3.19690; the batch after pays (r - lam c) / (1 + lam)
    part = find("pessimistic_cost(limit=1.0, delta=0.1, n=4, lr=0.5, own=1)", "shaping").live()
    theirs = find("pessimistic_cost(limit=1.0, delta=0.1, n=4, lr=0.5)", "shaping").live()
    theirs.update([1.0, 3.0])  # the authors count the batch's own error 4 times
    assert theirs.lam == pytest.approx(0.5 * (2 + 4 * 3.077684 + math.sqrt(2) * 1.637744 - 1), abs=1e-5)
    mask = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    info = {"reward:cost_B": torch.tensor([1.0, 3.0, math.nan])}
    batch = Batch(
        logp_BT=torch.zeros_like(mask),
        mask_BT=mask,
        reward_BT=torch.tensor([[2.0], [4.0], [math.nan]]).double(),
        **info,
    )
    assert part(batch)[:2, 0].tolist() == [2.0, 4.0]
    lam = 0.5 * (2 + 3.077684 + math.sqrt(2) * 1.637744 - 1)
    assert part.lam == pytest.approx(lam, abs=1e-5)
    assert part(batch)[:2, 0].tolist() == pytest.approx([(2 - lam) / (1 + lam), (4 - 3 * lam) / (1 + lam)], abs=1e-5)
    other = find("pessimistic_cost(limit=1.0, delta=0.1, n=4, lr=0.5)", "shaping").live()
    other.load_state_dict(part.state_dict())
    assert other.lam == part.lam
    part.update([-100.0, -100.0])
    assert part.lam == 0.0  # never a bonus for cost
    mean = find("pessimistic_cost(limit=1.0, lr=0.5, inflate=0, own=0)", "shaping").live()
    mean.update([1.0, 3.0])
    assert mean.lam == 0.5 * (2 - 1)  # Safe RLHF


class Fixed:
    def __init__(self, *values: float) -> None:
        self.values = values

    def score(self, groups: list[Group]) -> ScoreReport:
        for r, x in zip([r for g in groups for r in g.rollouts], self.values, strict=True):
            r.reward, r.rewards = x, {"x": x}
        return ScoreReport(len(self.values))


def test_a_failed_cost_masks() -> None:
    one, two = (Rollout.single(Prompt.text("p", "?"), *[torch.zeros(1)] * 3, torch.ones(1)) for _ in range(2))
    report = Costed(Fixed(1.0, 2.0), Fixed(5.0, math.nan)).score([Group(one.prompt, [one, two])])
    assert (one.reward, one.rewards) == (1.0, {"x": 1.0, "cost": 5.0}) and two.failed and report.masked == 1


class Notes:
    def write_notes(self, notes: dict) -> None:
        pass


@pytest.mark.parametrize(("passed", "failed", "goes_on"), [(1.0, 0.0, True), (0.0, 0.0, False), (1.0, 1.0, False)])
def test_the_gate(passed: float, failed: float, goes_on: bool) -> None:
    context = Context(Notes(), None, {})
    context.notes["safety"] = {"passed": passed, "failed": failed}
    walk = find("hc-rlhf(cost='numeric')", "plan")().walk(context)
    assert [next(walk).name for _ in range(2)] == ["candidate", "safety-test"]
    with pytest.raises(StopIteration if goes_on else Stopped):
        next(walk)
