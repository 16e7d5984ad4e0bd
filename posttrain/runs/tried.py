"""Formulas are called on an example, and rollouts of written answers on the rows, before anything is loaded: what they refuse is told then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.example import example
from posttrain.core.method import Method
from posttrain.core.part import Part
from posttrain.core.protocols import RolloutRequest
from posttrain.core.types import Prompt, Rollout

FORMULAS = ("loss", "terms")  # credit and shaping may name parts of a reward, which an example does not have


def parameters(method: Method) -> None:
    """A UserError for a parameter that a part refuses; one that its defaults meet too is of the example, and of no parameter."""
    for stage, some in method.parts().items():
        for part in some if stage in FORMULAS else ():
            _told(part, formula)
    _told(method.rollout, without_prompts)


def rows(method: Method, prompts: Iterable[Prompt]) -> None:
    """A UserError for a row whose columns the rollout of a method cannot use: it would meet it at some step, or at none."""
    nobody: Any = Unread()
    for p in prompts:
        if found := refused(partial(method.rollout, RolloutRequest({"policy": nobody}, (p,)))):
            raise found


def _told(part: Part, call: Callable[[Part], None]) -> None:
    if part.params and (found := refused(partial(call, part))) and not refused(partial(call, Part(part.fn, part.card))):
        raise found


def formula(part: Part) -> None:
    batch = example()
    part.live()(batch if part.card.whole is None else part.card.whole(batch, {}, **part.params))


def without_prompts(part: Part) -> None:
    """A rollout of no prompts makes nothing, and reads its parameters first."""
    part.live()(RolloutRequest({}, ()))


def refused(call: Callable[[], object]) -> UserError | None:
    """What a call refuses; None where it is content, or fails because this is no run."""
    try:
        call()
    except UserError as error:
        return error
    except Exception:
        return None
    return None


class Unread:
    """In the place of a policy: answers are not read, only the columns beside them."""

    def written(self, prompt: Prompt, text: Any) -> Rollout:
        none = torch.zeros(1)
        return Rollout.single(prompt, none.long(), none.long(), none, text=str(text))

    def imitated(self, prompt: Prompt, said: Sequence[Any]) -> Rollout:
        return self.written(prompt, said[-1])
