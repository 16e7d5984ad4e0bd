"""Options of plans reach the part that they are of, and none is only checked."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from posttrain.core.plan import Phase
from posttrain.core.registry import find, parse, parts

# a plan, a phase of it, and where its option is to be found there
REACHED = [
    ("archer(gamma=0.5)", "critic", "loss.gamma", 0.5),
    ("huatuogpt(warmup=0, beta=0.3)", "ppo", "shaping.coef", 0.3),
    ("implicit-reward-bridge(dpo_rate=0.5)", "dpo", "pace", 0.5),
    ("inpo(eta=0.5)", "inpo", "loss.beta", 0.5),
    ("irpo(alpha=0.7)", "irpo", "loss.alpha", 0.7),
    ("irpo(beta=0.3)", "irpo", "loss.beta", 0.3),
    ("maxmin-rlhf(beta=0.3)", "ppo", "shaping.coef", 0.3),
    ("mixed-preference-opt(beta=0.3)", "dpo", "loss.beta", 0.3),
    ("mixed-preference-opt(price=0.3)", "ppo", "shaping.coef", 0.3),
    ("okapi(warmup=0, beta=0.3)", "ppo", "shaping.coef", 0.3),
    ("rso(loss='sigmoid')", "rso", "loss", "dpo"),
    ("score-self-correct(alpha=3.0)", "stage-2", "shaping.alpha", 3.0),
    ("score-self-correct(beta1=0.3)", "stage-2", "shaping.first", 0.3),
    ("score-self-correct(beta1=0.3)", "stage-2", "shaping.second", 0.3),
    ("sdpo(beta=0.3)", "sdpo", "loss.beta", 0.3),
    ("self-rewarding(beta=0.3)", "dpo", "loss.beta", 0.3),
    ("spin(beta=0.3)", "spin.1", "loss.beta", 0.3),
    ("sppo(beta=0.3)", "sppo", "loss.beta", 0.3),
    ("ssp(rejected=-1)", "self-play", "rollout.rejected", -1.0),
    ("ssrl(beta=0.3)", "grpo", "terms.coef", 0.3),
    ("tl-training(most=3)", "sft", "rollout.most", 3),
    ("tl-training(kl=0.3)", "ppo", "shaping.coef", 0.3),
    ("toolrl(n=6)", "toolrl", "rollout.n", 6),
    ("xpo(beta=0.3)", "xpo", "loss.beta", 0.3),
]


def reached(phase: Phase, place: str) -> Any:
    """What a phase has there: its pace, the name of a part, or a number that one of its parts was given."""
    kind, _, name = place.partition(".")
    if kind == "pace":
        return phase.pace
    found = getattr(phase.method, kind)
    if not name:
        return found.name
    (value,) = {p.params[name] for p in (found if isinstance(found, tuple) else (found,)) if name in p.params}
    return value


@pytest.mark.parametrize(("told", "phase", "place", "want"), REACHED)
def test_an_option_reaches_its_part(told: str, phase: str, place: str, want: Any) -> None:
    name, options = parse(told)
    (one,) = (p for p in find(name, "plan").fn(**options).phases() if p.name == phase)
    assert reached(one, place) == want


def only_checked(plan: Callable[..., Any]) -> list[str]:
    """The options of a plan that nothing reads but conditions under which it is refused."""
    body: Any = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(plan)))).body[0]
    read, left = set[str](), list[ast.AST](body.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and not node.orelse and all(isinstance(x, ast.Raise) for x in node.body):
            continue
        read |= {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else set()
        left += ast.iter_child_nodes(node)
    return [a.arg for a in (*body.args.args, *body.args.kwonlyargs) if a.arg not in read]


def test_no_option_of_a_plan_is_only_checked() -> None:
    def plan(steps: int, beta: float = 0.1, n: int = 2) -> int:
        if beta < 0 or n < 2:
            raise ValueError(f"got beta={beta}")
        return steps * n

    assert only_checked(plan) == ["beta"]
    found = {p.name: only_checked(p.fn) for p in parts("plan") if p.card.file.startswith("posttrain/")}
    assert len(found) > 50 and not {name: some for name, some in found.items() if some}
