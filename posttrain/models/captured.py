"""A training pass over packed rows as two captured graphs, one forward and one backward: log-probabilities of the rows' actions.

A GPU computes a small model faster than the host can launch its kernels: some 2,000 of 10 to 20 microseconds each. A pass whose sizes
come back is captured and replayed from then on, two launches in all. So that sizes come back, they are rounded up: a sequence of padding
follows the rows, which no row attends to and whose log-probabilities have no gradient. A pass that is not captured yet has the same
padding and runs the same kernels.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.decoder import Decoder
from posttrain.models.layout import Rows, half_precision
from posttrain.models.likelihood import normalised
from posttrain.models.packed import PackedBatch, cumulative, layers_to_recompute

MOST_FLOPS = 4e13  # of a pass; a larger one keeps the device busy while the host launches it
MOST_GRAPHS = 12  # the least recently used goes first
LEAST_PADDING = 64  # tokens of the last sequence, among which its keys are dealt out
_LONG = ("tokens_N", "positions_N", "source_K", "order_K", "place_M", "token_M")
_SHORT = ("first_N", "cu_q", "cu_k")


@dataclass
class Padded:
    """Rows laid out on the host, rounded up, as one table of numbers: one copy brings them to the device."""

    numbers: Tensor
    sizes: tuple[int, ...]  # of _LONG, then of _SHORT
    longest: tuple[int, int]  # queries and keys of a sequence, at most
    real: int  # actions that are no padding

    @property
    def kind(self) -> tuple[int, ...]:
        """What a captured graph is for."""
        return (*self.sizes, *self.longest)

    def packed(self, numbers: Tensor) -> tuple[PackedBatch, Tensor, Tensor]:
        """The batch, the states that chose the actions, and the actions, as views of a copy of the numbers."""
        parts = dict(zip((*_LONG, *_SHORT), numbers.split(self.sizes), strict=True))
        place_M, token_M = parts.pop("place_M"), parts.pop("token_M")
        short = {name: parts.pop(name).int() for name in _SHORT}
        none = place_M[:0]
        batch = PackedBatch(
            **parts, **short, longest_q=self.longest[0], longest_k=self.longest[1], before_BT=none, last_B=none
        )
        return batch, place_M, token_M


def padded(rows: Rows) -> Padded:
    """Rows on the host, with a sequence of padding at the end that fills all sizes up to rounded ones."""
    b, real_BT = PackedBatch.of(rows), rows.real_BT
    N, K, M = len(b.tokens_N), len(b.source_K), int(real_BT.sum())
    n = rounded(N + LEAST_PADDING) - N
    k = -(-4 * (K + n) // (N + n)) * (N + n) // 4 - K  # keys: a multiple of a quarter of the tokens
    m = rounded(M) - M
    spread_K, spread_M = N + torch.arange(k) % n, N + torch.arange(m) % n
    source_K = torch.cat((b.source_K, spread_K))
    zeros_N, zeros_M = torch.zeros(n, dtype=torch.long), torch.zeros(m, dtype=torch.long)
    named = {
        "tokens_N": torch.cat((b.tokens_N, zeros_N)),
        "positions_N": torch.cat((b.positions_N, torch.arange(n))),
        "source_K": source_K,
        "order_K": source_K.argsort(stable=True),
        "place_M": torch.cat((b.before_BT[real_BT], spread_M)),
        "token_M": torch.cat((rows.actions_BT[real_BT], zeros_M)),
        "first_N": cumulative(torch.bincount(source_K, minlength=N + n)),
        "cu_q": torch.cat((b.cu_q, b.cu_q[-1:] + n)),
        "cu_k": torch.cat((b.cu_k, b.cu_k[-1:] + k)),
    }
    every = [named[name].long() for name in (*_LONG, *_SHORT)]
    longest = (_power_of_two(max(b.longest_q, n)), _power_of_two(max(b.longest_k, k)))
    return Padded(torch.cat(every), tuple(len(x) for x in every), longest, M)


def rounded(count: int) -> int:
    """The next of sixteen sizes between two powers of two: at most 6% more."""
    step = max(64, _power_of_two(count) // 32)
    return -(-count // step) * step


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


class Passes:
    """The captured passes of a decoder; the weights are read live, at the addresses they had."""

    def __init__(self, model: Decoder) -> None:
        self.model, self.weights = model, sum(p.numel() for p in model.parameters())
        self.places = [(m._parameters, name) for m in model.modules() for name in m._parameters]  # of all parameters
        self.pool: Any = None
        self.turn = 0  # replays so far: the graphs share memory, so a gradient must be asked for before the next one
        self.seen: set[tuple[Any, ...]] = set()
        self.kept: OrderedDict[tuple[Any, ...], Captured] = OrderedDict()
        self.refused = False  # by a device or driver that cannot capture: every pass is launched

    def logp_BT(self, rows: Rows, temperature: float) -> Tensor | None:
        """The same in their places, on the host, 0 at padding."""
        logp_M = self.likelihood(rows, temperature)
        return None if logp_M is None else of_rows(logp_M.cpu(), rows.real_BT)

    def likelihood(self, rows: Rows, temperature: float) -> Tensor | None:
        """Log-probabilities of the real actions of rows that lie on the host, in their order; None where a graph would gain nothing."""
        model, device = self.model, self.model.lm_head.weight.device
        if rows.seen_P or not half_precision(model) or 6 * self.weights * int(rows.length_B.sum()) > MOST_FLOPS:
            return None
        laid = padded(rows)
        if layers_to_recompute(model, laid.sizes[0], laid.sizes[2]):
            return None
        kind = (*laid.kind, temperature, *self.addresses())
        numbers = laid.numbers.pin_memory()
        if kind in self.kept:
            self.kept.move_to_end(kind)
        elif (
            self.refused
            or kind not in self.seen
            or not room(device)
            or not self._capture(kind, laid, numbers, temperature)
        ):
            self.seen.add(kind)  # most sizes of rows that differ in length never come back
            return likelihood_of(model, laid, numbers.to(device, non_blocking=True), temperature)[: laid.real]
        one = self.kept[kind]
        self.turn += 1
        logp_M: Tensor = _Replay.apply(one.anchor, one, numbers, self)  # type: ignore[no-untyped-call]
        return logp_M[: laid.real]

    def addresses(self) -> list[int]:
        """Of the trained weights, as they are now."""
        found = (of[name] for of, name in self.places)
        return [p.data_ptr() for p in found if p is not None and p.requires_grad]

    def _capture(self, kind: tuple[Any, ...], laid: Padded, numbers: Tensor, temperature: float) -> bool:
        """Whether it was captured. Kernels are compiled: these sizes have run before."""
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        if len(self.kept) == MOST_GRAPHS:
            self.kept.popitem(last=False)
        try:
            self.kept[kind] = Captured(self.model, laid, numbers, temperature, self.pool)
        except RuntimeError as error:  # out of memory is one, too
            self.refused = True
            self.kept.clear()
            why = str(error).strip().partition("\n")[0][:200]
            print(
                f"note: training passes cannot be captured here ({why}); they are launched one kernel at a time, which gives the same numbers",
                file=sys.stderr,
            )
            return False
        return True


def room(device: torch.device) -> bool:
    """Whether half of the card is free: what a graph needs is its own from then on, and a run that fits without must still fit."""
    free, total = torch.cuda.mem_get_info(device)
    spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return 2 * (free + spare) > total


def capture(policy: Any, written: bool) -> None:
    """Let a policy on a GPU capture its training passes where rows are written data, whose sizes come back; those of sampled answers seldom
    do. All trained weights must have masters, which take the gradients."""
    model = getattr(policy, "model", None)
    if not written or type(model) is not Decoder or not hasattr(policy, "passes") or policy.device.type != "cuda":
        return
    if getattr(model, "context", None) is None and all(
        hasattr(p, "master") for p in model.parameters() if p.requires_grad
    ):
        policy.passes = Passes(model)


def of_rows(x_N: Tensor, real_BT: Tensor) -> Tensor:
    """Numbers of the real actions in their places, 0 at padding."""
    return torch.zeros(real_BT.shape, dtype=x_N.dtype, device=x_N.device).masked_scatter(real_BT, x_N)


def likelihood_of(model: Decoder, laid: Padded, numbers: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of all actions, padding too, with a gradient."""
    packed, place_M, token_M = laid.packed(numbers)
    h_ND = model.hidden_packed(packed)
    return normalised(h_ND[place_M], model.head_weight, token_M, temperature)[0]


