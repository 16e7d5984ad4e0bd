"""PAR by hand, against references and siblings; and where the references come from."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.assemble import assemble
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Copy, Phase
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.runs.in_memory import FunctionScorer, numbered
from posttrain.systems.reward_shaping_safety.par import Referenced, preference_as_reward
from tests.losses.table import slopes

NAN = math.nan


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def batch(**info: list[float]) -> Batch:
    """Rows of 2, 1 and 2 tokens that earned log 3, 0 and log 9, and one that failed; the first two are siblings."""
    reward = [[0.0, math.log(3)], [0.0, 0.0], [math.log(9), 0.0], [NAN, NAN]]
    mask = [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    found = {f"reward:{k}_B": torch.tensor(v, dtype=torch.float64) for k, v in info.items()}
    tensors = [torch.tensor(x, dtype=torch.float64) for x in (mask, reward)]
    return Batch(
        logp_BT=torch.zeros_like(tensors[0]),
        mask_BT=tensors[0],
        reward_BT=tensors[1],
        group_B=torch.tensor([5, 5, 2, 5]),
        **found,
    )


@pytest.mark.derived("shaping/preference-as-reward")
def test_against_one_reference() -> None:
    # sigmoid(log 3 - 0) = 3/4; sigmoid(0 - log 3) = 1/4; sigmoid(log 9 - log 3) = 3/4, on the last own token
    got = preference_as_reward(batch(reference0=[0.0, math.log(3), math.log(3), 0.0]), against="reference")
    expected = [[0.0, 0.75], [0.25, 0.0], [0.0, 0.75]]
    torch.testing.assert_close(got[:3], torch.tensor(expected, dtype=torch.float64))
    assert got[3].isnan().all()  # failed stays failed


def test_the_mean_is_over_references_and_a_failed_one_does_not_count() -> None:
    # row 0: mean of sigmoid(log 3), sigmoid(log 3 - log 9) = (3/4 + 1/4)/2; row 1: one reference left, 1/2
    found = batch(reference0=[0.0, 0.0, 0.0, 0.0], reference1=[math.log(9), NAN, NAN, NAN])
    got = preference_as_reward(found, against="reference").sum(-1)
    assert got[:3].tolist() == pytest.approx([0.5, 0.5, 0.9])


def test_k_steepens() -> None:
    # k = 2: sigmoid(2 log 3) = 9/10
    got = preference_as_reward(batch(reference0=[0.0] * 4), k=2.0, against="reference")
    assert float(got[0].sum()) == pytest.approx(0.9)


@pytest.mark.derived("shaping/preference-as-reward")
def test_siblings() -> None:
    # rows 0 and 1 meet: 3/4 and 1/4; row 2 is alone in its group (1/2); the failed sibling is nobody's rival
    got = preference_as_reward(batch()).sum(-1)
    assert got[:3].tolist() == pytest.approx([0.75, 0.25, 0.5])


def test_slope_is_the_sigmoids_and_fades_above_the_reference() -> None:
    # d/dr sigmoid(r - ref) = s (1 - s) > 0: a flipped sign would be below 0
    ref = [0.3, -0.2, 1.0, 0.0]
    found = batch(reference0=ref)
    leaf = found["reward_BT"].clone().requires_grad_()
    out = preference_as_reward(found.but(reward_BT=leaf), against="reference")
    (grad,) = torch.autograd.grad(out[:3].sum(), leaf)
    rows = [[math.log(3)], [0.0], [math.log(9)]]
    expected = slopes(lambda r: sum(sigmoid(x[0] - c) for x, c in zip(r, ref, strict=False)), rows)
    torch.testing.assert_close(grad[:3, :1].tolist(), expected, rtol=1e-6, atol=1e-8)
    assert bool((grad[:3] > 0).all())


def test_errors() -> None:
    with pytest.raises(UserError, match="no reference rewards"):
        preference_as_reward(batch(), against="reference")
    with pytest.raises(UserError, match="siblings"):
        preference_as_reward(batch(), against="others")


def test_a_prompt_is_answered_by_the_reference_once_and_by_identity() -> None:
    policy = TabularPolicy(2, 3, 4).randomise(1.0, "par test")
    asked: list[int] = []

    def worth(rollouts):
        asked.append(len(rollouts))
        return torch.stack([r.actions.float().sum() for r in rollouts])

    groups = [Group(p, policy.sample([p], 2, Sampling())[0]) for p in numbered(2).prompts]
    scorer = Referenced(FunctionScorer(worth), policy, Sampling(), m=3)
    scorer.score(groups)
    scorer.score(groups)
    assert asked == [4, 6, 4]  # answers, then 2 x 3 references, then answers only
    again = Referenced(FunctionScorer(worth), policy, Sampling(), m=3)
    again.ask([g.prompt for g in groups])
    assert again.known == scorer.known
    first = groups[0].rollouts[0]
    assert [first.rewards[f"reference{i}"] for i in range(3)] == scorer.known[groups[0].prompt.id]
    _, made = assemble(groups)
    reward_BT = preference_as_reward(made, against="reference")
    wins = [sigmoid(first.reward - x) for x in scorer.known[first.prompt.id]]
    assert float(reward_BT[0].sum()) == pytest.approx(sum(wins) / 3, rel=1e-5)


def test_without_any_reference_reward_an_answer_is_masked() -> None:
    policy = TabularPolicy(1, 2, 3)
    scorer = Referenced(FunctionScorer(lambda rollouts: torch.ones(len(rollouts))), policy, Sampling())
    (p,) = numbered(1).prompts
    scorer.known[p.id] = [NAN]
    group = Group(p, policy.sample([p], 1, Sampling())[0])
    scorer.score([group])
    assert group.rollouts[0].failed


def test_the_plan() -> None:
    with pytest.raises(UserError, match="1 reference"):
        find("par(m=0)", "plan")()
    copy, learn = find("par(steps=2)", "plan")().parts
    assert isinstance(copy, Copy) and isinstance(learn, Phase) and learn.reference == copy.to
    assert [p.name for p in learn.method.shaping] == ["preference-as-reward", "kl-in-reward"]
