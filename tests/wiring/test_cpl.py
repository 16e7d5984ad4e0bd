"""CPL: its formulas at points worked out by hand, and the registered plan on texts and on behaviour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.batch import Batch
from posttrain.core.types import Prompt
from posttrain.environments.language.listed import Listed
from posttrain.losses.preference.dpo import dpo
from posttrain.policies.gaussian import MeanPolicy
from posttrain.systems.preference.cpl import cloning, cpl_kl_loss, cpl_loss
from tests.wiring import formulas as f
from tests.wiring.spies import traced


def pair(**more: Any) -> tuple[Batch, torch.Tensor]:
    """Chosen: log-probabilities -1, -1; rejected: -2, -4."""
    logp = torch.tensor([[-1.0, -1.0], [-2.0, -4.0]], requires_grad=True)
    rows = {"chosen_P": torch.tensor([0]), "rejected_P": torch.tensor([1])}
    return Batch(logp_BT=logp, mask_BT=torch.ones(2, 2), **rows, **more), logp


def assert_held(loss: torch.Tensor, logp: torch.Tensor, value: float, chosen: float, rejected: float) -> None:
    loss.sum().backward()
    torch.testing.assert_close(loss.item(), value, atol=1e-5, rtol=0)
    want = torch.tensor([[chosen, chosen], [rejected, rejected]])
    torch.testing.assert_close(logp.grad, want, atol=1e-6, rtol=0)


@pytest.mark.derived("preference_loss/cpl")
def test_the_rejected_answer_counts_by_half() -> None:
    # A+ = 0.1 x -2 = -0.2, A- = 0.1 x -6 = -0.6; z = -0.2 - 0.5 x -0.6 = 0.1; L = log(1 + e^-0.1) = 0.644397
    # dL/dz = -(1 - sigmoid(0.1)) = -0.475021; chosen: 0.1 x that = -0.047502; rejected: 0.5 x 0.1 x 0.475021 = 0.023751
    batch, logp = pair()
    assert_held(cpl_loss(batch), logp, 0.644397, -0.047502, 0.023751)


@pytest.mark.derived("preference_loss/cpl")
def test_a_label_that_is_not_sure_counts_in_both_orders() -> None:
    # preferred 0.8: the other order has z = -0.6 - 0.5 x -0.2 = -0.5, L = log(1 + e^0.5) = 0.974077
    # L = 0.8 x 0.644397 + 0.2 x 0.974077 = 0.710333; slopes -0.475021 and -0.622459
    # dL/dA+ = 0.8 x -0.475021 + 0.2 x 0.5 x 0.622459 = -0.317771; dL/dA- = 0.8 x 0.5 x 0.475021 - 0.2 x 0.622459 = 0.065517
    batch, logp = pair(preferred_P=torch.tensor([0.8]))
    assert_held(cpl_loss(batch), logp, 0.710333, -0.0317771, 0.0065517)


@pytest.mark.derived("preference_loss/cpl-kl")
def test_advantages_are_measured_from_the_clone() -> None:
    # ref: -1.5, -1.5 and -2, -3: l+ = 1, l- = -1; A+ = 0.2, A- = -0.2; z = 0.2 + 0.75 x 0.2 = 0.35; L = log(1 + e^-0.35) = 0.533382
    # 1 - sigmoid(0.35) = 0.413382; chosen: -0.2 x that = -0.082676; rejected: 0.75 x 0.2 x that = 0.062007
    batch, logp = pair(ref_logp_BT=torch.tensor([[-1.5, -1.5], [-2.0, -3.0]]))
    assert_held(cpl_kl_loss(batch), logp, 0.533382, -0.082676, 0.062007)


def test_cpl_kl_without_bias_is_dpo() -> None:
    batch, _ = pair(ref_logp_BT=torch.tensor([[-0.3, -1.5], [-2.0, -3.0]]))
    torch.testing.assert_close(cpl_kl_loss(batch, alpha=0.3, bias=1.0), dpo(batch, beta=0.3))


@pytest.mark.derived("term/cloning")
def test_cloning() -> None:
    # L_t = -2 logp: 2, 2, 4, 8; d/dlogp = -2
    batch, logp = pair()
    loss = cloning(batch, coef=2.0)
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.tensor([[2.0, 2.0], [4.0, 8.0]]))
    torch.testing.assert_close(logp.grad, torch.full((2, 2), -2.0))


# ---- on the registered plan

PAIRS = [{"prompt": f"say {i}", "chosen": f"{i}", "rejected": "no"} for i in range(24)]


def sums(p: Any) -> torch.Tensor:
    return (p.batch["logp_BT"] * p.batch["mask_BT"]).sum(-1)


def test_both_answers_are_cloned_and_then_compared() -> None:
    trace = traced("cpl", PAIRS, steps=5, lr=0.02)
    assert [(p.name, p.steps) for p in trace.phases] == [("clone", 2), ("cpl", 3)], "40% of the steps"
    for made in trace.of(phase="clone"):
        (only,) = made.passes
        assert {row.text for row in made.rows} > {"no"} and not made.reference
        torch.testing.assert_close(only.pull["logp_BT"], f.mean("tokens", only))
    assert trace.of(phase="cpl")[0].before == trace.of(phase="clone")[-1].after
    for made in trace.of(phase="cpl"):
        (only,) = made.passes
        one, two = made.batch["chosen_P"], made.batch["rejected_P"]
        z = 0.1 * sums(only)[one] - 0.05 * sums(only)[two]
        want = torch.zeros_like(made.batch["mask_BT"])
        want[one] += (0.1 * torch.sigmoid(-z) / len(one))[:, None]
        want[two] -= (0.05 * torch.sigmoid(-z) / len(one))[:, None]
        torch.testing.assert_close(only.pull["logp_BT"], want * made.batch["mask_BT"], rtol=1e-3, atol=1e-6)
        assert not made.reference


def test_kl_is_measured_from_the_cloned_policy_and_bc_goes_on_cloning() -> None:
    trace = traced("cpl(kind='kl')", PAIRS, steps=5, lr=0.02)
    assert {u.reference for u in trace.of(phase="cpl")} == {trace.of(phase="clone")[-1].after}
    loss = trace.phases[1].method.loss
    assert (loss.name, loss.defaults()["alpha"], loss.defaults()["bias"]) == ("cpl-kl", 0.2, 0.75)
    loss = traced("cpl(kind='kl', alpha=0.3, bias=0.9)", PAIRS, steps=3).phases[1].method.loss
    assert (loss.name, loss.defaults()["alpha"], loss.defaults()["bias"]) == ("cpl-kl", 0.3, 0.9)
    trace = traced("cpl(kind='bc', cloned=0)", PAIRS, steps=2, lr=0.02)
    assert [p.name for p in trace.phases] == ["cpl"]
    for made in trace.updates:
        (only,) = made.passes
        one, two = made.batch["chosen_P"], made.batch["rejected_P"]
        pull = 0.1 * torch.sigmoid(-0.1 * (sums(only)[one] - sums(only)[two])) / len(one)
        want = f.mean("tokens", only)
        want[one] += pull[:, None] * made.batch["mask_BT"][one]
        want[two] -= pull[:, None] * made.batch["mask_BT"][two]
        torch.testing.assert_close(only.pull["logp_BT"], want, rtol=1e-3, atol=1e-6)


def test_bad_options_and_data_are_said() -> None:
    with pytest.raises(pt.UserError, match="kind of CPL"):
        traced("cpl(kind='klx')", PAIRS)
    with pytest.raises(pt.UserError, match="at most 1"):
        traced("cpl(bias=1.5)", PAIRS)
    with pytest.raises(pt.UserError, match="chosen"):
        traced("cpl", [{"question": "1+1", "answer": "2"}] * 3)
    with pytest.raises(pt.UserError, match="of --steps 1 0 are for cloning and 1 for comparing"):
        traced("cpl", PAIRS, steps=1)
    with pytest.raises(pt.UserError, match="of --steps 2 2 are for cloning and 0 for comparing"):
        traced("cpl(cloned=0.9)", PAIRS, steps=2)


# ---- behaviour


def segments(count: int, seed: int) -> tuple[Prompt, ...]:
    """Who is preferred pushes against the state (a = -s), whoever is not pushes along with it."""
    draw, out = torch.Generator().manual_seed(seed), []
    for i in range(count):
        states = torch.randn(2, 8, 2, generator=draw)
        noise = 0.3 * torch.randn(2, 8, 2, generator=draw)
        told = [{"states": s.tolist(), "actions": (k * s + e).tolist()} for s, e, k in zip(states, noise, (-1.0, 1.0), strict=True)]  # fmt: skip
        out.append(Prompt(f"segment-{seed}-{i}", (), None, {"chosen": told[0], "rejected": told[1]}))
    return tuple(out)


def test_preferences_over_behaviour_teach_a_control_policy(tmp_path: Path) -> None:
    policy, env = MeanPolicy(2, 2, width=16, seed=1), Listed("pushing", segments(64, 0), segments(16, 1))
    found = pt.run(
        model=policy, method="cpl", env=env, steps=60, prompts=16, lr=3e-3, warmup=0, runs=tmp_path, threads=1, eval_problems=16
    )  # fmt: skip
    states = torch.randn(50, 2, generator=torch.Generator().manual_seed(5))
    made = policy.mean(states)
    assert float((made * states).mean().detach()) < -0.3, "cloning alone would average both to 0"
    assert found["accuracy_after"] > 0.9


def test_a_mean_policy_scores_by_the_squared_error() -> None:
    policy = MeanPolicy(2, 2, width=8)
    row = policy.written(segments(1, 0)[0], segments(1, 0)[0].info["chosen"])
    states, actions = row.row.observation.streams["state"], row.actions
    want = -((actions - policy.mean(states)) ** 2).sum(-1)
    torch.testing.assert_close(policy.forward([row])["logp_BT"][0], want)
    with pytest.raises(pt.UserError, match="got states"):
        policy.written(Prompt("p", ()), {"states": [[0.0, 0.0]]})
    with pytest.raises(pt.UserError, match=r"expected \(T, 2\) and \(T, 2\)"):
        policy.written(Prompt("p", ()), {"states": [[0.0]], "actions": [[0.0, 0.0]]})
