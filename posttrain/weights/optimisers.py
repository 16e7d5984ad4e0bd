"""How parameters move. An optimiser part builds a torch optimiser from named parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from posttrain.core.registry import optimiser


@optimiser(paper="arXiv:1711.05101")
def adamw(
    named: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-6, betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.0, eps: float = 1e-8,
) -> torch.optim.Optimizer:  # fmt: skip
    """AdamW: the default; matrices decay, vectors do not."""
    named = list(named)
    groups = [
        {"params": [p for _, p in named if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = all(p.is_cuda for _, p in named)
    made = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=eps, fused=fused or None)
    return told(made) if fused else made


def told(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Its steps count as changes of the parameters, as other in-place operations do: fused ones leave the version as it was, and the
    rollout engine, which copies weights anew when their version has changed, would go on with the old ones."""

    def moved(done: torch.optim.Optimizer, *_: Any) -> None:
        increment_version([p for g in done.param_groups for p in g["params"] if p.grad is not None])

    optimiser.register_step_post_hook(moved)
    return optimiser


@optimiser()
def sgd(named: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-2, momentum: float = 0.0) -> torch.optim.Optimizer:
    """SGD: no memory of the past unless momentum is given; for controlled experiments."""
    return torch.optim.SGD([p for _, p in named], lr=lr, momentum=momentum)


@optimiser(title="RMSprop")
def rmsprop(
    named: Iterable[tuple[str, nn.Parameter]], lr: float = 5e-7, alpha: float = 0.99, eps: float = 1e-8
) -> torch.optim.Optimizer:
    """RMSprop: each gradient over the root of its running mean square, without momentum; DPO's authors use it, and keep one moment in place of two."""
    return torch.optim.RMSprop([p for _, p in named], lr=lr, alpha=alpha, eps=eps)


@optimiser(paper="arXiv:2502.16982")
def muon(
    named: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-6, momentum: float = 0.95, weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8,
) -> torch.optim.Optimizer:  # fmt: skip
    """Muon: the momentum of each hidden matrix with its singular values set to 1; AdamW for embeddings, heads and vectors.

    W <- W - lr (0.2 sqrt(max(rows, columns)) UV^T + decay W),  U S V^T the momentum: steps as large as AdamW's, root mean square
    """
    named = list(named)
    whole = [p for n, p in named if p.dim() == 2 and not any(k in n for k in ("embed", "lm_head", "head.", "score"))]
    chosen = {id(p) for p in whole}
    rest = [p for _, p in named if id(p) not in chosen]
    groups = [{"params": whole, "muon": True}, {"params": rest, "muon": False}]
    defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "betas": betas, "eps": eps}
    return Muon([g for g in groups if g["params"]], defaults)


class Muon(torch.optim.Optimizer):
    """Both updates in one optimiser, so that a learner keeps one state."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] = state.get("step", torch.zeros(())) + 1
                p.mul_(1 - group["lr"] * group["weight_decay"] * (p.dim() >= 2))
                update = self._matrix if group["muon"] else self._adam
                p.sub_(group["lr"] * update(p.grad, state, group))

    def _matrix(self, grad: torch.Tensor, state: dict[str, torch.Tensor], group: dict[str, Any]) -> torch.Tensor:
        m = state.setdefault("momentum", torch.zeros_like(grad)).mul_(group["momentum"]).add_(grad)
        scale: float = 0.2 * max(grad.shape) ** 0.5
        return scale * orthogonal(grad + group["momentum"] * m)

    def _adam(self, grad: torch.Tensor, state: dict[str, torch.Tensor], group: dict[str, Any]) -> torch.Tensor:
        (b1, b2), t = group["betas"], float(state["step"])
        m = state.setdefault("exp_avg", torch.zeros_like(grad)).lerp_(grad, 1 - b1)
        v = state.setdefault("exp_avg_sq", torch.zeros_like(grad)).lerp_(grad * grad, 1 - b2)
        update: torch.Tensor = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + group["eps"])
        return update


def orthogonal(x: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """The nearest matrix with singular values about 1, by Newton-Schulz: s <- 3.4445 s - 4.775 s^3 + 2.0315 s^5."""
    wide = x.shape[0] > x.shape[1]
    y: torch.Tensor = (x.T if wide else x).to(torch.bfloat16 if x.is_cuda else torch.float32)
    y = y / (y.norm() + 1e-7)
    for _ in range(rounds):
        a = y @ y.T
        y = 3.4445 * y + (-4.775 * a + 2.0315 * (a @ a)) @ y
    return (y.T if wide else y).to(x.dtype)
