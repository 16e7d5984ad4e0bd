"""Preference losses give the numbers of TRL's own code on the same tensors, value and gradient: `pip install 'posttrain[peers]'`.

TRL's trainers compute their loss in one method; a stand-in for the trainer calls it with log-probabilities in place of a model.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import Part
from posttrain.losses.aggregate import Totals
from posttrain.losses.objective import objective, unit_of
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.losses.preference.margin import sequence_logp
from posttrain.systems.preference.aot import aot_loss, aot_unpaired_loss
from posttrain.systems.preference.apo_down import apo_down_loss
from posttrain.systems.preference.apo_zero import apo_zero_loss
from posttrain.systems.preference.cpo import cpo_loss
from posttrain.systems.preference.discopop import discopop_loss
from posttrain.systems.preference.exo import exo_loss
from posttrain.systems.preference.hinge import hinge_loss
from posttrain.systems.preference.ipo import ipo_loss
from posttrain.systems.preference.kto import kto_loss
from posttrain.systems.preference.ld_dpo import ld_dpo_loss
from posttrain.systems.preference.nca import nca_loss
from posttrain.systems.preference.orpo import orpo_loss
from posttrain.systems.preference.robust_dpo import robust_loss
from posttrain.systems.preference.simpo import simpo_loss
from posttrain.systems.preference.sppo import sppo_loss
from posttrain.systems.preference.wpo import wpo_loss

pytest.importorskip("trl")
P, T = 5, 7
LENGTHS = torch.tensor([7, 3, 5, 1, 4, 2, 6, 7, 1, 5])  # chosen answers, then rejected ones, as TRL has them


def tensors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(logp, reference, mask) of the chosen answers, then of the rejected ones; 0 outside the mask."""
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.arange(T) < LENGTHS[:, None]).double()
    logp, ref = (-torch.rand(2 * P, T, generator=draw, dtype=torch.float64) * 3 for _ in range(2))
    return logp * mask, ref * mask, mask


def ours(part: Part, logp: Tensor, ref: Tensor, mask: Tensor, **streams: Any) -> tuple[float, Tensor]:
    """Our loss, and its gradient by every log-probability."""
    leaf = logp.clone().requires_grad_()
    chosen, rejected = torch.arange(P), torch.arange(P, 2 * P)
    given: dict[str, Any] = {"chosen_P": chosen, "rejected_P": rejected} | streams
    batch = Batch(logp_BT=leaf, ref_logp_BT=ref, mask_BT=mask, **given)
    whole = part.card.whole
    batch = batch if whole is None else whole(batch, {}, **part.params)
    aggregate = MagicMock() if unit_of(part) != "token" else None
    loss, _ = objective(batch, Totals.of(batch), part, aggregate)
    (grad,) = torch.autograd.grad(loss, leaf)
    return float(loss.detach()), grad


class Model:
    """A stand-in for a model: log-probabilities that were given, and figures that nobody checks."""

    training = True

    def __init__(self, *logps: Tensor, squares: Tensor | None = None) -> None:
        self.logps, self.squares = list(logps), squares

    def __call__(self, **kwargs: Any) -> Any:
        logp = self.logps.pop(0)
        nothing = torch.zeros_like(logp)
        return SimpleNamespace(
            log_probs=logp,
            entropy=nothing,
            mean_logits=nothing,
            is_top1=nothing.bool(),
            log_sum_sq_probs=nothing if self.squares is None else self.squares,
        )


def trainer(**settings: Any) -> Any:
    accelerator = MagicMock(device=torch.device("cpu"))
    accelerator.gather.side_effect = accelerator.gather_for_metrics.side_effect = lambda x: x
    plain = SimpleNamespace(
        accelerator=accelerator, aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=False, use_weighting=False,
        f_divergence_type="reverse_kl", loss_weights=[1.0], label_smoothing=0.0, _total_train_tokens=0, _tp_size=1,
        _metrics={"train": defaultdict(list)}, args=SimpleNamespace(discopop_tau=0.05, gradient_checkpointing_kwargs=None),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False, _modules={}),
    )  # fmt: skip
    for name, value in settings.items():
        setattr(plain, name, value)
    return plain


