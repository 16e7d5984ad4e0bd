"""Triton where it is installed. CPU builds of torch come without it: the kernels are then not defined, and the plain-torch version
beside each of them runs instead."""

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

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # for tests: kernels then run on any device, as Python
_plain = False


def use_kernels(x: Tensor) -> bool:
    """Whether kernels compute with this tensor; otherwise their plain-torch versions do."""
    return triton is not None and not _plain and (x.is_cuda or INTERPRETED)


@contextmanager
def plain_torch() -> Iterator[None]:
    """Plain-torch versions even where kernels would run: for comparing the two."""
    global _plain
    _plain = True
    try:
        yield
    finally:
        _plain = False


__all__ = ["plain_torch", "tl", "triton", "use_kernels"]
