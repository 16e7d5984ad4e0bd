"""examples:
  posttrain samples grpo-arithmetic                    answers of the last step
  posttrain samples runs/grpo-arithmetic --worst --limit 3
  posttrain samples grpo-arithmetic --step 12 --contains "<think>"
  posttrain samples grpo-arithmetic --best --component format
How many answers of each step are stored is the run's --log-rollouts. Episodes are shown by turn: what was observed, what was said, its reward.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from typing import Any

from posttrain.commands.parser import Parser, whole
from posttrain.core.errors import UserError, unknown
from posttrain.core.terminal import printable

Row = dict[str, Any]
KEPT = (
    "phase",
    "step",
    "group_index",
    "sample_index",
    "prompt",
    "text",
    "gold",
    "reward",
    "total",
    "rewards",
    "failed",
    "stopped",
    "stop",
    "role",
    "by_turn",
)


def options(parser: Parser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run by name, or its folder")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--worst", action="store_true", help="answers with the lowest reward, of all steps")
    order.add_argument("--best", action="store_true", help="answers with the highest reward, of all steps")
    parser.add_argument("--step", type=whole, metavar="N", help="answers of this step, counted from 1 [the last]")
    parser.add_argument("--contains", metavar="TEXT", help="only with this text in the prompt or the answer")
    parser.add_argument("--component", metavar="NAME", help="a reward of the sum: sort by it, and show what has it")
    parser.add_argument("--phase", metavar="NAME", help="of a run with several phases [the last]")
    parser.add_argument("--limit", type=whole, default=5, metavar="N", help="how many answers [5]")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    parser.add_argument("--json", action="store_true", help="print the answers as JSON and nothing else")


def main(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UserError(f"--limit is {args.limit}; it must be at least 1")
    from posttrain.runs.run import Run
    from posttrain.runs.trained import run_folder

    folder = run_folder(args.name, args.runs)
    with Run.open(folder) as run:
        found, seen = choose(run, args)
        found = [with_turns(run.store, row) for row in found]
    if args.json:
        print(json.dumps([plain(row) for row in found]))
        return 0
    if not found:
        what = f" with {args.contains!r} in it" if args.contains else ""
        told = f"no answer{what} among the {seen} that {folder} has stored of"
        print(f"{told} {f'step {args.step}' if args.step else 'its steps'}")
        return 0
    for row in found:
        show(row, args.component)
    return 0


def choose(run: Any, args: argparse.Namespace) -> tuple[list[Row], int]:
    """The answers asked for, and how many were looked at. One step is read at a time: a run may have stored millions."""
    done = {phase: [step for step, _ in run.store.series("tokens", phase)] for phase in run.store.phases()}
    phases = [phase for phase, steps in done.items() if steps]
    if not phases:
        raise UserError(f"{run.folder} has done no step yet, so there is no answer to show")
    phase = args.phase or phases[-1]
    if phase not in phases:
        raise unknown(f"phase of {run.folder}", phase, phases)
    steps = done[phase]
    if args.step is not None and args.step - 1 not in steps:
        raise UserError(
            f"--step is {args.step}; {run.folder} has done steps {steps[0] + 1} to {steps[-1] + 1} of {phase}"
        )
    if (args.worst or args.best) and not args.contains and not args.component and run.store.version > 1:
        return by_score(run.store, phase, args)
    everywhere = args.worst or args.best or args.contains
    wanted = [args.step - 1] if args.step is not None else steps if everywhere else reversed(steps)
    kept: list[Row] = []
    names: set[str] = set()
    seen = 0
    for step in wanted:
        rows = run.store.rollouts(step=step, phase=phase)
        seen += len(rows)
        names |= {name for row in rows for name in row["rewards"] or {}}
        kept = ordered([*kept, *matching(rows, args)], args)[: args.limit]
        if not everywhere and rows:
            break
    if not seen:
        raise UserError(f"{run.folder} has stored no answers there; --log-rollouts says how many of each step are")
    short = {name.partition("(")[0] for name in names}
    if args.component and args.component not in names | short:
        raise unknown(f"component in the rewards of {run.folder}", args.component, short)
    return kept, seen


def with_turns(store: Any, row: Row) -> Row:
    """An answer of several turns has them one by one: what was observed before each, in words where its tokens are known."""
    if row.get("turns", 1) < 2:
        return row
    pieces = store.pieces()
    turns = store.turns(row["phase"], row["step"], row["group_index"], row["sample_index"])
    found = []
    for turn in turns:
        ids = turn["seen"] or () if turn["turn"] else ()  # before the first stands the prompt
        known = pieces and all(id in pieces for id in ids)
        text = b"".join(pieces[id] for id in ids).decode(errors="replace") if known else f"({len(ids)} tokens)"
        found.append({"observed": text if ids else None, "said": turn["text"], "reward": turn["reward"]})
    return row | {"by_turn": found}


def by_score(store: Any, phase: str, args: argparse.Namespace) -> tuple[list[Row], int]:
    """The worst or the best by their stored figures: only those that are shown are read, and some texts may not be kept."""
    step = None if args.step is None else args.step - 1
    ranked = store.scores(order="best" if args.best else "worst", phase=phase, step=step, failed=0)
    kept: list[Row] = []
    for row in ranked:
        key = {k: row[k] for k in ("phase", "step", "group_index", "sample_index")}
        kept += list(store.each_rollout(**key))
        if len(kept) >= args.limit:
            break
    return kept, len(ranked)


def matching(rows: list[Row], args: argparse.Namespace) -> Iterator[Row]:
    for row in rows:
        inside = f"{row['prompt'] or ''}\n{row['text'] or ''}".lower()
        if args.contains and args.contains.lower() not in inside:
            continue
        if args.component and component_of(row, args.component) is None:
            continue
        if (args.worst or args.best) and not math.isfinite(worth(row, args.component)):
            continue  # what could not be scored is neither
        yield row


def ordered(rows: list[Row], args: argparse.Namespace) -> list[Row]:
    if not (args.worst or args.best or args.component):
        return rows
    return sorted(rows, key=lambda row: worth(row, args.component), reverse=args.best)


def worth(row: Row, component: str | None) -> float:
    value = component_of(row, component) if component else row.get("total", row["reward"])
    return math.nan if value is None or row["failed"] else float(value)


def component_of(row: Row, name: str) -> float | None:
    """A reward of the sum by its name, with or without its parameters: length, length(target=9)."""
    inside: dict[str, float | None] = row["rewards"] or {}
    return next((x for full, x in inside.items() if name in (full, full.partition("(")[0])), None)


def plain(row: Row) -> Row:
    """For JSON: steps counted from 1, no token streams, null for what could not be scored."""
    out = {k: row[k] for k in KEPT if k in row} | {"step": row["step"] + 1}
    out["rewards"] = {k: v if v is not None and math.isfinite(v) else None for k, v in (row["rewards"] or {}).items()}
    reward = out["reward"]
    return out | {"reward": reward if reward is not None and math.isfinite(reward) else None}


def turn_lines(turns: list[dict[str, Any]], role: str) -> Iterator[Any]:
    """What was observed (set off by a bar) and what was said, each turn with its reward."""
    from rich.text import Text

    from posttrain.view.figures import short

    for n, turn in enumerate(turns, start=1):
        if turn["observed"]:
            lines = printable(turn["observed"]).strip().splitlines()
            yield Text("\n".join(f"  | {line}" for line in lines), style="dim")
        head = Text(f"[{n}] {role}", style="cyan")
        head.append("" if turn["reward"] is None else f", reward {short(turn['reward'])}", style="bold cyan")
        yield head.append(f": {printable(turn['said'] or '(nothing)')}", style="default")


def show(row: Row, component: str | None) -> None:
    """One answer; nothing in it can act on the terminal."""
    from rich.console import Console
    from rich.text import Text

    from posttrain.view.figures import short

    console = Console(highlight=False)
    parts = row["rewards"] or {}
    inside = ", ".join(f"{name} {short(x) if x is not None else '-'}" for name, x in parts.items())
    head = Text(
        f"step {row['step'] + 1}, prompt {row['group_index'] + 1}, answer {row['sample_index'] + 1}   ", style="dim"
    )
    value = worth(row, None)
    head.append("could not be scored" if row["failed"] else f"reward {short(value)}", style="bold cyan")
    head.append(printable(f"  ({inside})", one_line=True) if len(parts) > 1 or component else "")
    turns = row.get("by_turn") or []
    if turns:
        head.append(
            f"  {len(turns)} turns of {row['role']}, stopped: {row['stop']}", style="" if row["stopped"] else "yellow"
        )
    else:
        head.append("" if row["stopped"] else "  cut off at the longest answer", style="yellow")
    console.print(head, soft_wrap=True)
    console.print(Text(printable(row["prompt"] or ""), style="bold"), soft_wrap=True)
    for line in turn_lines(turns, row["role"]) if turns else [Text(printable(row["text"] or "(nothing)"))]:
        console.print(line, soft_wrap=True)
    if row.get("gold") not in (None, ""):
        console.print(Text(f"right: {printable(row['gold'], one_line=True)}", style="dim"), soft_wrap=True)
    console.print()
