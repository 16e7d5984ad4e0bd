"""How a call begins a run or goes on with it, besides the settings: from another run, for longer, for so many hours."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.critic import SHARED
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.core.pause import Pause
from posttrain.runs.build import load_policy
from posttrain.runs.checkpoint import Checkpoint
from posttrain.runs.inputs import inputs
from posttrain.runs.run import Run
from posttrain.runs.trained import (
    Trained,
    base_model,
    check_name_of_run,
    checkpoint_of,
    find_trained,
    load_trained,
    run_folder,
    weights_digest,
)

_TRAINED = (
    "lora",
    "lora_targets",
    "adapter",
    "merge_adapter",
    "bits",
)  # settings that say which parameters are trained


@dataclass
class Start:
    """source: a run whose weights and optimiser state this one begins with; optimizer: whether the state too. extend: a run may go
    on past the end of its schedule. use: files of parts. reuse: a run that had ended is not measured again."""

    source: str = ""
    optimizer: bool = True
    extend: bool = False
    use: tuple[str, ...] = ()
    reuse: bool = False
    pause: Pause = field(default_factory=Pause)

    def of_a_plan(self, name: str) -> None:
        for given, option in ((self.source, "--from"), (self.extend, "--extend-schedule")):
            if given:
                raise UserError(f"{name} is a plan of several phases, and {option} is for a single method; use --model")

    def identity(self, config: Config, runs: str | Path, model: bool = True) -> dict[str, Any]:
        """As settings: the content of files and of other runs, so that a change of them is noticed; model: it is named."""
        critic = "" if config.critic in ("", SHARED) else config.critic
        out: dict[str, Any] = {"inputs": inputs(config.reward, self.use) | inputs(critic)}
        if config.user and (plays := find_trained(config.user, runs)) is not None:
            out["user"] = {config.user: weights_digest(plays)}  # other weights are another user
        which = find_trained(config.model, runs) if model else None
        if which is not None:
            if which.folder.resolve() == (Path(runs) / config.name).resolve():
                raise UserError(
                    f"{which} cannot begin with itself; use another --name, or more --steps to go on with it"
                )
            begun: dict[str, Any] = {config.model: weights_digest(which)}
            begun |= {"optimizer": self.optimizer} if self.source else {}
            out |= {"base": base_model(which), "begun": begun}
        return out

    def resolved(self, config: Config, runs: str | Path) -> Config:
        """The settings with the model's folder where it is named as a run; a name that is nearly a run's is an error."""
        if which := find_trained(config.model, runs):
            if config.adapter:
                raise UserError(f"{which} is a run, which has its own adapters; --adapter is of a model")
            return dataclasses.replace(config, model=str(which))
        check_name_of_run(config.model, runs)
        return config

    def for_workers(self, config: Config, runs: str | Path) -> Config:
        """The settings that workers of other processes build the same policy from; a sentence where none do."""
        if config.sampler == "local":
            return config
        if self.source and self.optimizer and (config.lora or config.adapter):
            raise UserError(
                f"workers cannot build the adapters of {self.source} beside its weights; use --sampler local, or --no-optimizer"
            )
        return self.resolved(config, runs)

    def policy(self, config: Config, runs: str | Path) -> Any:
        """The policy to begin with: adapters stay beside the weights where their optimiser state is wanted too."""
        which = self.which(runs)
        if which is None or not self.optimizer:
            return load_policy(self.resolved(config, runs))
        with Run.open(which.folder) as run:
            was = {k: run.config.get(k, getattr(Config(), k)) for k in _TRAINED}
        now = {k: getattr(config, k) for k in _TRAINED}
        if was != now:
            told = " ".join(f"--{k.replace('_', '-')} {v!r}" for k, v in was.items() if v != now[k])
            raise UserError(
                f"the optimiser state of {which} is of other parameters (it was trained with {told}); use that here too, or "
                "--no-optimizer to begin with its weights alone"
            )
        if not config.lora and not config.adapter:
            return load_policy(self.resolved(config, runs))
        policy, _ = load_trained(which, load_policy, config.device, config.dtype)
        policy.temperature, policy.layout = config.sampling.temperature or 1.0, config.layout
        policy.thinking = config.think
        return policy

    def which(self, runs: str | Path) -> Trained | None:
        if not self.source:
            return None
        return find_trained(self.source, runs) or Trained(run_folder(self.source, runs))

    def load_optimisers(self, loop: Loop, runs: str | Path) -> None:
        """The optimiser state of the other run into a loop that has not begun; warm-up and schedule begin anew."""
        which = self.which(runs)
        if which is None or not self.optimizer:
            return
        with Run.open(which.folder) as run:
            same_optimiser(which, run.config, loop)
            ck = checkpoint_of(run, which)
        if "optimiser" not in ck.tables:
            raise UserError(
                f"{which} has weights only, no optimiser state; add --no-optimizer, or use the newest checkpoint"
            )
        for i, (role, learner) in enumerate(loop.learners.items()):
            put_state(learner, ck, "" if i == 0 else f"{role}.")


def same_optimiser(which: Trained, was: dict[str, Any], loop: Loop) -> None:
    parts = was.get("parts", {})
    before = [p["part"] for p in parts.get("optimiser", [])]
    if before and before != [loop.method.optimiser.name]:
        raise UserError(
            f"{which} was trained with the optimiser {before[0]}, whose state {loop.method.optimiser.name} cannot use; "
            f"use --optimiser {before[0]}, or --no-optimizer"
        )


def put_state(learner: Any, ck: Checkpoint, head: str) -> None:
    """Moments, float32 masters and a critic, by the names of the parameters."""
    tables = {
        k.removeprefix(head): t for k, t in ck.tables.items() if k.startswith(head) and k.count(".") == head.count(".")
    }
    if "optimiser" not in tables:
        return
    names = {key.rsplit("|", 1)[0] for key in tables["optimiser"]}
    own = {name for name, _ in learner.named_parameters()}
    if not names <= own:
        raise UserError(
            f"the optimiser state is of other parameters ({', '.join(sorted(names - own)[:2])} ...); add --no-optimizer to begin "
            "with the weights alone"
        )
    critic = {k: x for k, x in tables.get("weights", {}).items() if k.startswith("critic.")}
    if critic and getattr(learner.policy, "critic", None) is not None:
        learner.policy.load_state_dict(critic, strict=False)
    reference = {"reference": learner.reference.tensors()} if learner.reference is not None else {}
    masters = tables.get("weights", {}) | tables.get(
        "masters", {}
    )  # several processes keep float32 weights and no masters
    learner.load({"optimiser": tables["optimiser"], "masters": masters, **reference}, {"updates": 0, "skipped": 0})