class Captured:
    """One forward and one backward graph. What they read and write has fixed addresses."""

    def __init__(self, model: Decoder, laid: Padded, numbers: Tensor, temperature: float, pool: Any) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.numbers = numbers.to(self.params[0].device)
        self.anchor = torch.zeros((), device=self.numbers.device, requires_grad=True)  # marks that there is a gradient
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        how: dict[str, Any] = {"pool": pool, "capture_error_mode": "thread_local"}  # other threads may use the GPU
        with leaves_of(model) as leaves:
            aside = torch.cuda.Stream()  # whatever is made at a first call on such a stream is made here
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                once_M = likelihood_of(model, laid, self.numbers, temperature)
                torch.autograd.grad(once_M, leaves, torch.zeros_like(once_M), allow_unused=True)
                del once_M
            torch.cuda.current_stream().wait_stream(aside)
            torch.cuda.synchronize()
            with torch.cuda.graph(self.forward, **how):
                logp_M = likelihood_of(model, laid, self.numbers, temperature)
            self.dlogp_M = torch.zeros_like(logp_M)
            with torch.cuda.graph(self.backward, **how):
                self.grads = torch.autograd.grad(logp_M, leaves, self.dlogp_M, allow_unused=True)
        self.logp_M = logp_M.detach()


@contextmanager
def leaves_of(model: nn.Module) -> Iterator[list[Tensor]]:
    """Other leaves with the same memory in place of the trained weights: autograd remembers of a leaf on which stream it was first used, and
    that stream must not be asked anything while another one is captured."""
    made = {id(p): nn.Parameter(p.detach()) for p in model.parameters() if p.requires_grad}
    places = [(m, name, p) for m in model.modules() for name, p in m._parameters.items() if id(p) in made]
    try:
        for m, name, p in places:
            m._parameters[name] = made[id(p)]
        yield list(made.values())
    finally:
        for m, name, p in places:
            m._parameters[name] = p


