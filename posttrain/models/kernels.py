"""Triton where it is installed. CPU builds of torch come without it: kernels are then not defined, and their plain twins serve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels as Python, for tests: then they serve any device
_twins = False


def serve(x: Tensor) -> bool:
    """Whether kernels or their plain twins serve this tensor."""
    return triton is not None and not _twins and (x.is_cuda or INTERPRETED)


@contextmanager
def twins() -> Iterator[None]:
    """Plain twins, wherever kernels would serve."""
    global _twins
    _twins = True
    try:
        yield
    finally:
        _twins = False


__all__ = ["serve", "tl", "triton", "twins"]
