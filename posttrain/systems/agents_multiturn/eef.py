"""EEF: expert runs that failed still hold moves that help; find them by letting the policy go on from the expert's states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Gate, Phase, Plan, plan
from posttrain.core.protocols import Environment, RolloutRequest
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.environments.rows import Bad, read_rows
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.settings import asked_task, written
from posttrain.methods.sft import sft
from posttrain.rollouts.retraced import Path, continued, retrace
from posttrain.rollouts.some_turns import marked, some_turns

Kept = tuple[Path, list[bool]]  # a path, and which of its turns are learned

# ---- which moves are learned


def selected(made: Mapping[int, Path], success: float = 1.0) -> list[Kept]:
    """What the policy's runs from the expert's states say is worth learning. made: where it took over (turns of the expert) -> its path.

    From the start with success: all of it. Failure from state a and success from the next one b: the expert's moves a..b turned it, so
    they are learned, and what the policy did after b; the expert's other moves are only read.
    """
    places = sorted(made)
    won = {k: made[k].worth >= success for k in places}
    kept: list[Kept] = [(made[0], [True] * len(made[0].texts))] if won.get(0) else []
    for a, b in zip(places, places[1:], strict=False):
        if not won[a] and won[b]:
            kept.append((made[b], [i >= a for i in range(len(made[b].texts))]))
    return kept


def states(length: int, every: int) -> list[int]:
    """Where the policy takes over from an expert of so many turns: at the start, and behind every so many."""
    return list(range(0, length, every))


# ---- the expert


def experts(env: Environment, file: str) -> list[Path]:
    """The expert's runs, made again in the environment; rows: `index` of a training prompt, and `actions`, what was said at each turn."""
    if not file:
        raise UserError(
            'eef learns from an expert\'s runs, won or lost; give them with --plan.expert FILE.jsonl, a row {"index": 3, "actions": ["...", "..."]} '
            "for each: the number of a training prompt and what was said at each turn"
        )
    out, most = [], size_of(env, "train")
    for where, row in read_rows(file):
        index, actions = (None, None) if isinstance(row, Bad) else (row.get("index"), row.get("actions"))
        right = type(index) is int and index >= 0 and (not most or index < most)
        if not right or not isinstance(actions, list) or not actions or not all(isinstance(a, str) for a in actions):
            limit = f" below {most}" if most else ""
            raise UserError(
                f"{file}, {where}: expected index, a whole number{limit}, and actions, a list of texts, got {row!r:.80}"
            )
        out.append(retrace(env, env.prompt(int(index), "train"), actions))  # type: ignore[arg-type]
    return out


# ---- the plan


@plan(paper="arXiv:2504.13145", title="EEF", uses=("task",))
def eef(
    expert: str = "", rounds: int = 3, warmup: float = 1, epochs: float = 1, every: int = 2, success: float = 1.0, n: int = 1
) -> Plan:  # fmt: skip
    """EEF (exploring expert failures): the policy imitates the expert's runs that succeeded; then, round by round, it plays each task from the
    start and from states along the expert's run, also one that failed, and imitates what worked.

    states s_0, s_l, s_2l, ... of an expert's run (l = every), n runs of the policy from each, the best of them counts
    won from s_0: the policy's run is learned;  lost from s_a and won from the next s_b: the expert's l moves between them and the policy's
    run from s_b are learned, the expert's moves before are only read (no loss), those after are left out
    Each round is SFT on all that was kept so far and on the expert's successes. Won: rewards of the turns sum to `success` or more.
    expert: a JSONL file, a row {"index": number of a training prompt, "actions": [what was said at each turn]} for each run; the task has
    turns (--task mine.py:Game), and the same actions lead to the same state.

    Departures: the paper prints neither l, the number of states and of rounds, nor the rule for its minimal set of segments; here every second
    state, 3 rounds, and each segment that turns failure into success. Each round goes on from the weights of the last. No code is released.
    """
    if min(rounds, every, n) < 1 or warmup < 0 or epochs <= 0:
        raise UserError(
            f"got rounds={rounds}, every={every}, n={n}, warmup={warmup}, epochs={epochs}; 1 of the first three, epochs above 0"
        )

    def runs(context: Context) -> list[Path]:
        if "experts" not in context.made:
            context.made["experts"] = experts(asked_task(context), expert)
        found: list[Path] = context.made["experts"]
        return found

    def ready(context: Context) -> None:
        runs(context)

    def won(context: Context) -> list[Kept]:
        return [(p, [True] * len(p.texts)) for p in runs(context) if p.worth >= success]

    def listed(context: Context, kept: list[dict[str, Any]]) -> Listed:
        mine = [marked(f"expert-{i}", p.messages, flags) for i, (p, flags) in enumerate(won(context))]
        found = [marked(f"found-{i}", row["messages"], row["learned"]) for i, row in enumerate(kept)]
        return Listed(asked_task(context).name, tuple(mine + found))

    def clone(context: Context) -> Listed:
        return listed(context, [])

    def both(context: Context) -> Listed:
        rounds_done = range(len(context.notes.get("won_by_round", [])))
        return listed(context, [row for i in rounds_done for row in context.run.read_artifact(f"kept-{i + 1}")])

    def explore(context: Context) -> None:
        """The policy plays from the expert's states; what worked is added to what was kept."""
        c, number = context.config, len(context.notes.get("won_by_round", []))
        starts = [(e, k, p.first(k)) for e, p in enumerate(runs(context)) for k in states(len(p.texts), every)]
        ask = RolloutRequest({"policy": context.role("policy")}, [], c.sampling, c.seed, number, asked_task(context))
        made: dict[int, dict[int, Path]] = {}
        for (e, k, _), paths in zip(starts, continued(ask, [s for *_, s in starts], n), strict=True):
            if paths:
                made.setdefault(e, {})[k] = max(paths, key=lambda p: p.worth)
        kept = [found for places in made.values() for found in selected(places, success)]
        rows = [{"messages": p.messages, "learned": flags} for p, flags in kept]
        context.run.write_artifact(f"kept-{number + 1}", rows)
        share = [places[0].worth >= success for places in made.values() if 0 in places]
        context.notes["won_by_round"] = [*context.notes.get("won_by_round", []), sum(share) / max(len(share), 1)]

    def something(context: Context) -> bool:
        return bool(both(context).size)

    method = sft.but(name="eef", title="EEF", paper="arXiv:2504.13145", doc=__doc__, rollout=some_turns)
    first = Phase("clone", method, epochs_of(clone, warmup), clone, rewards=written)
    gate = Gate(
        "something",
        something,
        "neither the expert nor the policy has won from any state, so there is nothing to learn from",
    )
    again = Cycle(
        (Do("explore", explore), gate, Phase("learn", method, epochs_of(both, epochs), both, rewards=written)), rounds
    )
    begin = (
        Gate(
            "expert",
            lambda c: bool(won(c)) or warmup == 0,
            "no run of the expert succeeded; begin without cloning: --plan.warmup 0",
        ),
    )
    return Plan((*begin, *([first] if warmup else []), again), ready=ready)
