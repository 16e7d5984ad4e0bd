"""Prefill into pages. The GPU computes small models faster than the host can launch their kernels, so a batch shape that comes
back becomes a captured graph: shapes are rounded up to a few different ones, and padding goes to the null page.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.inference.fused import Fused
from posttrain.inference.pages import Pages
from posttrain.inference.transfer import Values, to_device

MAX_GRAPH_FLOPS = 1e13  # a larger prefill keeps the device busy while the host launches it: no graph needed
MAX_GRAPHS = 64  # captured shapes; the least recently used goes first
SPAN = 256  # with a past, positions that attention may look at come in multiples of this: few different shapes
Inputs = tuple[
    Tensor, ...
]  # tokens, number of tokens of each sequence, block table; and their pasts, where any has one
Shape = tuple[int, int, int]  # sequences, tokens, and positions that attention may look at (0: no past)


class Prefill:
    """Writes the keys and values of right-padded sequences into their pages; `pool` is the memory that captured graphs share
    (None without a GPU)."""

    def __init__(self, fused: Fused, pages: Pages, pool: Any) -> None:
        self.fused, self.pages, self.pool = fused, pages, pool
        self.num_weights = sum(p.numel() for p in fused.model.parameters())
        self.seen: set[Shape] = set()
        self.graphs: OrderedDict[Shape, tuple[torch.cuda.CUDAGraph, Inputs]] = OrderedDict()

    def run(self, tokens_PL: Tensor, past: list[int], count: list[int], table_PM: Tensor) -> None:
        """Prefill `count` new tokens of each sequence after the `past` ones that its pages hold already. All inputs come from the
        host, and nothing is read back from the device, which may be busy with decode steps."""
        device, (rows, width) = self.pages.keys.device, _rounded(*tokens_PL.shape)
        used = max(map(sum, zip(past, count, strict=True))) if max(past) else 0
        if self.pool is None or 2 * self.num_weights * rows * width > MAX_GRAPH_FLOPS:
            whole: list[Values] = [tokens_PL, count, table_PM, past]
            return self._launch(used, *(to_device(x, device) for x in whole))
        more, longer = rows - tokens_PL.shape[0], width - tokens_PL.shape[1]
        tokens_PL, table_PM = F.pad(tokens_PL, (0, longer, 0, more)), F.pad(table_PM, (0, 0, 0, more))
        inputs: list[Values] = [tokens_PL, count + [0] * more, table_PM, past + [0] * more]
        used = min(-(-used // SPAN) * SPAN, table_PM.shape[1] * self.pages.size)
        self._replay((rows, width, used), tuple(to_device(x, device) for x in inputs[: 4 if used else 3]))

    def _launch(self, used: int, tokens_PL: Tensor, count_P: Tensor, table_PM: Tensor, *past_P: Tensor) -> None:
        """Kernel by kernel; `used` is 0 where no sequence has a past."""
        self.fused.prefill(tokens_PL, count_P, table_PM, self.pages, past_P[0] if used else None, used)

    def _replay(self, shape: Shape, given: Inputs) -> None:
        """As a graph, from the second time that this shape comes: most never come back."""
        if shape not in self.seen:
            self.seen.add(shape)
            return self._launch(shape[2], *given)
        if shape not in self.graphs:
            self._capture(shape, given)
        self.graphs.move_to_end(shape)
        graph, inputs = self.graphs[shape]
        for to, x in zip(inputs, given, strict=True):
            to.copy_(x)
        graph.replay()

    def _capture(self, shape: Shape, given: Inputs) -> None:
        """Kernels are compiled and cuBLAS has its workspace: this shape has run once before."""
        if len(self.graphs) == MAX_GRAPHS:
            self.graphs.popitem(last=False)
        inputs, graph = tuple(x.clone() for x in given), torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self.pool, capture_error_mode="thread_local"
        ):  # other threads may use the GPU
            self._launch(shape[2], *inputs)
        self.graphs[shape] = graph, inputs


def _rounded(sequences: int, length: int) -> tuple[int, int]:
    return 1 << (sequences - 1).bit_length(), -(-length // 32) * 32
