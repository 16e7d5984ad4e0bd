"""What plans share whose policy is told in its prompt what is wanted: a class of quality, a direction among rewards."""

from __future__ import annotations

from posttrain.core.conditioning import ARTIFACT, Conditioning
from posttrain.core.errors import UserError
from posttrain.core.plan import Context
from posttrain.runs.run import Run
from posttrain.runs.trained import conditioning, find_trained


def refuse_conditioned(context: Context, plan: str) -> None:
    """A policy that was told before would be told twice: the plan begins with one that was not."""
    which = find_trained(context.config.model)
    if which is None:
        return
    with Run.open(which.folder) as run:
        told = conditioning(run)
    if told is not None:
        raise UserError(
            f"{which} was trained to be told what is wanted ({', '.join(told.names)}), and {plan} would tell it twice; begin with the model "
            f"that it began with"
        )


def keep_conditioning(context: Context, how: Conditioning) -> None:
    """Written into the run's folder, for whoever uses its policy, and into its notes."""
    context.run.write_artifact(ARTIFACT, [how.row()])
    context.notes["told"] = list(how.names)