class _Replay(torch.autograd.Function):
    """The gradient of the weights goes to where `accumulate` puts it, not through autograd: `anchor` only marks that there is one."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, one: Captured, numbers: Tensor, passes: Passes) -> Tensor:
        one.numbers.copy_(numbers, non_blocking=True)
        one.forward.replay()
        ctx.one, ctx.passes, ctx.turn = one, passes, passes.turn
        return one.logp_M.clone()

    @staticmethod
    def backward(ctx: Any, dlogp_M: Tensor) -> tuple[None, None, None, None]:
        one = ctx.one
        if ctx.turn != ctx.passes.turn:
            raise RuntimeError(
                "the gradient of a captured pass is asked for after another pass, which has overwritten what it needs"
            )
        one.dlogp_M.copy_(dlogp_M)
        one.backward.replay()
        accumulate([(p, g) for p, g in zip(one.params, one.grads, strict=True) if g is not None])
        return None, None, None, None


@torch.no_grad()
def accumulate(pairs: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
    """Add gradients to those of the parameters, or of their float32 masters (`weights/masters.py`), in few launches."""
    to = [(getattr(p, "master", p), g) for p, g in pairs]
    first = [(p, g) for p, g in to if p.grad is None]
    more = [(p.grad, g) for p, g in to if p.grad is not None]
    if first:
        made = [torch.empty_like(p) for p, _ in first]
        torch._foreach_copy_(made, [g for _, g in first])
        for (p, _), grad in zip(first, made, strict=True):
            p.grad = grad
    if more:
        wide = [torch.empty_like(grad) for grad, _ in more]
        torch._foreach_copy_(wide, [g for _, g in more])
        torch._foreach_add_([grad for grad, _ in more], wide)
