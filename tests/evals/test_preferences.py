"""`python -m benchmarks.preferences` at a small size: data without a prompt in common, every method by its name, looks, table and picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.preference_data import kept, rows_of_sets, splits, write
from benchmarks.preference_looks import pairs_of, prompts_of
from benchmarks.preferences import METHODS, chosen_rates, learning, reward_rows, rewarding
from benchmarks.preferences_page import draw, over_seeds, section, table
from posttrain.core.errors import UserError

SUMS = [(a, b) for a in range(12, 24) for b in (3, 4)]
ROWS = [{"prompt": f"What is {a}+{b}?", "chosen": str(a + b), "rejected": f"It is {a}"} for a, b in SUMS]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefs")
    write(folder, ROWS, splits(ROWS, held_out=4, dev=4))
    return folder


def job(data: Path, **more: Any) -> dict[str, Any]:
    same = {
        "model": "pocket",
        "data": str(data),
        "device": "cpu",
        "micro_tokens": 4096,
        "prompts": 2,
        "lr": None,
        "seed": 0,
    }
    run = {
        "steps": 3,
        "n": 2,
        "asked": 4,
        "sampling": {"max_tokens": 8},
        "split": "held_out",
        "every": 3,
        "samples": 2,
        "problems": 3,
    }
    return same | run | more


def test_no_prompt_is_in_two_sets(data: Path) -> None:
    sets = splits(ROWS, held_out=4, dev=4)
    assert [len(x) for x in sets.values()] == [4, 4, 8, 8] and len(set().union(*sets.values())) == len(ROWS)
    assert {p.last for p in prompts_of(data, "held_out")} == set(sets["held_out"])
    assert {p.last for p in pairs_of(data / "policy" / "train.jsonl.gz")} == set(sets["policy"])
    assert {p.last for p in pairs_of(data / "judge" / "test.jsonl.gz")} == set(sets["held_out"])
    assert rows_of_sets(ROWS, sets)["judge"] == [r for r in ROWS if r["prompt"] in sets["judge"]]


def test_what_is_left_out_is_counted() -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    both = {"prompt": "e", "chosen": "f", "rejected": "g"}
    odd = [good | {"chosen": "x" * 300}, good | {"prompt": "y" * 97}, good | {"rejected": "b"}, good]
    used, gone = kept([good, *odd, both, both | {"chosen": "g", "rejected": "f"}], len)
    assert used == [good]
    assert gone == {
        "an answer too long": 1,
        "prompt too long": 1,
        "empty or equal answers": 1,
        "seen before": 1,
        "preferred both ways": 2,
    }


def test_every_method_runs_and_is_judged(data: Path, tmp_path: Path) -> None:
    models = [rewarding(job(data, reward_model=name, steps=2, pairs=3), tmp_path) for name in ("helpful", "judge")]
    rows = [*reward_rows(models), *(learning(job(data, method=m), tmp_path) for m in METHODS)]
    assert {"accuracy", "agreement", "held_out_pairs"} <= set(rows[0]) and "margins" not in rows[0]
    for r in rows[2:]:
        first, last = r["points"][0], r["points"][-1]
        assert first["update"] == 0 and last["update"] == r["spent"]["updates"] > 0
        assert all(0 <= last[who][k] <= 1 for who in ("judge", "helpful") for k in ("win_rate", "length_controlled"))
        assert r["curves"]["loss"] and last["tokens"] <= 8
        if r["method"] != "dpa":  # it is told a direction from the beginning, the start is not
            assert first["kl"] == 0
    by = {r["method"]: r["spent"] for r in rows[2:]}
    assert by["dpo"] == by["simpo"] == {"updates": 3, "written": 12, "sampled": 0}
    assert by["kto"] == {
        "updates": 3,
        "written": 12 + 12,
        "sampled": 0,
    }  # as many answers to other questions beside them
    assert by["dpa"] == {"updates": 3, "written": 6, "sampled": 24}
    json.dumps(rows)


def point(update: int, rate: float, kl: float) -> dict[str, Any]:
    said = {"win_rate": rate, "length_controlled": rate - 0.1}
    same = {"tokens": 100.0 + update, "ended": 0.5, "per_input": 0.9, "across_input": 0.8}
    return {"update": update, "kl": kl, "judge": said, "helpful": said, **same}


def run(method: str, seed: int, **more: Any) -> dict[str, Any]:
    told = {
        "hardware": "a card",
        "versions": "torch",
        "date": "today",
        "split": "held_out",
        "lr": None,
        "lr_used": 5e-5,
    }
    spent = {"updates": 60, "written": 3840, "sampled": 0}
    return {
        "method": method,
        "seed": seed,
        **told,
        "spent": spent,
        "points": [point(0, 0.5, 0.0), point(60, 0.6 + seed / 100, 4.0)],
    } | more


def test_table_and_picture(tmp_path: Path) -> None:
    rows = [run(m, s) for m in ("dpo", "dpa") for s in (0, 1, 2)]
    lines = table(rows)
    assert lines[2].startswith("| the start |  | 50.0 | 40.0 | 40.0 | 0 | 100 | 50 | 0.900, 0.800 |")
    # 60, 61, 62: mean 61, deviation 1, half of the interval 2.484
    assert lines[3].startswith(
        "| DPO | 5e-05 | 61.0 [58.5, 63.5] (60.0, 61.0, 62.0) | 51.0 [48.5, 53.5] (50.0, 51.0, 52.0) |"
    )
    assert "| 4.0 [4.0, 4.0] (4.0, 4.0, 4.0) | 160 | 50 |" in lines[4] and lines[4].endswith("| 60 | 3,840 | 0 |")
    chosen = [run("dpo", 100, split="dev", lr=1e-5), run("kto", 100, split="dev", lr=3e-5)]
    judge = {
        "accuracy": 0.75,
        "accuracy_where_chosen_is_shorter": 0.4,
        "accuracy_of_the_longer_one": 0.8,
        "held_out_pairs": 1593,
    }
    models = [
        {"reward_model": name, "calibration_error": 0.1, "agreement": 0.9} | judge for name in ("judge", "helpful")
    ]
    said = section([*models, *rows, *chosen], "x.png")
    assert "| `helpful` | 75.0 | 40.0 | 0.100 | 1,593 |" in said and lines[3] in said
    assert "| DPO | 60.0 (4) |  |" not in said and "| DPO | 150.0 (4) |  |" in said and "| KTO |  | 150.0 (4) |" in said
    draw(rows, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="no results"):
        section(chosen, "x.png")


def test_the_rate_that_wins_most_is_chosen() -> None:
    def row(method: str, lr: float, rate: float) -> dict[str, Any]:
        return {"method": method, "lr": lr, "points": [{"helpful": {"length_controlled": x}} for x in (0.9, rate)]}

    assert chosen_rates([row("dpo", 1e-5, 0.6), row("dpo", 5e-5, 0.5), row("kto", 1e-5, 0.4)]) == "dpo=1e-05 kto=1e-05"


def test_an_interval_over_three_seeds() -> None:
    """Mean 2, standard deviation 1, t of 97.5% with 2 degrees of freedom 4.3027: 4.3027 / sqrt 3 = 2.484 on either side."""
    assert over_seeds([1.0, 2.0, 3.0]) == "2.0 [-0.5, 4.5] (1.0, 2.0, 3.0)"
