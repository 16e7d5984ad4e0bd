"""Win rate at equal length: what a win rate would be if no answer were longer than the other (AlpacaEval 2's idea)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from posttrain.core.errors import UserError
from posttrain.core.registry import evaluation

_STEPS, _SMALL = 100, 1e-10  # of Newton's method


@evaluation(paper="arXiv:2404.04475")
def length_controlled(
    ours: Sequence[float],
    theirs: Sequence[float],
    our_lengths: Sequence[float],
    their_lengths: Sequence[float],
    ridge: float = 0.01,
) -> float:
    """Length-controlled win rate: a logistic regression of who won on the difference of lengths, read where there is none.

    P(win) = sigmoid(a + b tanh(d / std d)),  d = our length - their length;  the rate is sigmoid(a).  Equal scores are half a win.
    ridge: of b, so that it is finite where length decides every win.  No difference anywhere, or one side winning all: the raw win rate.
    The paper's regression has two more terms, for which it needs the verdicts on many models: how hard an instruction is, and a pull of b towards that
    of two models told to be short and long; its lengths are in characters.
    """
    sizes = {len(ours), len(theirs), len(our_lengths), len(their_lengths)}
    if len(sizes) != 1 or not len(ours):
        raise UserError(
            f"a win rate compares answers one by one; got {len(ours)} and {len(theirs)} scores of {len(our_lengths)} and {len(their_lengths)} lengths"
        )
    won_N = torch.tensor([(a > b) + 0.5 * (a == b) for a, b in zip(ours, theirs, strict=True)], dtype=torch.float64)
    longer_N = torch.tensor(our_lengths, dtype=torch.float64) - torch.tensor(their_lengths, dtype=torch.float64)
    raw = float(won_N.mean())
    if raw in (0.0, 1.0) or not bool(longer_N.any()):
        return raw
    spread = float(longer_N.std(correction=0)) or float(longer_N.abs().max())  # all differ by the same
    x_N2 = torch.stack([torch.ones_like(longer_N), torch.tanh(longer_N / spread)], -1)
    return float(torch.sigmoid(_fitted(x_N2, won_N, torch.tensor([0.0, ridge], dtype=torch.float64))[0]))


def _fitted(x_NK: torch.Tensor, y_N: torch.Tensor, ridge_K: torch.Tensor) -> torch.Tensor:
    """Coefficients of a logistic regression by Newton's method; a step that makes the loss worse is halved."""
    w_K = torch.zeros(x_NK.shape[1], dtype=x_NK.dtype)

    def loss(w_K: torch.Tensor) -> float:
        z_N = x_NK @ w_K
        return float((torch.nn.functional.softplus(z_N) - y_N * z_N).sum() + 0.5 * (ridge_K * w_K**2).sum())

    for _ in range(_STEPS):
        p_N = torch.sigmoid(x_NK @ w_K)
        grad_K = x_NK.T @ (p_N - y_N) + ridge_K * w_K
        curve_KK = (x_NK.T * (p_N * (1 - p_N))) @ x_NK + torch.diag(ridge_K)
        step_K = torch.linalg.lstsq(curve_KK, grad_K.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
        size = 1.0
        while size > _SMALL and loss(w_K - size * step_K) > loss(w_K):
            size /= 2
        w_K = w_K - size * step_K
        if float(grad_K.abs().max()) < _SMALL * len(y_N):
            break
    return w_K
