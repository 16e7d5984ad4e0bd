"""Texts read into pages. Small models read faster than the host can launch kernels, so reads of a size that comes back become
a captured graph: sizes are rounded up to few different ones, and padding goes to the page that belongs to nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.inference.fused import Fused
from posttrain.inference.pages import Pages
from posttrain.inference.transfer import sent

WORTH = 1e13  # FLOPs; what takes longer keeps the device busy while the host launches it
KEPT = 16  # captured sizes
Given = tuple[Tensor, Tensor, Tensor]  # tokens, how many of each text, their pages


class Reader:
    """Reads texts of right-padded tokens; `pool` is the memory that captured graphs take turns in (None without a GPU)."""

    def __init__(self, fused: Fused, pages: Pages, pool: Any) -> None:
        self.fused, self.pages, self.pool = fused, pages, pool
        self.weights = sum(p.numel() for p in fused.model.parameters())
        self.seen: set[tuple[int, int]] = set()
        self.graphs: OrderedDict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Given]] = OrderedDict()

    def read(self, tokens_PL: Tensor, past: list[int], count: list[int], table_PM: Tensor) -> None:
        """Read count new tokens of each text after the past ones that its pages hold already. All of it comes from the host,
        and nothing is asked back from the device, which may be busy with steps."""
        device, size = self.pages.keys.device, _rounded(*tokens_PL.shape)
        if self.pool is None or max(past) or 2 * self.weights * size[0] * size[1] > WORTH:
            used = max(map(sum, zip(past, count, strict=True))) if max(past) else 0
            tokens_PL, count_P, table_PM, past_P = (sent(x, device) for x in (tokens_PL, count, table_PM, past))
            return self.fused.read(tokens_PL, count_P, table_PM, self.pages, past_P, used)
        more, longer = size[0] - tokens_PL.shape[0], size[1] - tokens_PL.shape[1]
        tokens_PL, table_PM = F.pad(tokens_PL, (0, longer, 0, more)), F.pad(table_PM, (0, 0, 0, more))
        given = (sent(tokens_PL, device), sent(count + [0] * more, device), sent(table_PM, device))
        if size in self.graphs:
            self.graphs.move_to_end(size)
        elif size in self.seen:
            self._capture(size, given)
        else:  # most sizes never come back
            self.seen.add(size)
            return self.fused.read(*given, self.pages)
        graph, inputs = self.graphs[size]
        for to, x in zip(inputs, given, strict=True):
            to.copy_(x)
        graph.replay()

    def _capture(self, size: tuple[int, int], given: Given) -> None:
        """Kernels are compiled and cuBLAS has its memory: this size has been read before."""
        if len(self.graphs) == KEPT:
            self.graphs.popitem(last=False)
        inputs, graph = (given[0].clone(), given[1].clone(), given[2].clone()), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.fused.read(*inputs, self.pages)
        self.graphs[size] = graph, inputs


def _rounded(texts: int, length: int) -> tuple[int, int]:
    return 1 << (texts - 1).bit_length(), -(-length // 32) * 32
