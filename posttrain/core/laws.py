"""Laws: what must hold of a part whatever its formula, as small functions that raise AssertionError with a sentence.

Some hold for every part of a stage (`UNIVERSAL`); others are claims a part makes in its decorator (`laws=(...)`).
`of(part)` lists both, and one test runs them over the registry, so that a new part is tested by existing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import unknown
from posttrain.core.example import LEAVES as LEAVES
from posttrain.core.example import STREAMS as STREAMS
from posttrain.core.example import WHOLE as WHOLE
from posttrain.core.example import example as example
from posttrain.core.registry import LOSSES, Part

Law = Callable[[Part], None]


def over(x_BT: Tensor, like: Tensor) -> Tensor:
    """As wide as a stream of several critics, where it is one."""
    return x_BT if like.dim() == 2 else x_BT.unsqueeze(-1)


def of(part: Part) -> list[Law]:
    """The laws of its stage and those it claims; a claim that names no law fails with the nearest one."""
    for name in part.card.laws:
        if name not in LAWS:
            raise unknown("law", name, LAWS)
    return [*UNIVERSAL.get(part.card.stage, ()), *(LAWS[name] for name in part.card.laws)]


def outputs(part: Part, batch: Batch) -> tuple[Tensor, ...]:
    """What the part returns, as a tuple; a part with state answers as a fresh object."""
    out: Any = part.live()(batch)
    return out if isinstance(out, tuple) else (out,)


def total(part: Part, batch: Batch) -> Tensor:
    """The sum of a loss over what counts: tokens in the mask, pairs or lists of valid answers, answers with a label."""
    batch = batch if part.card.whole is None else part.card.whole(batch, {}, **part.params)
    (loss,), valid_B = outputs(part, batch), batch.valid_B
    if loss.dim() == 2:
        return torch.where(batch.mask_BT > 0, loss, 0.0).sum()
    if part.card.per == "answer":
        return torch.where(valid_B & ~batch["label_B"].isnan(), loss, 0.0).sum()
    if part.card.per == "list":
        ranked_LK = batch["ranked_LK"]
        return torch.where((valid_B[ranked_LK.clamp_min(0)] | (ranked_LK < 0)).all(-1), loss, 0.0).sum()
    return torch.where(valid_B[batch["chosen_P"]] & valid_B[batch["rejected_P"]], loss, 0.0).sum()


def gradients(part: Part, batch: Batch) -> dict[str, Tensor]:
    """The derivative of `total` by each stream that may carry gradient; 0 by those the part does not read."""
    leaves = {name: batch[name].detach().clone().requires_grad_() for name in LEAVES}
    grads = torch.autograd.grad(total(part, batch.but(**leaves)), list(leaves.values()), allow_unused=True)
    return {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, grads, strict=True)}


def same(got: Tensor, expected: Tensor, sentence: str, tolerance: float = 1e-9) -> None:
    worst = float((got - expected).abs().max()) if got.numel() else 0.0
    assert worst <= tolerance, f"{sentence}; the difference is {worst:.3g}"  # a nan fails too


def noisy(batch: Batch) -> Batch:
    """The same batch with other values wherever nobody may look: outside the mask, and what invalid rows earned."""
    wild_BT = 20 * torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    own_BT = batch.mask_BT > 0
    streams = {n: torch.where(over(own_BT, x), x, over(wild_BT, x)) for n in STREAMS for x in (batch[n],)}
    streams["token_BT"] = torch.where(batch.mask_BT > 0, batch["token_BT"], 2)
    valid_B = batch.valid_B
    reward_BT = torch.where(valid_B.unsqueeze(-1), batch["reward_BT"], 20.0)
    scores_BK = torch.where(valid_B.unsqueeze(-1), batch["scores_BK"], 20.0)
    score_B = torch.where(valid_B, batch["score_B"], 20.0)
    return batch.but(**streams, reward_BT=reward_BT, score_B=score_B, scores_BK=scores_BK)


def _loss(part: Part) -> bool:
    return part.card.stage in (*LOSSES, "term")


# ---- universal laws


def padding_is_inert(part: Part) -> None:
    """Values outside the mask change neither the result nor a gradient."""
    batch, other = example(), noisy(example())
    if not _loss(part):
        for got, expected in zip(outputs(part, other), outputs(part, batch), strict=True):
            valid_B = batch.valid_B
            same(got[valid_B], expected[valid_B], f"{part} reads values outside the mask")
        return
    same(total(part, other), total(part, batch), f"{part} reads values outside the mask")
    after = gradients(part, other)
    for name, before in gradients(part, batch).items():
        same(after[name], before, f"the gradient of {part} by {name} depends on values outside the mask")


def row_order_is_irrelevant(part: Part) -> None:
    """Shuffling the rows shuffles the results."""
    batch, order = example(), torch.tensor([3, 6, 0, 7, 5, 2, 4, 1])
    shuffled = batch.rows(order)
    if _loss(part):
        same(total(part, shuffled), total(part, batch), f"{part} depends on the order of rows")
        after = gradients(part, shuffled)
        for name, before in gradients(part, batch).items():
            same(after[name], before[order], f"the gradient of {part} by {name} depends on the order of rows")
        return
    for got, expected in zip(outputs(part, shuffled), outputs(part, batch), strict=True):
        valid_B = shuffled.valid_B
        same(got[valid_B], expected[order][valid_B], f"{part} depends on the order of rows")


def dead_rows_do_not_count(part: Part) -> None:
    """A row that is not valid could as well not be there."""
    batch = example()
    valid_B = batch.valid_B
    without = batch.rows(valid_B.nonzero().squeeze(-1))
    if _loss(part):
        same(total(part, without), total(part, batch), f"{part} counts rows that are not valid")
        after = gradients(part, without)
        for name, before in gradients(part, batch).items():
            same(after[name], before[valid_B], f"the gradient of {part} by {name} depends on rows that are not valid")
            dead = before[~valid_B]
            same(dead, torch.zeros_like(dead), f"{part} has a gradient in rows that are not valid")
        return
    for got, expected in zip(outputs(part, without), outputs(part, batch), strict=True):
        same(got, expected[valid_B], f"{part} counts rows that are not valid")


def credit_only_inside_the_mask(part: Part) -> None:
    """Tokens the policy did not choose, and rows that are not valid, get credit 0."""
    batch = example()
    adv_BT = outputs(part, batch)[0]
    outside_BT = batch.mask_BT == 0
    same(adv_BT[outside_BT], torch.zeros_like(adv_BT[outside_BT]), f"{part} gives credit outside the mask")


# ---- laws of losses that read credit


def on_policy_is_reinforce(part: Part) -> None:
    """Where logp == old_logp the gradient is that of REINFORCE: -A."""
    batch = example()
    batch = batch.but(logp_BT=batch["old_logp_BT"])
    expected_BT = -batch["adv_BT"] * batch.mask_BT
    same(gradients(part, batch)["logp_BT"], expected_BT, f"on policy the gradient of {part} is not -A")


def zero_credit_no_gradient(part: Part) -> None:
    """Without credit nothing is learned."""
    batch = example()
    grad_BT = gradients(part, batch.but(adv_BT=torch.zeros_like(batch["adv_BT"])))["logp_BT"]
    same(grad_BT, torch.zeros_like(grad_BT), f"{part} has a gradient where credit is 0")


def never_against_the_credit(part: Part) -> None:
    """A step never makes a credited token less likely, nor a blamed one more likely, on policy or off."""
    batch = example()
    along_BT = gradients(part, batch)["logp_BT"] * batch["adv_BT"]
    assert bool((along_BT <= 0).all()), f"a step of {part} moves a token against its credit"


# ---- laws of losses on pairs


def _at_reference(batch: Batch) -> Batch:
    return batch.but(logp_BT=batch["ref_logp_BT"], score_B=torch.zeros_like(batch["score_B"]))


def swap_flips_gradient_sign(part: Part) -> None:
    """At the reference (or at equal scores), naming the other answer the better one reverses the step."""
    batch = _at_reference(example())
    there = gradients(part, batch)
    back = gradients(part, batch.but(chosen_P=batch["rejected_P"], rejected_P=batch["chosen_P"]))
    assert max(float(g.abs().max()) for g in there.values()) > 0, f"{part} has no gradient at the reference"
    for name in there:
        same(back[name], -there[name], f"swapping the pair does not reverse the gradient of {part} by {name}")


def chosen_up_rejected_down(part: Part) -> None:
    """Wherever the policy is, a step never lowers the chosen answer nor raises the rejected one."""
    batch = example()
    for name, grad in gradients(part, batch).items():
        assert bool((grad[batch["chosen_P"]] <= 0).all()), f"a step of {part} lowers {name} of a chosen answer"
        assert bool((grad[batch["rejected_P"]] >= 0).all()), f"a step of {part} raises {name} of a rejected answer"


# ---- laws of terms and shaping


def zero_at_the_reference(part: Part) -> None:
    """Where logp == ref_logp the term and its gradient are 0."""
    batch = _at_reference(example())
    same(total(part, batch), torch.zeros(()), f"{part} is not 0 at the reference")
    for name, grad in gradients(part, batch).items():
        same(grad, torch.zeros_like(grad), f"{part} has a gradient by {name} at the reference")


def free_at_the_reference(part: Part) -> None:
    """Where old_logp == ref_logp rewards stay as they are."""
    batch = example()
    valid_B = batch.valid_B
    (reward_BT,) = outputs(part, batch.but(old_logp_BT=batch["ref_logp_BT"]))
    same(reward_BT[valid_B], batch["reward_BT"][valid_B], f"{part} changes rewards at the reference")


# ---- laws of advantages


def _earning(batch: Batch, scale: float = 1.0, shift: float = 0.0) -> Batch:
    """The same answers, each having earned scale * R + shift in all (the shift falls on the last token)."""
    reward_BT = scale * batch["reward_BT"]
    last_BT = torch.arange(reward_BT.shape[1]) == batch["length_B"].unsqueeze(-1) - 1
    return batch.but(reward_BT=reward_BT + shift * last_BT)


def shift_invariant(part: Part) -> None:
    """Adding the same to everybody's reward changes nobody's credit."""
    batch = example()
    shifted_BT, adv_BT = outputs(part, _earning(batch, shift=5.0))[0], outputs(part, batch)[0]
    same(shifted_BT, adv_BT, f"{part} changes when every reward grows by the same")


def scale_invariant(part: Part) -> None:
    """Multiplying every reward changes nobody's credit (up to the eps that guards the division)."""
    batch = example()
    scaled_BT, adv_BT = outputs(part, _earning(batch, scale=3.0))[0], outputs(part, batch)[0]
    same(scaled_BT, adv_BT, f"{part} changes when every reward is tripled", tolerance=1e-3)


