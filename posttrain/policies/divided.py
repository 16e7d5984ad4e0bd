"""The streams of a language model whose rows are divided among processes (`models/context.py`): equal on all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posttrain.core.critic import VALUES
from posttrain.core.errors import UserError
from posttrain.models.context import Chosen, Context, DividedBatch
from posttrain.models.layout import Rows
from posttrain.models.packed import PackedBatch, layers_to_recompute

if TYPE_CHECKING:
    from posttrain.policies.language import LanguagePolicy

GATHERED = {"logp_BT", "entropy_BT", "logz_BT", "score_B"}  # streams besides a critic's that are one number a place


def divided_streams(policy: LanguagePolicy, rows: Rows, needs: set[str], context: Context) -> dict[str, Tensor]:
    """What `LanguagePolicy.forward` gives. Heads run on this process's own actions, and their numbers are gathered."""
    if rows.seen_P:
        raise UserError(
            f"--context-parallel divides text, and these prompts also carry {', '.join(sorted(rows.seen_P))}; leave it away"
        )
    if large := sorted(needs - set(VALUES) - GATHERED):
        raise UserError(
            f"--context-parallel gathers one number for each action or answer, not {', '.join(large)}; leave it away"
        )
    share = DividedBatch.share(PackedBatch.of(rows), context)
    real_BT, actions_A = rows.real_BT, rows.actions_BT[rows.real_BT]
    before = Chosen.of(share, share.before_BT[real_BT])
    out: dict[str, Tensor] = {}
    valued, h_ND = needs & set(VALUES), None
    if needs - valued or (policy.critic is not None and policy.critic.model is None):
        h_ND = states(policy.model, share)
        if asked := needs & {"logp_BT", "entropy_BT", "logz_BT"}:
            told = policy.token_likelihood(h_ND[before.mine_M], actions_A[before.item_M], asked)
            out |= {name: filled(real_BT, before.gathered(x_M)) for name, x_M in told.items()}
        if "score_B" in needs:
            if policy.score is None:
                raise UserError("this policy has no score head; train it in the role of a reward model")
            last = Chosen.of(share, share.last_B)
            out["score_B"] = last.gathered(policy.score(h_ND[last.mine_M]))
    return out | (values(policy, share, real_BT, valued, h_ND) if valued else {})


def states(model: Any, share: DividedBatch) -> Tensor:
    """After each of this process's tokens. Processes that gather together recompute the same layers."""
    recompute = 0
    if torch.is_grad_enabled() and share.tokens_N.is_cuda:
        needed = layers_to_recompute(model, len(share.tokens_N), len(share.source_K))
        assert share.context is not None
        recompute = share.context.most(needed, share.tokens_N.device)
    h_ND: Tensor = model.hidden_packed(share, recompute)
    return h_ND


def values(
    policy: LanguagePolicy, share: DividedBatch, real_BT: Tensor, needs: set[str], h_ND: Tensor | None
) -> dict[str, Tensor]:
    """Streams of the critic: of the state before each action, or of the one after it."""
    critic = policy.critic
    if critic is None:
        raise UserError("this policy has no critic; the method must ask for one (critic=True)")
    h_ND = states(critic.model, share) if critic.model is not None else h_ND
    assert h_ND is not None
    end_BT = real_BT & (torch.arange(real_BT.shape[1], device=real_BT.device) == real_BT.sum(-1, keepdim=True) - 1)
    following_BT = torch.cat((share.before_BT[:, 1:], share.before_BT[:, -1:]), 1)
    after_BT = torch.where(end_BT, share.last_B.unsqueeze(-1), following_BT)
    out = {}
    for name in sorted(needs):
        chosen = Chosen.of(share, (after_BT if name == "value_after_BT" else share.before_BT)[real_BT])
        x_M = critic.head(h_ND[chosen.mine_M])
        x_M = x_M.unsqueeze(-1) if name == "value_BTK" and x_M.dim() == 1 else x_M
        out[name] = filled(real_BT, chosen.gathered(x_M))
    return out


def filled(real_BT: Tensor, x_A: Tensor) -> Tensor:
    """Numbers of the actions in their places, 0 elsewhere."""
    empty = torch.zeros(*real_BT.shape, *x_A.shape[1:], dtype=x_A.dtype, device=x_A.device)
    return empty.index_put((real_BT,), x_A)
