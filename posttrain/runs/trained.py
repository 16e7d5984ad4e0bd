"""A run as a model: `runs/NAME`, or `runs/NAME@best`, wherever a model is named.

NAME is a run under the folder of all runs, or a path; @best is the checkpoint with the best held-out score, @train-000019 one that
is still there, and without @ it is the newest. A run needs no other run to be read: it keeps the name of the model it began with.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.conditioning import ARTIFACT, Classes, Conditioning, Directions, Wanted, example, of_row
from posttrain.core.config import Config, from_dict
from posttrain.core.errors import UserError, nearest, unknown
from posttrain.policies.load import NAMED
from posttrain.policies.peft_folder import base_of
from posttrain.runs.best import BEST
from posttrain.runs.checkpoint import Checkpoint, Damaged, listing, name_of, newest, read
from posttrain.runs.run import Run

Load = Callable[[Config], Any]


@dataclass(frozen=True)
class Trained:
    """A run, and which of its checkpoints; phase: of a run with several, "" for the last that trained a policy."""

    folder: Path
    at: str = ""
    phase: str = ""

    def __str__(self) -> str:
        return f"{self.folder}@{self.at}" if self.at else str(self.folder)


def find_trained(name: str, runs: str | Path = "runs", phase: str = "") -> Trained | None:
    """The run that a name means, if it means one; pocket, pocket-2 and smollm2 never do."""
    if name in NAMED:
        return None
    head, _, at = name.rpartition("@")
    for spec, which in ((name, ""), (head, at)):
        for folder in (Path(runs) / spec, Path(spec)) if spec else ():
            if (folder / "run.sqlite").exists() and (folder / "config.json").exists():
                return Trained(folder, which, phase)
    return None


def run_folder(name: str, runs: str | Path = "runs") -> Path:
    """The folder of a run by its name under `runs`, or by its path; an error where there is none."""
    for folder in (Path(runs) / name, Path(name)):
        if (folder / "run.sqlite").exists() and (folder / "config.json").exists():
            return folder
    there = sorted(p.parent.name for p in Path(runs).glob("*/run.sqlite"))
    if not there:
        raise UserError(f"no run named {name!r}: there are no runs in {runs}; start one: posttrain run grpo")
    raise unknown("run", name, there)


def check_name_of_run(name: str, runs: str | Path) -> None:
    """A name that is nearly that of a run is an error that suggests the run, before anything else is searched."""
    there = [p.parent.name for p in Path(runs).glob("*/run.sqlite")]
    base = name.rpartition("@")[0] or name
    if base.startswith(f"{runs}/") and not Path(base).exists():
        if not there:
            raise UserError(f"no run named {base!r}: there are no runs in {runs}; start one: posttrain run grpo")
        raise unknown("run", base.removeprefix(f"{runs}/"), there)
    if "/" not in base and base not in ("", *NAMED) and not Path(base).exists() and nearest(base, there):
        raise unknown("model or run", name, there)


# ---- which weights


def last_phase(run: Run) -> str:
    """The newest phase that trained a role that generates answers; where several roles do and the last to be trained is not
    the policy, it is ambiguous and an error."""
    trained: list[str] = [phase for phase in run.store.phases() if listing(run.checkpoints, phase)]
    if not trained:
        raise UserError(f"{run.folder} has no checkpoint yet; let it run for save_every steps, or use --model")
    roles = {phase: role for phase in trained if (role := answering_role(run, phase))}
    if not roles:
        raise UserError(f"{run.folder} holds a reward model, which answers nothing; use a run that trains a policy")
    last = list(roles)[-1]
    ends = {role: phase for phase, role in roles.items()}  # the newest phase of each role
    if len(ends) > 1 and roles[last] != "policy":
        told = ", ".join(f"--phase {phase} (the {role})" for role, phase in ends.items())
        raise UserError(f"{run.folder} trained several roles that answer; say which is meant: {told}")
    return last


def answering_role(run: Run, phase: str) -> str:
    """The role that a phase trained, "" where it does not generate answers. Older runs did not record roles: a score head decides."""
    if phase in run.store.roles():
        role, answers = run.store.roles()[phase]
        return role if answers else ""
    ck = newest(run.checkpoints, phase)
    return "policy" if ck is not None and not any(k.startswith("score.") for k in ck.tables["weights"]) else ""


def place(run: Run, which: Trained) -> Path:
    """The folder of the checkpoint that is meant; the newest one is not read, so that a damaged one is found when it is."""
    phase = which.phase or last_phase(run)
    if which.at == "best":
        if not (found := listing(run.folder / BEST, phase)):
            raise UserError(
                f"{which}: no held-out score was measured between its steps (--eval-every), so none is known to be the best; "
                f"write {run.folder} for the newest"
            )
        return found[0][1]
    there = listing(run.checkpoints, phase)
    if not there and not which.at:
        raise UserError(f"{run.folder} has no checkpoint of phase {phase!r}; it has: {', '.join(run.store.phases())}")
    if not which.at:
        return there[0][1]
    for step, path in there:
        if name_of(phase, step) == which.at:
            return path
    known = [*(p.name for _, p in there), *(["best"] if (run.folder / BEST).exists() else [])]
    raise unknown(f"checkpoint of {run.folder}", which.at, known)


def checkpoint_of(run: Run, which: Trained) -> Checkpoint:
    """The checkpoint that is meant, checked against its hashes; of the newest ones a damaged one is passed over."""
    path = place(run, which)
    if not which.at:
        found = newest(run.checkpoints, path.name.rpartition("-")[0])
        assert found is not None
        return found
    try:
        return read(path)
    except Damaged as damage:
        raise UserError(f"{path} is damaged: {damage}; use another checkpoint") from None


def weights_digest(which: Trained) -> str:
    """`train-000039 3f2a91c07d`: which weights a name means now, without reading them."""
    with Run.open(which.folder) as run:
        path = place(run, which)
    try:
        return f"{path.name} {json.loads((path / 'state.json').read_text())['sha256'][:10]}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return path.name


# ---- as a policy


def settings_of(run: Run) -> Config:
    """The settings a run was trained with; its model is the one at the root, not another run."""
    known = {f.name for f in dataclasses.fields(Config)}
    config: Config = from_dict(Config, {k: v for k, v in run.config.items() if k in known})
    return dataclasses.replace(config, model=run.config.get("base") or config.model)


def base_model(which: Trained) -> str:
    """The model at the root; where that is the folder of an adapter, the one that it belongs to."""
    with Run.open(which.folder) as run:
        return base_of(settings_of(run).model)


def load_trained(which: Trained, load: Load, device: str = "", dtype: str | None = None) -> tuple[Any, Config]:
    """The policy as the run has trained it, adapters beside the weights, and its settings. load: makes a policy of settings."""
    with Run.open(which.folder) as run:
        config = settings_of(run)
        config = dataclasses.replace(config, device=device, dtype=dtype or config.dtype)
        ck = checkpoint_of(run, which)
        policy = load(config)
        run.put(ck, policy)
        tell_wanted(run, policy)
    return policy, config


# ---- as it was told what is wanted


def conditioning(run: Run) -> Conditioning | None:
    """The classes or directions that the policy of a run learned to follow."""
    return of_row(run.read_artifact(ARTIFACT)[0]) if run.artifact(ARTIFACT).exists() else None


def tell_wanted(run: Run, policy: Any) -> None:
    """A policy of classes is asked for the best one; a direction must be given by whoever uses it."""
    how = conditioning(run)
    if isinstance(how, Classes):
        policy.wanted = Wanted(how, how.asked())


def prefer(which: Trained, policy: Any, text: str) -> Any:
    """The policy of a run, told what is wanted: --prefer, or the best class; a policy of directions is not used without one."""
    with Run.open(which.folder) as run:
        how = conditioning(run)
    if how is None and text:
        raise UserError(f"{which} was not trained to be told what is wanted; leave --prefer away")
    policy.wanted = None if how is None else Wanted(how, how.asked(text))
    return policy


def refuse_directions(which: Trained, system: str) -> None:
    """A policy that follows directions is trained further only where a system message says which one."""
    with Run.open(which.folder) as run:
        how = conditioning(run)
    if isinstance(how, Directions) and not system:
        told = example(how)["content"]
        raise UserError(
            f"{which} follows a direction among {', '.join(how.names)}, and training it further does not say which; write one: --system {told!r}"
        )


def keep_wanted(run: Run, policy: Any) -> None:
    """A run that begins with such a policy goes on as it was told, and says so to whoever uses it."""
    told: Wanted | None = getattr(policy, "wanted", None)
    if told is not None and not run.artifact(ARTIFACT).exists():
        run.write_artifact(ARTIFACT, [told.how.row()])