def sums_to_zero(part: Part) -> None:
    """What one sibling gains the others lose: credit, one value per answer, sums to 0 in each group."""
    batch = example()
    adv_B = outputs(part, batch)[0].gather(1, batch.mask_BT.argmax(-1, keepdim=True)).squeeze(-1)
    for group in batch["group_B"].unique():
        sum_ = adv_B[batch["group_B"] == group].sum()
        same(sum_, torch.zeros(()), f"the credit {part} gives siblings does not sum to 0")


def tokens_sum_to_zero(part: Part) -> None:
    """Credit sums to 0 over all tokens of the batch."""
    adv_BT = outputs(part, example())[0]
    same(adv_BT.sum(), torch.zeros(()), f"the credit {part} gives does not sum to 0 over tokens")


def groups_are_separate(part: Part) -> None:
    """What one prompt's answers earn does not touch the credit of another's."""
    batch = example()
    mine_B = batch["group_B"] == 7
    other = batch.but(reward_BT=torch.where(mine_B.unsqueeze(-1), batch["reward_BT"], 3.0))
    same(outputs(part, other)[0][mine_B], outputs(part, batch)[0][mine_B], f"{part} mixes groups")


_LOSS_LAWS = (padding_is_inert, row_order_is_irrelevant, dead_rows_do_not_count)
UNIVERSAL: dict[str, tuple[Law, ...]] = {
    **{stage: _LOSS_LAWS for stage in (*LOSSES, "term", "shaping")},
    "advantage": (*_LOSS_LAWS, credit_only_inside_the_mask),
}
LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        on_policy_is_reinforce, zero_credit_no_gradient, never_against_the_credit, swap_flips_gradient_sign,
        chosen_up_rejected_down, zero_at_the_reference, free_at_the_reference, shift_invariant, scale_invariant,
        sums_to_zero, tokens_sum_to_zero, groups_are_separate, *_LOSS_LAWS, credit_only_inside_the_mask,
    )
}  # fmt: skip
