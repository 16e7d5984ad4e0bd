"""Triton where it is installed. CPU builds of torch come without it: kernels are then not defined, and their plain twins serve."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["tl", "triton"]