def theirs(
    loss_type: str, beta: float, logp: Tensor, ref: Tensor, mask: Tensor, squares: Tensor | None = None, **more: Any
) -> tuple[float, Tensor]:
    """squares: log sum_v pi(v)^2 before each token."""
    from trl import DPOTrainer

    leaf = logp.clone().requires_grad_()
    completion = torch.cat([torch.zeros(2 * P, 1), mask], 1).long()
    inputs = {"input_ids": completion, "attention_mask": completion, "completion_mask": completion}
    stand_in = trainer(loss_types=[loss_type], beta=beta, ref_model=Model(ref), **more)
    loss = DPOTrainer._compute_loss(stand_in, Model(leaf, squares=squares), inputs, False)
    (grad,) = torch.autograd.grad(loss, leaf)
    return float(loss.detach()), grad


@pytest.mark.parametrize(
    ("name", "part", "beta", "more"),
    [
        ("sigmoid", dpo_loss, 0.1, {}),
        ("hinge", hinge_loss.but(beta=0.3), 0.3, {}),
        ("ipo", ipo_loss.but(beta=0.4), 0.4, {}),
        ("exo_pair", exo_loss.but(eps=1e-3), 0.1, {"label_smoothing": 1e-3}),
        ("nca_pair", nca_loss, 0.01, {}),
        ("robust", robust_loss, 0.1, {"label_smoothing": 0.1}),
        ("aot", aot_loss.but(beta=0.2), 0.2, {}),
        ("aot_unpaired", aot_unpaired_loss.but(beta=0.2), 0.2, {}),
        ("apo_zero", apo_zero_loss, 0.1, {}),
        ("apo_down", apo_down_loss, 0.1, {}),
        ("discopop", discopop_loss, 0.05, {}),
        ("sigmoid", ld_dpo_loss, 0.1, {"ld_alpha": 0.5}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_losses_of_the_dpo_trainer(name: str, part: Part, beta: float, more: dict[str, Any]) -> None:
    logp, ref, mask = tensors()
    want, grad = theirs(name, beta, logp, ref, mask, **more)
    value, mine = ours(part, logp, ref, mask)
    assert value == pytest.approx(want, rel=1e-6)
    torch.testing.assert_close(mine, grad * mask, rtol=1e-5, atol=1e-9)
    assert float(grad.abs().max()) > 1e-5


def test_wpo() -> None:
    """Answers whose weights are below 1: TRL does not clamp their product there."""
    draw = torch.Generator().manual_seed(0)
    _, ref, mask = tensors()
    logits_BTV = torch.randn(2 * P, T, 11, generator=draw, dtype=torch.float64)
    token_BT = logits_BTV.topk(6, -1).indices[..., -1]
    every_BTV = logits_BTV.log_softmax(-1)
    logp, squares = every_BTV.gather(-1, token_BT[..., None]).squeeze(-1) * mask, (2 * every_BTV).logsumexp(-1)
    want, grad = theirs("sigmoid", 0.1, logp, ref, mask, squares=squares, use_weighting=True)
    plain, _ = theirs("sigmoid", 0.1, logp, ref, mask)
    read = {"hidden_BTD": logits_BTV, "head_VD": torch.eye(11, dtype=torch.float64), "temperature_B": torch.ones(2 * P)}
    value, mine = ours(wpo_loss.but(beta=0.1), logp, ref, mask, **read)
    assert value == pytest.approx(want, rel=1e-6) and value < 0.9 * plain
    torch.testing.assert_close(mine, grad * mask, rtol=1e-5, atol=1e-9)


def test_sppo_with_hard_labels() -> None:
    logp, ref, mask = tensors()
    want, grad = theirs("sppo_hard", 0.5, logp, ref, mask)
    lists = torch.stack([torch.arange(P), torch.arange(P, 2 * P)], 1)
    value, mine = ours(
        sppo_loss.but(beta=0.5, hard=True), logp, ref, mask, ranked_LK=lists, reward_BT=torch.zeros_like(mask)
    )
    assert value == pytest.approx(want, rel=1e-6)
    torch.testing.assert_close(mine, grad * mask, rtol=1e-5, atol=1e-9)


def test_kto() -> None:
    """Ten labelled answers and ten of other questions, as many in both."""
    from trl import KTOTrainer

    logp, ref, mask = tensors()
    other, other_ref, _ = tensors(1)
    other = other_ref + 0.1 * mask  # above the reference, so that z is above 0
    labels = [True, False, True, True, False, True, False, False, True, False]
    leaf = logp.clone().requires_grad_()
    completion = torch.cat([torch.zeros(2 * P, 1), mask], 1).long()
    names = ("input_ids", "attention_mask", "completion_mask")
    inputs: dict[str, Any] = (
        {n: completion for n in names} | {f"KL_{n}": completion for n in names} | {"label": torch.tensor(labels)}
    )
    stand_in = trainer(
        loss_type="kto", beta=0.1, calculate_KL=True, desirable_weight=1.5, undesirable_weight=1.0,
        ref_model=Model(other_ref, ref),
    )  # fmt: skip
    stand_in._compute_kl_logps = lambda model, batch: KTOTrainer._compute_kl_logps(stand_in, model, batch)
    loss = KTOTrainer._compute_loss(stand_in, Model(other, leaf), inputs, False)
    (grad,) = torch.autograd.grad(loss, leaf)
    both = [torch.cat(x) for x in ((logp, other), (ref, other_ref), (mask, mask))]
    told = torch.tensor([float(x) for x in labels] + [float("nan")] * 2 * P, dtype=torch.float64)
    value, mine = ours(kto_loss.but(desirable=1.5), *both, chosen_P=None, rejected_P=None, label_B=told)
    assert value == pytest.approx(float(loss.detach()), rel=1e-6)
    torch.testing.assert_close(mine[: 2 * P], grad * mask, rtol=1e-5, atol=1e-9)
    assert float(mine[2 * P :].abs().max()) == 0


@pytest.mark.parametrize("kind", ["sigmoid", "simpo"])
def test_cpo_and_simpo(kind: str) -> None:
    """TRL's pair term; the imitation term of CPO is a choice of averaging, left out here (nll=0)."""
    from trl.experimental.cpo import CPOTrainer

    logp, ref, mask = tensors()
    leaf = logp.clone().requires_grad_()
    sums = sequence_logp(leaf, Batch(mask_BT=mask), mean=kind == "simpo")
    stand_in = trainer(alpha=0.0, loss_type=kind, beta=2.0, simpo_gamma=0.5)
    losses, _, _ = CPOTrainer.cpo_loss(stand_in, sums[:P], sums[P:])
    (grad,) = torch.autograd.grad(losses.mean(), leaf)
    part = cpo_loss.but(beta=2.0, nll=0.0) if kind == "sigmoid" else simpo_loss
    value, mine = ours(part, logp, ref, mask)
    assert value == pytest.approx(float(losses.mean().detach()), rel=1e-6)
    torch.testing.assert_close(mine, grad, rtol=1e-5, atol=1e-9)


def test_orpo() -> None:
    """TRL's odds term, and our imitation: the mean over each preferred answer."""
    from trl.experimental.orpo import ORPOTrainer

    logp, ref, mask = tensors()
    leaf = logp.clone().requires_grad_()
    mean = sequence_logp(leaf, Batch(mask_BT=mask), mean=True)
    odds, *_ = ORPOTrainer.odds_ratio_loss(trainer(beta=0.1), mean[:P], mean[P:])
    loss = -mean[:P].mean() - odds.double().mean()
    (grad,) = torch.autograd.grad(loss, leaf)
    value, mine = ours(orpo_loss, logp, ref, mask)
    assert value == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(mine, grad, rtol=1e-4, atol=1e-7)
