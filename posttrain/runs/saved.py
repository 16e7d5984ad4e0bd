"""Load what a finished run trained, for use in another: a reward model, a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.policies.load import load_model
from posttrain.policies.peft_folder import adapted
from posttrain.rewards.scorers.learned import RUN_READERS
from posttrain.runs.checkpoint import listing, newest
from posttrain.runs.run import Run
from posttrain.runs.trained import Trained, checkpoint_of, find_trained, settings_of, tell_wanted
from posttrain.weights.teacher import RUN_READERS as TEACHER_READERS


def load_reward_model(folder: Path, device: str = "", phase: str = "", at: str = "") -> Any:
    """The policy with a score head that a run trained (in the newest phase that did, unless one is named), frozen. at: which of
    its checkpoints, like best."""
    with Run.open(folder) as run:
        phase = phase or scoring_phase(run)
        config = settings_of(run)
        policy = load_model(config.model, device or None, config.dtype, config.bits)
        policy = adapted(policy, config).as_reward_model()
        policy.layout = config.layout
        tell_wanted(run, policy)
        one_score(run, phase)
        if at:
            run.put(checkpoint_of(run, Trained(folder, at, phase)), policy)
        elif not run.load_weights(phase, policy):
            raise UserError(
                f"--reward {folder}: its last checkpoint is damaged, and a reward must not change; give the command that made "
                "it again, which does the last steps again"
            )
    return policy.eval().requires_grad_(False)


def one_score(run: Run, phase: str) -> None:
    """A reward is one number; a model that was trained for several (DPA's) is none by itself."""
    ck = newest(run.checkpoints, phase)
    head = ck.tables["weights"].get("score.out.weight") if ck is not None else None
    if head is not None and head.shape[0] > 1:
        raise UserError(
            f"--reward {run.folder}: its reward model gives {head.shape[0]} scores, and a reward is one; train one of its own for each: "
            "posttrain run reward-model --task pairs.jsonl"
        )


def scoring_phase(run: Run) -> str:
    """The newest phase that trained a reward model; a sentence where there is none, or where it has not ended."""
    began = run.store.phases()
    trained = [phase for phase in began if listing(run.checkpoints, phase)]
    scoring = [phase for phase in trained if scores(run, phase)]
    if not began or not trained:
        raise UserError(f"--reward {run.folder}: this run has no checkpoint yet; let it end first")
    if not scoring:
        raise UserError(
            f"--reward {run.folder}: this run trained a policy, which gives no scores; name a run of reward-model"
        )
    if not run.finished(scoring[-1]):
        raise UserError(
            f"--reward {run.folder}: this run has not ended, and a reward must not change under a run; "
            "the command that started it goes on with it"
        )
    return scoring[-1]


def scores(run: Run, phase: str) -> bool:
    """Whether a phase trained something with a score head. Older runs did not record roles: the weights decide."""
    if phase in run.store.roles():
        return not run.store.roles()[phase][1]
    ck = newest(run.checkpoints, phase)
    return ck is not None and any(k.startswith("score.") for k in ck.tables["weights"])


def load_trained_teacher(name: str, device: str = "", dtype: str = "", check: bool = False) -> Any:
    """The policy that a run trained, its adapters merged, where the name is that of a run; None where it is not. check: only whether it is."""
    from posttrain.runs.build import merged

    which = find_trained(name)
    return which if check or which is None else merged(which, Config(model=name, device=device, dtype=dtype))


RUN_READERS.append(load_reward_model)
TEACHER_READERS.append(load_trained_teacher)
