"""The same numbers as TRL, where it has the same formula: value and gradient on the same tensors. Needs `pip install posttrain[peers]`."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.losses.aggregate import Totals, token_mean
from posttrain.systems.distillation.gkd import whole_distribution
from posttrain.systems.supervised_from_reward.dft import weighed_by_probability

pytest.importorskip("trl")

B, T, V, D, E = 3, 5, 17, 6, 9


def drawn() -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """A batch of two models, and the logits of both; rows of 5, 3 and 1 tokens."""
    g = torch.Generator().manual_seed(0)
    shapes = {"hidden_BTD": (B, T, D), "head_VD": (V, D), "ref_hidden_BTD": (B, T, E), "ref_head_VD": (V, E)}
    made = {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()}
    made["hidden_BTD"].requires_grad_(), made["head_VD"].requires_grad_()
    mask_BT = (torch.arange(T) < torch.tensor([[5], [3], [1]])).double()
    batch = Batch(mask_BT=mask_BT, temperature_B=torch.ones(B, dtype=torch.float64), **made)
    return batch, made["hidden_BTD"] @ made["head_VD"].T, made["ref_hidden_BTD"] @ made["ref_head_VD"].T


def slopes(loss: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, [batch["hidden_BTD"], batch["head_VD"]], retain_graph=True)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_gkd(beta: float, temperature: float) -> None:
    gkd = pytest.importorskip("trl.experimental.gkd")
    batch, student_BTV, teacher_BTV = drawn()
    labels_BT = torch.where(batch.mask_BT > 0, 0, -100)
    theirs = gkd.GKDTrainer.generalized_jsd_loss(student_BTV, teacher_BTV, labels_BT, beta, temperature)
    mine = batch.but(temperature_B=torch.full((B,), temperature, dtype=torch.float64))
    ours = token_mean(whole_distribution(mine, beta=beta), mine, Totals.of(mine))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)
    for got, want in zip(slopes(ours, batch), slopes(theirs, batch), strict=True):
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)


def test_dft() -> None:
    """TRL's loss is inside of its trainer: it is called with a stand-in for the trainer, and a model that gives these log-probabilities."""
    trainer = pytest.importorskip("trl.trainer.sft_trainer")
    batch, logits_BTV, _ = drawn()
    token_BT = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))
    logp_BT = logits_BTV.log_softmax(-1).gather(-1, token_BT[..., None]).squeeze(-1)
    none = torch.zeros(B, T)
    said = SimpleNamespace(log_probs=logp_BT * batch.mask_BT, label_mask=batch.mask_BT, entropy=none, is_top1=none)
    stand_in = SimpleNamespace(
        model=SimpleNamespace(training=False), aux_loss_enabled=False, compute_loss_func=None, label_smoother=None,
        accelerator=SimpleNamespace(parallelism_config=None, gather_for_metrics=lambda x: x),
        args=SimpleNamespace(loss_type="dft", average_tokens_across_devices=False),
        _metrics={"eval": defaultdict(list)}, _total_train_tokens=0,
    )  # fmt: skip
    theirs = trainer.SFTTrainer.compute_loss(stand_in, lambda **inputs: said, {"labels": token_BT})
    mine = batch.but(logp_BT=logp_BT)
    ours = token_mean(weighed_by_probability(mine), mine, Totals.of(mine))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)
    for got, want in zip(slopes(ours, batch), slopes(theirs, batch), strict=True):
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)
