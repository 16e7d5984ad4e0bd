"""An option of a plan that was given and that nothing reads is refused before anything is loaded, whatever the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.cli import main
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Plan
from posttrain.core.registry import find, parts
from posttrain.runs import plans as recipe
from posttrain.runs.idle import Likeness, given, idle, likeness, refuse_of_options
from tests.runs import tiny_run

CODE = """
def crit(prompt, text): return '{"good": [], "poor": []}'
def g(prompt, text): return 1.0
def step(prompt, steps): return 0.5
def prefer(prompt, a, b): return 0.5
"""
# plan -> option -> the options with which it is read; by itself nothing reads it
READ_WITH: dict[str, dict[str, dict[str, Any]]] = {
    "constrained-rlhf": {
        "tries": {"points": "a"},
        "every": {"points": "a"},
        "gold": {"points": "a"},
    },
    "distil": {"beta": {"k": 20}},
    "doctoragent-rl": {"warmup": {"dialogues": "d.jsonl"}},
    "dpa": {"passes": {"ratings": "r.jsonl"}},
    "dr-irl": {"column": {"categories": "a,b"}},
    "maxmin-rlhf": {"eta": {"how": "soft"}},
    "multi-turn-agentic-guide": {"passes": {"demos": "d.jsonl"}},
    "par": {"epochs": {"pairs": "pairs.jsonl"}},
    "pure": {"prm_steps": {"prm": "train"}},
    "rlhf-workflow": {"steps": {"optimiser": "ppo"}, "data": {"optimiser": "ppo"}},
    "self-rewarding": {"warmup": {"sft": "s.jsonl"}},
    "ssrl": {"k": {"documents": "docs"}},
    "writing-zero": {"passes": {"pairs": "pairs.jsonl"}},
}
# options that others put out of use
UNREAD_WITH = [
    ("text2grad", "longest", {"critic": "r.py:crit"}), ("pure", "temperature", {"prm": "a", "form": "sum"}),
    ("rlhf-workflow", "beta", {"optimiser": "raft"}), ("rlhf-workflow", "rounds", {"optimiser": "best-of-n"}),
    ("rlhf-workflow", "epochs", {"optimiser": "ppo"}), ("rm-ensemble-conservative", "coef", {"how": "mean"}),
    ("rm-ensemble-conservative", "coef", {"how": "wco"}), ("writing-zero", "k", {"pairs": "p.jsonl"}),
    ("helping-or-herding", "beta", {"optimiser": "best-of-n"}), ("cyclealign", "shown", {"update": "none"}),
    ("dr-irl", "tau", {"scaled": False}), ("star", "growth", {"rounds": 1}), ("spin", "last_beta", {"rounds": 1}),
    ("distil", "n", {"answers": "data", "k": 8}), ("a-lol", "clip", {"variant": "kl"}), ("a-lol", "epochs", {"steps": 9}),
    ("mixed-preference-opt", "easy", {"least": 0.5}), ("multi-turn-agentic-guide", "most", {"density": "single"}),
    ("rise", "teacher", {"turns": 1}), ("maxmin-rlhf", "eta", {"how": "mean"}), ("tl-training", "kl", {"ppo_passes": 0.0}),
    ("tl-training", "most", {"sft_passes": 0.0}), ("huatuogpt", "distilled", {"warmup": 0.0}), ("adacot", "mask", {"skewed": 0}),
    ("score-self-correct", "beta2", {"first": 0}), ("pairwise-rl", "m", {"pairs": "p.jsonl"}),
]  # fmt: skip


def other(value: Any) -> list[Any]:
    """Values that an option could have in place of its default."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 2, value / 2] if value else [1, 0.5]
    return ["mine.py:f", "rows.jsonl"] if isinstance(value, str) else []


def built(name: str, **options: Any) -> Plan | None:
    try:
        plan: Plan = find(name, "plan").fn(**options)
    except UserError:
        return None
    return plan


@pytest.mark.parametrize("name", [p.name for p in parts("plan")])
def test_every_option_of_every_plan_is_read_by_itself_or_with_another(name: str) -> None:
    """And two plans of the same options are alike, without which no option would ever be found idle."""
    plan = find(name, "plan").fn()
    assert likeness(plan) == likeness(find(name, "plan").fn())
    for option, value in plan.options.items():
        changed = next((p for x in other(value) if (p := built(name, **{option: x}))), None)
        if changed is None:
            continue
        needs = READ_WITH.get(name, {}).get(option)
        assert idle(changed, option) == (needs is not None), option
        if needs is not None:
            assert not idle(find(name, "plan").fn(**needs, **{option: changed.options[option]}), option), option


@pytest.mark.parametrize(("name", "option", "options"), UNREAD_WITH)
def test_an_option_that_another_puts_out_of_use_is_refused(name: str, option: str, options: dict[str, Any]) -> None:
    value = find(name, "plan").fn().options[option]
    changed = next(p for x in other(value) if (p := built(name, **options, **{option: x})))
    with pytest.raises(UserError, match=rf"^{name} does not read --plan\.\S+ with "):
        refuse_of_options(changed, Context(None, Config(), {}))
    assert idle(changed, option)
    assert not idle(find(name, "plan").fn(**options), option) or option not in given(find(name, "plan").fn(**options))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("r.py").write_text(CODE)
    rows = [{"prompt": f"say {x}", "chosen": x * 3, "rejected": "no"} for x in "abcdefghijkl"]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


