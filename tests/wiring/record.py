"""The spies themselves: each stands in for one function of the loop, calls it, and writes into the trace what went through."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import suffix
from posttrain.core.loop import Loop
from posttrain.core.plan import Copy
from posttrain.core.types import Rollout
from posttrain.losses.objective import objective
from posttrain.models.sampling import Sample
from posttrain.policies.language import LanguagePolicy
from posttrain.rollouts.sources import LocalSource
from posttrain.runs import plans
from posttrain.train import select
from posttrain.weights.learner import Learner
from tests.wiring.trace import Draw, Pass, Ran, Step, Trace, Update, fingerprint

LIVE = (
    "logp_BT", "value_BT", "score_B", "scores_BK", "entropy_BT", "logz_BT", "mixed_logp_BT", "dist_BTV", "hidden_BTD",
)  # fmt: skip
_STEPS, _NEXT, _UPDATE, _ACT = Loop.steps, LocalSource.next, Learner.update, LanguagePolicy.act
_DO = plans.Walk.do


def loops(trace: Trace) -> Callable[[Loop], Iterator[int]]:
    def steps(loop: Loop) -> Iterator[int]:
        trace.phases.append(Ran(loop.phase, loop.method, loop.role, loop.config.steps, loop))
        trace.roles |= {loop.role: loop.policy, **getattr(loop.source, "policies", {})}
        if loop.learner.reference is not None:
            trace.roles["reference"] = loop.learner.reference.policy
        for step in _STEPS(loop):
            trace.now = (loop.phase, step)
            yield step
        trace.now = ("", -1)

    return steps


def sources(trace: Trace) -> Callable[..., Any]:
    def following(source: Any, step: int) -> Any:
        groups, report = _NEXT(source, step)
        trace.steps.append(Step(*trace.now, groups))
        return groups, report

    return following


def kept(trace: Trace) -> Callable[..., Any]:
    def chosen(loop: Loop, groups: Any) -> Any:
        trace.steps[-1].kept = select(loop, groups)
        return trace.steps[-1].kept

    return chosen


def updates(trace: Trace) -> Callable[..., Any]:
    def update(learner: Learner, rows: Any, batch: Any, step: int) -> Any:
        held = fingerprint(learner.reference.policy) if learner.reference is not None else ""
        streams = {k: x.detach().clone() for k, x in batch.streams.items()}
        before, role = learner.updates, trace.phases[-1].role if learner.objective is None else learner.goal.role
        made = Update(*trace.now, role, list(rows), streams, fingerprint(learner.policy), held)
        trace.updates.append(made)
        seen = _UPDATE(learner, rows, batch.but(row_B=torch.arange(len(rows))), step)
        made.after, made.optimiser_steps = fingerprint(learner.policy), learner.updates - before
        return seen

    return update


def objectives(trace: Trace) -> Callable[..., Any]:
    def loss_of(batch: Any, *rest: Any) -> Any:
        loss, parts = objective(batch, *rest)
        live = {k: batch[k] for k in LIVE if k in batch and batch[k].requires_grad} if loss.requires_grad else {}
        grads = torch.autograd.grad(loss, list(live.values()), retain_graph=True, allow_unused=True) if live else ()
        pull = {k: -g for k, g in zip(live, grads, strict=True) if g is not None}
        made = trace.updates[-1]
        at, T = batch["row_B"], made.batch["mask_BT"].shape[1]
        rows = {k: x for k, x in batch.streams.items() if suffix(k) in ("B", "BK", "BT", "BTV", "BTD", "BTK")}
        heads = {k: x.detach().clone() for k, x in batch.streams.items() if suffix(k) == "VD"}
        seen = (_placed(rows, at, T, made), float(loss.detach()), _placed(pull, at, T, made), heads)
        made.passes.append(Pass(at, *seen))
        return loss, parts

    return loss_of


def _placed(streams: dict[str, Tensor], at: Tensor, T: int, made: Update) -> dict[str, Tensor]:
    """Streams of some rows where these stand in the whole batch; 0 elsewhere."""
    out = {}
    for name, x in streams.items():
        timed = suffix(name).startswith("BT")
        size = (len(made.rows), *((T, *x.shape[2:]) if timed else x.shape[1:]))
        out[name] = torch.zeros(size, dtype=x.dtype)
        out[name][(at, slice(x.shape[1])) if timed else at] = x.detach().cpu()
    return out


def parts(trace: Trace) -> Callable[..., None]:
    def do(walk: Any, part: Any) -> None:
        context = walk.context
        trace.parts.append(f"{part.role}->{part.to}" if isinstance(part, Copy) else part.name)
        trace.roles |= context.roles
        trace.now = (getattr(part, "name", ""), -1)
        _DO(walk, part)
        trace.roles |= context.roles

    return do


def draws(trace: Trace) -> Callable[..., Any]:
    def act(policy: Any, pending: Any, keys: Any, how: Any, *rest: Any, **named: Any) -> Any:
        made = _ACT(policy, pending, keys, how, *rest, **named)
        read = [policy.decode(turns[-1].observation.tokens) for turns in pending]
        texts = [turn.text for turns in made for turn in turns]
        trace.samples.append(Draw(*trace.now, trace.roles_of(policy), fingerprint(policy), read, texts, how))
        return made

    return act


def said(texts: Sequence[str]) -> Callable[..., Any]:
    """Every sampler says these texts in turn, with the log-probabilities that it gives them."""
    following = itertools.cycle(texts)

    def generate(policy: Any, engine: Any, rows: Any, keys: Any, how: Any, finished: Any = None) -> Any:
        return [
            [_sample(policy, row, next(following), how) for _ in mine] for row, mine in zip(rows, keys, strict=True)
        ]

    return generate


def _sample(policy: Any, row: Any, text: str, how: Any) -> Sample:
    ids = [*policy._ids(text, "a text"), policy.tokenizer.eos_token_id][: how.max_tokens]
    actions = torch.tensor(ids)
    begun = torch.cat([row.observation.tokens, row.actions])
    whole = Rollout.single(None, begun, actions, torch.zeros(len(ids)))  # type: ignore[arg-type]
    with torch.no_grad():
        logp_T = policy.forward([whole], ("logp_BT",))["logp_BT"][0].cpu()
    return Sample(actions, logp_T, len(ids) <= how.max_tokens and ids[-1] == policy.tokenizer.eos_token_id)
