"""FSDP2: parameters, gradients and optimiser state in rows over the processes, each layer gathered while it is used.

torch's `fully_shard` does the work. Gradients are summed, not averaged: a loss divides by counts of the whole minibatch already. The
optimiser moves each process's own rows as plain tensors, so every optimiser that treats numbers one by one works, and checkpoints are rows.
A second, whole copy of the weights, in the precision of the forward pass, samples; it is filled again before it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from posttrain.core.errors import UserError
from posttrain.core.ranks import Ranks, dealt
from posttrain.models.context import Context
from posttrain.models.decoder import Decoder
from posttrain.models.four_bit import FourBit
from posttrain.models.rows import Whole, local, rows_like
from posttrain.weights.critic import Named
from posttrain.weights.masters import Masters
from posttrain.weights.parallel import Local, company
from posttrain.weights.reference import Frozen

ELEMENTWISE = ("adamw", "sgd")  # optimisers that treat numbers one by one
_PASSES = ("hidden", "hidden_shared", "hidden_packed")  # ways through a decoder besides `forward`


class Sharded(Local):
    """Rows of every weight over all processes. divided: so many of them share the tokens of each piece (context parallel)."""

    def __init__(self, ranks: Ranks, divided: int = 1) -> None:
        self.ranks, self.divided = ranks, divided
        self.context = context_of(ranks, divided) if divided > 1 else None

    def wrap(self, policy: Any, learns: bool = True) -> None:
        """Shard the policy's network, its critic's, and keep a whole copy that samples where the policy learns."""
        model = policy.model
        if isinstance(model, FSDPModule):
            return
        if not isinstance(model, Decoder):
            raise UserError(
                f"{type(model).__name__} cannot be sharded over processes: --gpus takes Llama, SmolLM2, Mistral and Qwen models; add --exact-sums "
                "to keep the whole model in every process"
            )
        if any(isinstance(m, FourBit) for m in model.modules()):
            raise UserError("4-bit weights cannot be sharded over processes yet; leave --bits away, or use one process")
        if learns:
            policy.whole = Whole(model, copy.deepcopy(model).requires_grad_(False).eval())
        critic = policy.critic.model if learns and policy.critic is not None else None
        for one in (model, critic):
            if one is not None:
                shard(one, learns)
                object.__setattr__(one, "context", self.context)

    def check_optimiser(self, name: str) -> None:
        if name not in ELEMENTWISE:
            raise UserError(
                f"the optimiser {name} needs whole matrices, and several processes hold rows of them; use --optimiser adamw, or --exact-sums, "
                "which keeps the whole model in every process"
            )

    def check_reference(self, reference: Any) -> None:
        if reference.saved and type(reference).tensors is not Frozen.tensors:
            raise UserError(
                f"the reference {type(reference).__name__} keeps more than one policy's weights, and several processes hold rows of them; use "
                "another --reference, or --exact-sums, which keeps the whole model in every process"
            )

    def masters(self, named: Iterable[tuple[str, nn.Parameter]]) -> Masters:
        return Rows(named, self.ranks)

    def moved(self, policy: Any) -> None:
        policy.whole.stale = True

    def state(self, policy: Any) -> dict[str, Tensor]:
        return {name: local(x) for name, x in nn.Module.state_dict(policy).items()}

    def reference_state(self, reference: Any) -> dict[str, Tensor]:
        return self.state(reference.policy)

    def rows(self, learner: Any) -> dict[str, list[str]]:
        rows = {name for name, p in learner.named_parameters() if p.rows}
        names = {id(p): name for name, p in learner.named_parameters()}
        moments = [
            (names[id(p)], k)
            for p, state in learner.optimiser.state.items()
            for k, x in state.items()
            if torch.as_tensor(x).dim()
        ]
        out = {"weights": sharded_names(learner.policy), "optimiser": [f"{n}|{k}" for n, k in moments if n in rows]}
        saved = learner.reference is not None and learner.reference.saved
        return out | ({"reference": sharded_names(learner.reference.policy)} if saved else {})

    def own(self, parameter: Tensor, whole: Tensor) -> Tensor:
        rows = getattr(parameter, "rows", False) and whole.dim() > 0
        return rows_like(parameter, whole, self.ranks.rank, self.ranks.world) if rows else whole

    def pieces(self, costs: Sequence[float]) -> list[tuple[int, bool]]:
        hands = dealt(list(costs), self.ranks.world // self.divided)
        return list(company(hands[self.ranks.rank // self.divided], max(map(len, hands)), len(costs) - 1))

    def gather(self, mine: list[tuple[int, Any]]) -> list[Any]:
        """Those that share a piece all have what belongs to it: the first of them tells."""
        return super().gather(mine if self.context is None or self.context.rank == 0 else [])

    def backward(self, loss: Tensor, streams: Iterable[Tensor], counts: bool = True) -> None:
        """All processes go back through the model, also where a piece teaches nothing."""
        through = sum(x.float().sum() * 0.0 for x in streams if x.requires_grad)
        (loss * (1.0 if counts else 0.0) + through).backward()

    def reduce(self, named: Named) -> None:
        """FSDP has summed its own gradients; those of weights that all processes hold whole (a head) are summed here."""
        for _, p in named:
            p.pull()  # type: ignore[attr-defined]
        whole = [p for _, p in named if not p.rows and p.requires_grad]  # type: ignore[attr-defined]
        if whole:
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in whole])
            for p, x in zip(whole, self.ranks.sum_(flat).split([p.numel() for p in whole]), strict=True):
                p.grad = x.view_as(p)

    def clip(self, named: Named, max_norm: float) -> float:
        """The norm over all rows of all processes."""
        params = [p for _, p in named if p.grad is not None]
        if not named:
            return 0.0
        square = torch.zeros((), dtype=torch.float64, device=named[0][1].device)
        for p in params:
            if p.rows or self.ranks.lead:  # type: ignore[attr-defined]
                square += p.grad.double().square().sum()  # type: ignore[union-attr]
        norm = float(self.ranks.sum_(square).sqrt())
        factor = max_norm / (norm + 1e-6)
        for p in params if factor < 1.0 else ():
            p.grad.mul_(factor)  # type: ignore[union-attr]
        return norm


def context_of(ranks: Ranks, size: int) -> Context:
    """Neighbours share the tokens of a row, which are on one machine where that can be."""
    import torch.distributed as dist

    groups = [dist.new_group(list(range(at, at + size))) for at in range(0, ranks.world, size)]
    return Context(ranks.rank % size, size, groups[ranks.rank // size])


def shard(model: Decoder, learns: bool) -> None:
    """Every layer a unit of its own, then what is left. In half precision the rows are float32 and a layer is gathered in half."""
    half = model.lm_head.weight.dtype in (torch.bfloat16, torch.float16)
    how = MixedPrecisionPolicy(
        param_dtype=model.lm_head.weight.dtype if half else None, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    object.__setattr__(model, "computes_in", model.lm_head.weight.dtype)
    for block in model.model.layers:
        if learns:
            block.float()  # one at a time: no card has room for a whole model in float32
        fully_shard(block, mp_policy=how)
        register_fsdp_forward_method(block, "packed")
    for rest in (model.model.embed_tokens, model.model.norm, model.lm_head) if learns else ():
        rest.float()
    fully_shard(model, mp_policy=how)
    for name in _PASSES:
        register_fsdp_forward_method(model, name)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def sharded_names(module: Any) -> list[str]:
    """The weights of which each process has its own rows, those that are shared under one name only."""
    seen: set[int] = set()
    out = []
    for name, x in nn.Module.state_dict(module).items():
        if isinstance(x, DTensor) and local(x).data_ptr() not in seen:
            out.append(name)
        seen |= {local(x).data_ptr()} if local(x).numel() else set()
    return out


class Row(nn.Parameter):
    """This process's rows of a weight (or a weight that every process has whole), as a plain parameter that shares its memory."""

    source: nn.Parameter
    rows: bool

    @staticmethod
    def of(p: nn.Parameter) -> Row:
        local = p.to_local() if isinstance(p, DTensor) else p
        made: Row = torch.Tensor._make_subclass(Row, local.detach(), p.requires_grad)
        made.source, made.rows = p, isinstance(p, DTensor)
        return made

    def pull(self) -> None:
        """The gradient of the weight becomes that of its rows."""
        g = self.source.grad
        self.grad = g.to_local() if isinstance(g, DTensor) else g
        self.source.grad = None


class Rows(Masters):
    """The optimiser moves rows."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], ranks: Ranks) -> None:
        self.named = [(name, Row.of(p)) for name, p in named]
        self.copies, self.ranks = [], ranks

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Rows are float32: those of the masters of one process, where it saved any."""
        for name, p in self.named:
            if name in tensors:
                x = tensors[name]
                p.copy_(rows_like(p, x, self.ranks.rank, self.ranks.world) if p.rows else x)  # type: ignore[attr-defined]