COMMANDS = [
    ("text2grad --plan.critic r.py:crit --plan.critiques nosuchfile.jsonl --plan.critic-steps 7", "critiques with --plan.critic;"),
    ("text2grad --plan.critic r.py:crit --plan.critic-steps 7", "critic-steps with"),
    ("rlhf-workflow --reward r.py:g --plan.data nosuch --plan.steps 3", "steps with its other options"),
    ("pure --plan.prm r.py:step --plan.prm-steps 7", "prm-steps with its other options"),
    ("constrained-rlhf --reward r.py:g --plan.points g=0.4 --plan.tries 30 --plan.every 3", "tries with its other options"),
    ("pairwise-rl --plan.pairs pairs.jsonl --plan.own 7 --plan.k 9 --plan.m 3", "m with --plan.pairs; leave one of the two away"),
    ("pairwise-rl --plan.pairs pairs.jsonl --plan.k 9", "k with --plan.pairs"),
    ("pairwise-rl --reward r.py:prefer --plan.k 9", "k: it says how sharply a reward tells two answers apart"),
    ("nash-md --reward r.py:prefer --plan.k 9", "k: it says how sharply"),
    ("par --reward r.py:g --plan.epochs 7", "epochs with its other options"),
    ("rm-ensemble-conservative --plan.optimiser best-of-n --plan.steps 33 --plan.beta 9", "steps with --plan.optimiser;"),
    ("adacot --task arithmetic --plan.label foo", "label: a school task has no such column"),
    ("adacot --task pairs.jsonl --plan.easy 3", "easy: it is a level of a school task"),
    ("autorule --plan.served http://127.0.0.1:1/v1 --plan.learned 0.9", "learned: it is the weight of --reward"),
    ("autorule --plan.served http://127.0.0.1:1/v1 --plan.rules r.txt --plan.pairs pairs.jsonl", "leave one of the two away"),
    ("writing-zero --reward r.py:prefer --plan.passes 3", "passes with its other options"),
    ("writing-zero --plan.pairs pairs.jsonl --plan.k 3", "k with --plan.pairs;"),
    ("rm-ensemble-conservative --plan.how wco --plan.coef 0.3", "coef with --plan.how;"),
    ("qwenlong-stages --plan.words 90", "words: documents are made in parts without --task"),
    ("reft --reward r.py:g --plan.credit 0.3", "credit: --reward pays"),
    ("autothink --prefill So --plan.ellipsis False", "ellipsis: --prefill says how answers begin"),
    ("nash-md --reward r.py:g --plan.n 4 --num-generations 6", "--num-generations and --plan.n, which both say"),
    ("rest --num-generations 3", "rest is a plan that does not use --num-generations; "),
    ("topr-rounds --num-generations 3", "--plan.n 8"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "told"), COMMANDS)
def test_at_the_terminal_nothing_is_loaded(
    words: str, told: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "load_policy", lambda config: pytest.fail("loaded"))
    assert main(["run", *words.split(), "--runs", "runs"]) == 2
    assert told in capsys.readouterr().err and not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rm-ensemble-conservative", {"coef": 0.1}), ("multi-turn-agentic-guide", {"n": 1}), ("okapi", {"shares": "52, 42, 64"}),
        ("cpl", {"alpha": 0.1}), ("adacot", {"points": [[0.3, 0.1]]}), ("text2grad", {"critiques": "r.py:crit", "critic_steps": 3}),
        ("constrained-rlhf", {"points": "a", "gold": "numeric", "tries": 30, "every": 3}),
    ],
)  # fmt: skip
def test_a_value_that_the_plan_would_have_chosen_itself_is_no_mistake(name: str, options: dict[str, Any]) -> None:
    refuse_of_options(find(name, "plan").fn(**options), Context(None, Config(task="rows.jsonl"), {}))


def test_an_n_that_counts_something_else_stands_beside_the_number_of_answers() -> None:
    """The n of hc-rlhf is the size of its test, also where it is as large as a group."""
    asked = Context(None, Config(num_generations=4), {})
    refuse_of_options(find("hc-rlhf", "plan").fn(n=8, cost="r.py:g"), asked)
    with pytest.raises(UserError, match="both say how many answers"):
        refuse_of_options(find("t1", "plan").fn(n=8), asked)


def test_functions_are_alike_where_code_and_values_are() -> None:
    def made(x: Any, y: Any = 0) -> Any:
        def inner() -> Any:
            return x, made

        return inner

    def like(value: Any) -> Any:
        return Likeness().of(value)

    assert like(made(1)) == like(made(1, 2)) != like(made(2))
    assert like(made([1, {"a": made(3)}])) == like(made([1, {"a": made(3)}])) != like(made([1, {"a": made(4)}]))
    assert like(1) != like(True) and like(torch.zeros(2)) == like(torch.zeros(2)) != like(torch.ones(2))
    assert like(object()) != like(object())  # nobody can look into it: it may be anything


def test_in_python_the_same(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"par does not read --plan\.epochs"):
        posttrain.run(
            model=tiny_run.policy(),
            method="par(epochs=7)",
            env=tiny_run.Count(),
            reward=lambda prompt, text: 1.0,
            runs=tmp_path,
        )
