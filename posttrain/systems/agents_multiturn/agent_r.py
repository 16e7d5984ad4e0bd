"""Agent-R: an agent learns to notice its mistakes early: runs that failed are cut at the first bad step and go on as one that succeeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Gate, Phase, Plan, plan
from posttrain.core.protocols import RolloutRequest
from posttrain.core.types import Message, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.methods.from_pairs import ENDLESS, epochs_of
from posttrain.methods.settings import asked_task, written
from posttrain.methods.sft import sft
from posttrain.rollouts.retraced import Path, continued, retrace
from posttrain.rollouts.some_turns import marked, some_turns

THOUGHTS = (
    "My last steps did not help; I will try something else.",
    "I went the wrong way. Let me think again about what is asked.",
    "That was a mistake, and I should correct it now.",
    "I see that this does not lead to the goal, so I change my plan.",
    "My approach was flawed; I start over from what I know.",
    "I overlooked something. Let me go back to the task.",
    "This is not working. There must be a better way.",
    "I notice that I made an error, and I will act differently.",
    "What I did does not fit the task; I will revise it.",
    "I should not go on like this. Let me take another way.",
)
JUDGE = (
    "Task:\n{task}\n\nSo far:\n{before}\n\nNext step:\n{step}\nWhat came of it:\n{reply}\n\nIs this step good, bad or uncertain for the task? "
    "End with Judgement: good, Judgement: bad or Judgement: uncertain."
)
COEF = 0.25  # of UCB1
Critic = Callable[[Sequence[Prompt]], list[str]]

# ---- the search


@dataclass
class Node:
    """A state of a tree: the moves that lead to it, how often it was visited, what the runs through it were worth."""

    texts: tuple[str, ...] = ()
    visits: int = 0
    value: float = 0.0
    ended: bool = False
    children: dict[str, Node] = field(default_factory=dict)


def ucb(node: Node, parent: Node) -> float:
    """mean value + 0.25 sqrt(ln(visits of the parent) / visits)"""
    return node.value / node.visits + COEF * math.sqrt(math.log(parent.visits) / node.visits)


def leaf(root: Node, samples: int, depth: int) -> Node:
    """Down the tree by UCB1, to a state that has not been tried `samples` times."""
    node = root
    while not node.ended and len(node.children) >= samples and len(node.texts) < depth:
        node = max(node.children.values(), key=lambda child: ucb(child, node))  # called at once
    return node


def add(root: Node, path: Path) -> None:
    """A run: each of its states is visited, and is worth what came of it."""
    node = root
    for depth in range(len(path.texts) + 1):
        node.visits, node.value = node.visits + 1, node.value + path.worth
        if depth < len(path.texts):
            node = node.children.setdefault(path.texts[depth], Node(path.texts[: depth + 1]))
    node.ended = True


# ---- revisions


def pairs(paths: Sequence[Path], alpha: float, beta: float) -> list[tuple[Path, Path]]:
    """(good, bad) of one task: the good one is worth more than alpha, and more than beta above the bad one."""
    return [(g, b) for g in paths for b in paths if g.worth > alpha and g.worth - b.worth > beta]


def shared(a: Path, b: Path) -> int:
    """How many turns two runs have in common before they part."""
    same = [x == y for x, y in zip(a.texts, b.texts, strict=False)]
    return same.index(False) if False in same else len(same)


def spliced(good: Path, bad: Path, error: int, thought: str) -> tuple[list[Message], list[bool]]:
    """The bad run up to its error (a number of turns; none of them is learned), a turn that notices it, and the good run from where they part."""
    wrong, rest = bad.first(error), shared(good, bad)
    notice: list[Message] = [
        {"role": "assistant", "content": f"Thought: {thought}\nAction: wait"},
        {"role": "user", "content": "ok."},
    ]
    after = [
        m
        for t, r in zip(good.texts[rest:], good.replies[rest:], strict=True)
        for m in ({"role": "assistant", "content": t}, *r)
    ]
    messages = wrong.messages
    if messages[-1]["role"] == "assistant":  # the bad run ended there
        messages = [*messages, {"role": "user", "content": "failed."}]
    return messages + notice + after, [False] * len(wrong.texts) + [True] * (1 + len(good.texts) - rest)


def asked_of(path: Path, step: int) -> Prompt:
    """The question whether a step of a run is good."""
    said = path.first(step).messages[len(path.prompt.content) :]
    before = (
        "\n".join(f"{'Action' if m['role'] == 'assistant' else 'Observation'}: {m['content']}" for m in said)
        or "nothing"
    )
    reply = "\n".join(str(m["content"]) for m in path.replies[step]) or "the end, without success"
    told = {"{task}": path.prompt.last, "{before}": before, "{step}": path.texts[step], "{reply}": reply}
    text = JUDGE
    for gap, value in told.items():
        text = text.replace(gap, value)
    return Prompt.text(f"judge-{path.prompt.id}-{rng.key(*path.texts)}-{step}", text)


def first_error(path: Path, after: int, critic: Critic) -> int:
    """Turns up to and with the first that is judged neither good nor uncertain, looking behind the first `after`; all where none is."""
    steps = range(after, len(path.texts))
    for step, said in zip(steps, critic([asked_of(path, s) for s in steps]), strict=True):
        judgement = said.rpartition("Judgement:")[2].lower()
        if "good" not in judgement and "uncertain" not in judgement:
            return step + 1
    return len(path.texts)


# ---- the plan


@plan(paper="arXiv:2501.11425", title="Agent-R", uses=("task",))
def agent_r(
    rounds: int = 3, tasks: int = 100, iterations: int = 4, samples: int = 4, alpha: float = 0.5, beta: float = 0.2, epochs: float = 1
) -> Plan:  # fmt: skip
    """Agent-R: tree search finds good and bad runs of each task; the policy itself says where a bad one first went wrong; SFT on "bad up to
    there, a thought that notices it, the good run from where they part", so that it learns to correct itself in time; again with the new policy.

    search: `iterations` of MCTS with UCB1, mean + 0.25 sqrt(ln N / n), `samples` ways on from each state, runs to their ends
    pairs:  worth(good) > alpha and worth(good) - worth(bad) > beta
    cut:    the first step of the bad run that the policy judges neither good nor uncertain (the whole run where it finds none)
    learned: the thought (one of ten, with "Action: wait", answered "ok.") and the good run's turns behind the shared ones; what both
    share and the bad steps are only read. Good runs worth more than alpha are learned whole, too.
    tasks: training tasks that are searched in each round. The task has turns (--task mine.py:Game), and the same actions lead to the same state.

    Departures: the authors mix in general conversations (none here) and print neither alpha, beta nor the mixture; 0.5 and 0.2 are this package's.
    Steps that both runs share are not judged, since they are not what failed. As in their code, what the environment shows after the
    thought is what it showed in the good run; a world that the bad steps changed for good would say otherwise. The ten thoughts are in
    this package's words. UCB1 with 0.25, 4 iterations, 4 samples, depth 10 and 3 rounds are theirs.
    """
    if min(rounds, tasks, iterations, samples) < 1 or beta < 0 or epochs <= 0:
        raise UserError("rounds, tasks, iterations and samples are at least 1, beta at least 0, and epochs above 0")

    def searched(context: Context) -> list[list[Path]]:
        """Every run of every tree, by task."""
        c, env, number = context.config, asked_task(context), len(context.notes.get("success_by_round", []))
        prompts = [env.prompt(i, "train") for i in range(min(tasks, size_of(env, "train") or ENDLESS))]
        roots, found = [Node() for _ in prompts], [list[Path]() for _ in prompts]
        for i in range(iterations):
            nodes = [leaf(root, samples, 10) for root in roots]
            starts = [retrace(env, p, node.texts) for p, node in zip(prompts, nodes, strict=True)]
            ask = RolloutRequest(
                {"policy": context.role("policy")}, [], c.sampling, c.seed, number * iterations + i, env
            )
            for root, some, paths in zip(roots, found, continued(ask, starts, samples), strict=True):
                for path in paths:
                    add(root, path)
                    some += [path] if path not in some else []
        return found

    def revise(context: Context) -> None:
        found, policy, c = searched(context), context.role("policy"), context.config
        number = len(context.notes.get("success_by_round", []))

        def critic(prompts: Sequence[Prompt]) -> list[str]:
            made = policy.sample(prompts, 1, replace(c.sampling, stop=""), c.seed, number) if prompts else []
            return [answers[0].text for answers in made]

        rows: list[dict[str, Any]] = []
        for paths in found:
            good = [p for p in paths if p.worth > alpha]
            rows += [{"messages": p.messages, "learned": [True] * len(p.texts)} for p in good]
            for best, worst in pairs(paths, alpha, beta):
                thought = rng.python("thought", c.seed, number, *worst.texts, *best.texts).choice(THOUGHTS)
                error = first_error(worst, shared(best, worst), critic)
                messages, learned = spliced(best, worst, error, thought)
                rows.append({"messages": messages, "learned": learned})
        context.run.write_artifact(f"revised-{number + 1}", rows)
        worth = [p.worth > alpha for paths in found for p in paths]
        context.notes["success_by_round"] = [
            *context.notes.get("success_by_round", []),
            sum(worth) / max(len(worth), 1),
        ]

    def rows_of(context: Context) -> Listed:
        number = len(context.notes["success_by_round"])
        rows = context.run.read_artifact(f"revised-{number}")
        made = [marked(f"run-{number}-{i}", row["messages"], row["learned"]) for i, row in enumerate(rows)]
        return Listed(asked_task(context).name, tuple(made))

    def ready(context: Context) -> None:
        env = asked_task(context)
        retrace(env, env.prompt(0, "train"), ())

    method = sft.but(name="agent-r", title="Agent-R", paper="arXiv:2501.11425", doc=__doc__, rollout=some_turns)
    gate = Gate(
        "good",
        lambda c: rows_of(c).size > 0,
        "no run was worth more than alpha, so there is nothing to learn from; lower --plan.alpha",
    )
    learn = Phase("learn", method, epochs_of(rows_of, epochs), rows_of, rewards=written)
    return Plan((Cycle((Do("search", revise), gate, learn), rounds),), ready=ready)
