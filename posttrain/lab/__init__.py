"""The lab: small controlled experiments that could refute a claim, and fair comparisons of methods."""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "check": "record",
    "claims": "claim",
    "compare": "compare",
}  # imported on first use: evidence needs no torch
__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"posttrain.lab.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'posttrain.lab' has no attribute {name!r}")
