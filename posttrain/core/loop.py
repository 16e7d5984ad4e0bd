"""What the loop holds: the live parts of a method, its learners by role, the source of rollouts, the run that records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.metrics import Metrics, Stopwatch, describe
from posttrain.core.pause import Pause, Paused
from posttrain.core.protocols import Environment, Policy, Source
from posttrain.core.ranks import by_lead, ranks
from posttrain.core.types import Group


@dataclass
class Loop:
    """Built by `posttrain.runs.build`; `train` drives it. Everything with state is listed in `stateful`."""

    config: Config
    method: Method
    env: Environment
    learners: dict[str, Any]  # by role; the policy's own comes first
    source: Source
    run: Any
    evaluator: Callable[[Policy], Metrics] | None = None  # held-out metrics of the current policy
    phase: str = "train"
    role: str = "policy"  # what is trained: a plan also trains reward models, verifiers, opponents
    select: list[Any] = field(default_factory=list)
    shaping: list[Any] = field(default_factory=list)
    callbacks: list[Any] = field(
        default_factory=list
    )  # objects with any of on_rollouts, on_step, on_eval, on_checkpoint, ...
    monitors: list[Any] = field(default_factory=list)  # each checks every step: the mismatch guard, silence
    watch: Stopwatch = field(default_factory=Stopwatch)  # seconds by stage
    advantage: Any = field(init=False)
    pause: Pause = field(default_factory=Pause)  # whether to stop before the end, to go on another time
    stopping: str = ""  # why a callback asked to stop early
    unscored: str = ""  # why answers of the last step could not be scored
    evaluated: int = -1  # the last step that was followed by an evaluation
    done: int = -1  # the last step that was done, now or before a restart

    def __post_init__(self) -> None:
        self.advantage = self.method.advantage.live()
        for learner in self.learners.values():
            learner.meanwhile = getattr(self.source, "meanwhile", None)

    @property
    def learner(self) -> Any:
        """The policy's own learner."""
        return next(iter(self.learners.values()))

    @property
    def policy(self) -> Policy:
        found: Policy = self.learner.policy
        return found

    def learners_of(self, role: str) -> list[Any]:
        """The learners that learn from this role's rollouts, in the order of the objectives."""
        return [learner for learner in self.learners.values() if learner.goal.rows == role]

    @property
    def shared(self) -> bool:
        """One policy plays every role, so it learns from all of them at once."""
        return len(getattr(self.source, "policies", {})) == 1

    def steps(self) -> Iterator[int]:
        """The steps still to do; the first is the one after the last good checkpoint."""
        first = self.run.restore(self)
        self.done = first - 1
        self.watch = Stopwatch()
        self.pause.begin()
        try:
            for step in range(first, self.config.steps) if not self.stopping else ():
                yield step
                self.done = step
                if step == first:
                    self.run.prepare(self)
                if self.stopping:
                    return
        finally:
            self.pause.end()

    def gather(self, step: int, select: Callable[[Loop, list[Group]], list[Group]]) -> tuple[Any, Any, Any]:
        """The groups of a step, those to train on, the report of their scoring. Where the selection leaves fewer than a batch,
        new prompts are asked, as often as the method says (dynamic sampling), and what is more than a batch is left out."""
        groups, report = self.source.next(step)
        kept, most = select(self, groups), self.config.prompts
        for _ in range(1, self.method.rounds):
            if len(kept) >= most:
                break
            more, scored = self.source.next(step)  # the same step again: other prompts
            kept = kept + select(self, more)
            groups, report = groups + more, report + scored
        return groups, kept[:most] if self.method.rounds > 1 else kept, report

    def stop(self, why: str) -> None:
        """End the run after the present step, with a checkpoint that remembers it; a callback may ask for it."""
        self.stopping = str(why) or "a callback has asked for it"

    def tell(self, event: str, *args: Any) -> None:
        """Call this event on every callback and monitor that has it."""
        if event == "on_rollouts":
            self.watch.lap("sampling")
        for callback in {id(c): c for c in (*self.callbacks, *self.monitors)}.values():  # some are both
            react = getattr(callback, event, None)
            if callable(react):
                react(self, *args)

    def stateful(self) -> dict[str, Any]:
        """Parts whose state must survive a restart, by name."""
        named = {"source": self.source, "advantage": self.advantage}
        named |= {f"select{i}": p for i, p in enumerate(self.select)}
        named |= {f"shaping{i}": p for i, p in enumerate(self.shaping)}
        named |= {f"monitor{i}": p for i, p in enumerate(self.monitors)}
        return {k: p for k, p in named.items() if hasattr(p, "state_dict")}

    def evaluate(self, step: int) -> Metrics:
        """Held-out metrics, at the steps where an evaluation is due."""
        self.watch.lap("training")
        every = self.config.eval_every
        if not (self.evaluator and every and (step + 1) % every == 0):
            return {}
        found = self.evaluator(self.policy)
        self.watch.lap("evaluation")
        self.evaluated = step
        score = next(iter(found.values()))
        if any([learner.after_eval(score) for learner in self.learners.values()]):
            told = (
                f"the score has stalled at {score:.3g}: the policy is the new reference, and its optimiser starts anew"
            )
            self.run.event(self.phase, step, "reference", told)
            found = found | {"renewed": 1.0}
        if self.config.keep_best:
            self.run.keep_best(self, step, score)
        self.tell("on_eval", step, found)
        return found

    def finish(self) -> None:
        """The phase and what it leaves behind are complete: its last checkpoint is on the disk."""
        self.run.finish(self.phase)
        self._saved()

    def _saved(self) -> None:
        for done in self.run.written():  # a checkpoint is written while the next steps, or the last evaluation, run
            self.tell("on_checkpoint", done)

    def _log(self, step: int, groups: list[Group], kept: list[Group], report: Any, seen: Metrics) -> None:
        """All processes look, because a look may go through the model; the lead tells."""
        metrics = describe(groups, kept) | report.metrics() | seen
        if self.method.rounds > 1:
            metrics |= {"prompts_asked": float(len(groups)), "prompts_kept": float(len(kept))}
        self.unscored = getattr(report, "why", "")
        with nullcontext() if ranks().lead else redirect_stderr(StringIO()):
            for monitor in self.monitors:
                monitor.check(step, groups, metrics, self)
        if not ranks().lead:
            return
        seconds, stages = self.watch.read(getattr(report, "seconds", 0.0))
        metrics |= stages | {"tokens_per_second": metrics["tokens"] / max(seconds, 1e-9)}
        if self.unscored:
            self.run.event(self.phase, step, "reward error", self.unscored)
        self.run.log(self.phase, step, metrics, groups, seconds)
        self.tell("on_step", step, metrics | {"seconds": seconds})

    def record(self, step: int, groups: list[Group], kept: list[Group], report: Any, seen: Metrics) -> None:
        """Metrics, rollouts and checkpoint of a step."""
        if step == 0 and report.all_failed:  # at later steps the run goes on
            raise UserError(
                f"the reward failed on every answer of the first step, so nothing could be learned: {report}"
            )
        self._log(step, groups, kept, report, seen)
        self.stopping, due = by_lead(lambda: (self.stopping, self.pause.due()))
        last = step + 1 == self.config.steps or bool(self.stopping)
        paused = "" if last else due
        if last or paused or (step + 1) % self.config.save_every == 0:
            self.run.save(self, step, now=bool(paused))
        self._saved()
        self.watch.lap("storing")
        if paused:
            self.pause.end()
            raise Paused(paused)
