"""posttrain: make a generative policy better from feedback."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> where it lives; imported on first use, so that `import posttrain` stays under a second
_EXPORTS = {
    "Batch": "core.types",
    "Group": "core.types",
    "Method": "core.method",
    "Phase": "core.plan",
    "Plan": "core.plan",
    "Prompt": "core.types",
    "Rollout": "core.types",
    "UserError": "core.errors",
    "find": "core.registry",
    "load_model": "models.load",
    "parts": "core.registry",
    "run": "api",
    "train": "train",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"posttrain.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'posttrain' has no attribute {name!r}")
