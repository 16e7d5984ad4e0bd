"""The display of a run while it trains: a progress bar with the main figures on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from posttrain.core.terminal import printable
from posttrain.runs.build import at_test
from posttrain.runs.reader import Reader
from posttrain.runs.unscored import unscored
from posttrain.runs.warnings import findings
from posttrain.view.figures import count, duration, percent, short
from posttrain.view.report import RANKED, graded, next_steps, report

RANKED_BY = {"pairs": "pairs", "lists": "lists", "labels": "answers"}  # kind of preferences -> what a step has of them
_RECENT = 10  # steps that the time left is estimated from
_REPORTED = ("seconds", "tokens", "eval_problems", "task")  # figures of a summary that stand elsewhere in the report
_LINES = 20  # lines that a run prints where there is no terminal


def _figure(x: float) -> str:
    """A decision, a count or a measurement, as a person writes it."""
    if isinstance(x, bool):
        return "yes" if x else "no"
    return f"{x:,}" if isinstance(x, int) else short(x)


class Tolerant:
    """A stream whose reader may go away (`posttrain run ... | head -1`): from then on nothing is printed, and training goes on."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.gone = stream, False

    def write(self, text: str) -> int:
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, act: Callable[[], Any]) -> None:
        if self.gone:
            return
        try:
            act()
        except BrokenPipeError:
            self.gone = True
            with suppress(OSError, ValueError):  # what is still in the buffer must go somewhere when the program ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def tolerant() -> Iterator[None]:
    """Printing never ends the program."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Tolerant(sys.stdout), Tolerant(sys.stderr)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def display(quiet: bool = False, silent: bool = False, runs: str | Path = "runs") -> Watch:
    """The display for these options: nothing for --json, only the result for --quiet, a bar on a terminal, else lines."""
    console = Console(quiet=silent, highlight=False)
    kind = Watch if quiet or silent else Bar if console.is_terminal else Lines
    return kind(console, str(runs))


class Watch:
    """Keeps what the report at the end needs; subclasses show the steps."""

    def __init__(self, console: Console, runs: str = "runs") -> None:
        self.console, self.runs = console, runs
        self.seen, self.curve, self.measured = 0, "reward", "accuracy"
        self.figures: dict[str, float] = {}
        self.recent: deque[float] = deque(maxlen=_RECENT)
        self.total = 0

    def on_load(self, config: Any, measured: bool = True) -> None:
        """Before the model is loaded; the base class shows nothing."""

    def begin(self, loop: Any, before: Any) -> None:
        self._start(loop)

    def phase(self, loop: Any) -> None:
        """A phase of a plan begins."""
        self._start(loop)

    def _start(self, loop: Any) -> None:
        self.seen, self.figures, self.total = 0, {}, loop.config.steps
        written = loop.method.rollout.card.data in ("demonstrations", *RANKED_BY)
        self.curve = "loss" if written else "reward"  # written answers have neither a reward nor an entropy to show
        self.measured = "pairs ranked right" if loop.method.rollout.card.data in RANKED_BY else "accuracy"
        self.recent.clear()

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self.seen += 1
        self.recent.append(metrics["seconds"])
        self.figures |= metrics
        self.show(step)

    def show(self, step: int) -> None:
        """Show a step; the base class shows nothing."""

    def line(self, step: int) -> str:
        """The figures of a step: reward, accuracy where it was measured, entropy, KL, speed, time left."""
        m = self.figures
        out = [f"{self.curve} {short(m.get(self.curve, float('nan')))}"]
        if "accuracy" in m:
            out.append(f"{self.measured} {percent(m['accuracy'])}")
        if "held_out_reward" in m:
            out.append(f"held-out {short(m['held_out_reward'])}")
        if self.curve == "reward":
            out.append(f"entropy {short(m.get('entropy', m.get('nll', float('nan'))))}")
        if "kl" in m:
            out.append(f"KL {short(m['kl'])}")
        out.append(f"{count(m.get('tokens', 0.0) / max(m['seconds'], 1e-9))} tokens/s")
        left = sum(self.recent) / len(self.recent) * (self.total - step - 1)
        return "  ".join([*out, f"{duration(left)} left"])

    def end(self, loop: Any, before: Any, after: Any, summary: dict[str, Any]) -> None:
        self.close()
        curve = [v for _, v in loop.run.store.series(self.curve, loop.phase)]  # a resumed run's earlier steps too
        if not self.seen and curve:
            self.console.print("this run had already finished; more --steps go on with it, --fresh starts over")
        report(self.console, before, after, summary, curve, self.curve)
        for lost in unscored(loop.run.store, [loop.phase]) if isinstance(loop.run.store, Reader) else ():
            told = f"warning: {lost['failed']:,} of {lost['made']:,} answers could not be scored, and nothing was learned from them"
            told += f"; the last time {lost['why']}" if lost["why"] else ""
            self.console.print(printable(told, one_line=True), style="yellow", markup=False, soft_wrap=True)
        for found in findings(loop.run.store, loop.phase) if isinstance(loop.run.store, Reader) else ():
            told = f"warning: {found.says} (steps {found.first + 1} to {found.last + 1})"
            self.console.print(printable(told, one_line=True), style="yellow", markup=False, soft_wrap=True)
        if "plan" in summary:  # its notes and what to type next come with `plan_end`
            return
        if "best" in summary and summary["best"]["step"] <= loop.done:
            told = f"the best held-out {after.name} was after step {summary['best']['step']}: {loop.config.name}@best"
            self.console.print(told, markup=False, soft_wrap=True)
        next_steps(self.console, self.worth_typing(loop, after.name == "accuracy"))

    def worth_typing(self, loop: Any, gold: bool = True) -> list[tuple[str, str]]:
        """Commands to suggest: a reward model cannot chat; pairs, and prompts without gold answers, cannot be graded."""
        which = f"{shlex.quote(loop.config.name)}{self.where}"
        out = [(f"posttrain show {loop.method.name}", "read the algorithm")]
        if loop.method.scores:
            folder = shlex.quote(f"{self.runs}/{loop.config.name}")
            return [(f"posttrain run grpo --reward {folder}{self.where}", "train a policy with this reward"), *out]
        out.insert(0, (f"posttrain chat --model {which}", "chat with the trained model"))
        if gold and loop.method.rollout.card.data not in RANKED_BY:
            task = shlex.quote(loop.config.task)
            way = at_test(loop.method, loop.env)
            read = f" --rollout {shlex.quote(str(way))}" if way else ""
            out.insert(
                1,
                (
                    f"posttrain eval --model {which} --task {task}{read} --num-generations 8",
                    "measure accuracy and pass@k",
                ),
            )
        return [*out, (f"posttrain export {which} --to my-model", "write a Hugging Face folder")]

    @property
    def where(self) -> str:
        return "" if self.runs == "runs" else f" --runs {shlex.quote(self.runs)}"

    def plan_end(self, summary: dict[str, Any], name: str) -> None:
        self.close()
        if summary.get("stopped"):
            self.console.print(f"the plan ended early: {summary['stopped']}", style="bold")
        for key, value in summary.items():
            if key in _REPORTED or key.endswith(("_before", "_after")):
                continue
            if isinstance(value, dict) and value and all(isinstance(x, (int, float)) for x in value.values()):
                value = ", ".join(f"{k} {_figure(x)}" for k, x in value.items())  # a figure of every phase
            if isinstance(value, (int, float, str)) and key != "stopped":
                self.console.print(f"  {key}  {short(value) if isinstance(value, float) else value}", markup=False)
        self.console.print(f"  everything is in {self.runs}/{name}", markup=False)
        which = f"{shlex.quote(name)}{self.where}"
        talk = (f"posttrain chat --model {which}", "chat with the trained model")
        next_steps(self.console, [talk, (f"posttrain export {which} --to my-model", "write a Hugging Face folder")])

    def close(self) -> None:
        """Leave the terminal as it was."""

    # ---- as a callback of the loop

    def on_begin(self, loop: Any, before: Any) -> None:
        self.begin(loop, before)

    def on_data(self, loop: Any, lines: list[str]) -> None:
        """What was understood of the data; the base class shows nothing."""

    def on_phase(self, loop: Any) -> None:
        self.phase(loop)

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        self.step(step, metrics)

    def on_end(self, loop: Any, before: Any, after: Any, summary: dict[str, Any]) -> None:
        self.end(loop, before, after, summary)


class Lines(Watch):
    """Prints what is trained, and a line every few steps."""

    def on_load(self, config: Any, measured: bool = True) -> None:
        what = (
            f", evaluating it on up to {config.eval_problems} held-out examples"
            if measured and config.eval_problems
            else ""
        )
        self.console.print(f"loading {config.model}{what} ...", style="dim", markup=False)

    def begin(self, loop: Any, before: Any) -> None:
        super().begin(loop, before)
        policy = loop.learner.policy
        size = count(sum(p.numel() for p in policy.parameters()))
        self.console.print(
            f"{loop.method.name} on {loop.config.task}: {loop.config.model} ({size} parameters) on {policy.device}, "
            f"{loop.config.steps} steps of {loop.config.prompts} {RANKED_BY.get(loop.method.rollout.card.data, 'prompts')}, "
            f"in {loop.run.label}",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        if before.problems:
            what = "" if before.name == "accuracy" else f"{before.name} "
            right = " ranked right" if before.of in RANKED else ""
            told = f"{what}{graded(before)} of {before.problems} held-out {before.of}{right}"
            self.console.print(f"before training: {told}")
            if before.told:
                self.console.print(before.told, style="yellow", markup=False, soft_wrap=True)

    def on_data(self, loop: Any, lines: list[str]) -> None:
        for line in lines:
            style = "yellow" if line.startswith("left out") else "dim"
            self.console.print(line, style=style, markup=False, soft_wrap=True)

    def phase(self, loop: Any) -> None:
        super().phase(loop)
        self.console.print(f"phase {loop.phase}: {loop.method.name}, {loop.config.steps} steps", markup=False)

    def show(self, step: int) -> None:
        every = max(1, self.total // _LINES)
        if step % every == 0 or step + 1 == self.total:
            self.console.print(f"step {step + 1}/{self.total}  {self.line(step)}", soft_wrap=True)


class Bar(Lines):
    """A progress bar with the figures beside it."""

    bar: Progress | None = None

    def _start(self, loop: Any) -> None:
        self.close()
        super()._start(loop)

    def show(self, step: int) -> None:
        if self.bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24 if self.console.width > 110 else 10),
                MofNCompleteColumn(),
            )
            self.bar = Progress(*columns, TextColumn("{task.fields[line]}", markup=False), console=self.console)
            self.task = self.bar.add_task("step", total=self.total, line="")
            self.bar.start()
        what = "step" if step + 1 < self.total else "done, evaluating"
        self.bar.update(self.task, description=what, completed=step + 1, line=self.line(step))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
