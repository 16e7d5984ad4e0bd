"""posttrain: make a generative policy better from feedback."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# name -> where it lives; imported on first use, so that `import posttrain` stays under a second
_EXPORTS = {
    "Batch": "core.batch",
    "Config": "core.config",
    "Environment": "core.protocols",
    "Episode": "core.protocols",
    "Group": "core.types",
    "Method": "core.method",
    "Objective": "core.method",
    "Observation": "core.turn",
    "Phase": "core.plan",
    "Plan": "core.plan",
    "Policy": "core.protocols",
    "Prompt": "core.types",
    "Rollout": "core.types",
    "RolloutRequest": "core.protocols",
    "Sampling": "core.sampling",
    "Step": "core.protocols",
    "Turn": "core.turn",
    "UserError": "core.errors",
    "find": "core.registry",
    "find_method": "core.method",
    "load_model": "policies.load",
    "parts": "core.registry",
    "run": "api",
    "run_config": "api",
    "run_plan": "runs.plans",
    "train": "train",
}
_MODULES = {"rng": "core.rng"}
__all__ = [*_EXPORTS, *_MODULES, "__version__"]

if TYPE_CHECKING:  # for editors and type checkers
    from posttrain.api import run as run
    from posttrain.api import run_config as run_config
    from posttrain.core import rng as rng
    from posttrain.core.batch import Batch as Batch
    from posttrain.core.config import Config as Config
    from posttrain.core.errors import UserError as UserError
    from posttrain.core.method import Method as Method
    from posttrain.core.method import Objective as Objective
    from posttrain.core.method import find_method as find_method
    from posttrain.core.plan import Phase as Phase
    from posttrain.core.plan import Plan as Plan
    from posttrain.core.protocols import Environment as Environment
    from posttrain.core.protocols import Episode as Episode
    from posttrain.core.protocols import Policy as Policy
    from posttrain.core.protocols import RolloutRequest as RolloutRequest
    from posttrain.core.protocols import Step as Step
    from posttrain.core.registry import find as find
    from posttrain.core.registry import parts as parts
    from posttrain.core.sampling import Sampling as Sampling
    from posttrain.core.turn import Observation as Observation
    from posttrain.core.turn import Turn as Turn
    from posttrain.core.types import Group as Group
    from posttrain.core.types import Prompt as Prompt
    from posttrain.core.types import Rollout as Rollout
    from posttrain.policies.load import load_model as load_model
    from posttrain.runs.plans import run_plan as run_plan
    from posttrain.train import train as train


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"posttrain.{_MODULES[name]}")
    if name in _EXPORTS:
        return getattr(import_module(f"posttrain.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'posttrain' has no attribute {name!r}")
