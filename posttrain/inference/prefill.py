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
from posttrain.inference.transfer import to_device

MAX_GRAPH_FLOPS = 1e13  # a larger prefill keeps the device busy while the host launches it: no graph needed
MAX_GRAPHS = 16  # captured shapes; the least recently used goes first
Inputs = tuple[Tensor, Tensor, Tensor]  # tokens, number of tokens of each sequence, block table


class Prefill:
    """Writes the keys and values of right-padded sequences into their pages; `pool` is the memory that captured graphs share
    (None without a GPU)."""

    def __init__(self, fused: Fused, pages: Pages, pool: Any) -> None:
        self.fused, self.pages, self.pool = fused, pages, pool
        self.num_weights = sum(p.numel() for p in fused.model.parameters())
        self.seen: set[tuple[int, int]] = set()
        self.graphs: OrderedDict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Inputs]] = OrderedDict()

    def run(self, tokens_PL: Tensor, past: list[int], count: list[int], table_PM: Tensor) -> None:
        """Prefill `count` new tokens of each sequence after the `past` ones that its pages hold already. All inputs come from the
        host, and nothing is read back from the device, which may be busy with decode steps."""
        device, size = self.pages.keys.device, _rounded(*tokens_PL.shape)
        if self.pool is None or max(past) or 2 * self.num_weights * size[0] * size[1] > MAX_GRAPH_FLOPS:
            used = max(map(sum, zip(past, count, strict=True))) if max(past) else 0
            tokens_PL, count_P, table_PM, past_P = (to_device(x, device) for x in (tokens_PL, count, table_PM, past))
            return self.fused.prefill(tokens_PL, count_P, table_PM, self.pages, past_P, used)
        more, longer = size[0] - tokens_PL.shape[0], size[1] - tokens_PL.shape[1]
        tokens_PL, table_PM = F.pad(tokens_PL, (0, longer, 0, more)), F.pad(table_PM, (0, 0, 0, more))
        given = (to_device(tokens_PL, device), to_device(count + [0] * more, device), to_device(table_PM, device))
        if size in self.graphs:
            self.graphs.move_to_end(size)
        elif size in self.seen:
            self._capture(size, given)
        else:  # most shapes never come back
            self.seen.add(size)
            return self.fused.prefill(*given, self.pages)
        graph, inputs = self.graphs[size]
        for to, x in zip(inputs, given, strict=True):
            to.copy_(x)
        graph.replay()

    def _capture(self, size: tuple[int, int], given: Inputs) -> None:
        """Kernels are compiled and cuBLAS has its workspace: this shape has run once before."""
        if len(self.graphs) == MAX_GRAPHS:
            self.graphs.popitem(last=False)
        inputs, graph = (given[0].clone(), given[1].clone(), given[2].clone()), torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self.pool, capture_error_mode="thread_local"
        ):  # other threads may use the GPU
            self.fused.prefill(*inputs, self.pages)
        self.graphs[size] = graph, inputs


def _rounded(sequences: int, length: int) -> tuple[int, int]:
    return 1 << (sequences - 1).bit_length(), -(-length // 32) * 32
