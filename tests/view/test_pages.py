"""METHODS.md, docs/stages and docs/systems say what the index says; recorded results belong to the code as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from claims.machinery.claim import claims
from claims.machinery.evidence import attempts, attempts_file, is_stale, is_waiting, ran
from claims.machinery.fingerprint import ROOT
from posttrain.commands.run import PARTS
from posttrain.core.index import row
from posttrain.view.attempts import tried
from posttrain.view.methods_page import PAGE, every_page, left_over, page, systems
from posttrain.view.objective_page import ARMS, FILE, QUESTIONS, _missing, _rows, _start, _systems, objective_page
from posttrain.view.stage_pages import stage_pages
from posttrain.view.system_pages import sections, system_page
from posttrain.view.systems_table import agents_table, systems_table

CLAIMS = {c.id: c for c in claims()}


def test_the_pages_are_up_to_date() -> None:
    for file, text in every_page().items():
        assert file.exists() and file.read_text() == text, f"{file.relative_to(ROOT)}: run `make pages`"
    assert not left_over(), "run `make pages`"


def test_methods_has_one_line_for_each_system_and_leads_to_its_page() -> None:
    lines = [line for line in page().splitlines() if line.startswith("| [")]
    links = [re.match(r"\| \[([^]]+)\]\(([^)]+)\)", line) for line in lines]
    assert [m[1] for m in links if m] == [m[1] for m in dict.fromkeys(links) if m] and len(lines) == len(systems())
    assert len({m[2] for m in links if m}) == len(lines)  # no two share a page
    assert all((PAGE.parent / m[2]).is_file() for m in links if m)
    assert {c for c in CLAIMS} <= {r["id"] for r in systems()}


def test_a_stages_page_names_an_option_that_takes_its_parts() -> None:
    taken = [*PARTS, "reward"]
    for file, text in stage_pages().items():
        named = re.findall(r"`--(\w+) NAME`", text)
        assert file.stem in ("README", "decoding", "eval") or (len(named) == 1 and named[0] in taken), file.name


def test_what_a_systems_page_holds() -> None:
    found = row("method", "lite-ppo")
    assert found is not None
    text = system_page(found)
    for words in (
        "# Lite PPO", "## Formula", "A_i = (R_i - mean_group R)", "posttrain run lite-ppo", "posttrain check lite-ppo",
        "## What you should see", "| 1 (", "| 2 (", "**not shown**", "With a real model (SmolLM2",
        "docs/stages/advantage.md#lite-ppo", "[arXiv:2508.08221](https://arxiv.org/abs/2508.08221)",
        "## Departures from the paper\n\nNone known in the formulas",
    ):  # fmt: skip
        assert words in text, words


def test_every_link_of_a_page_leads_somewhere() -> None:
    for file, text in every_page().items():
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_departures_are_a_section_of_the_docstring() -> None:
    doc = "Idea: x.\n\nL = 1\n\nDepartures from the paper: no critic.\n\nAnd no KL."
    assert sections(doc) == ("L = 1", "no critic.\n\nAnd no KL.")
    assert sections("Idea: x.") == ("", "") and sections("Idea.\n\nDepartures:\n- one") == ("", "- one")
    found = row("method", "grpo")
    assert found is not None and "## Departures from the paper\n\nNo critic." in system_page(found | {"doc": doc})
    assert "Departures" not in system_page(found | {"doc": "Idea: x."})


@pytest.mark.parametrize("id", CLAIMS)
def test_every_claim_has_a_fresh_result(id: str) -> None:
    if is_waiting(CLAIMS[id]):
        pytest.skip("its file is newer than its attempts: run `posttrain check`")
    made = attempts(CLAIMS[id])[-1]
    assert made["verdict"] in ("shown", "not shown")
    if (
        CLAIMS[id].level == "table"
    ):  # another machine does not give the same digits of a language model: its page says what it ran
        assert not is_stale(CLAIMS[id]), f"run `posttrain check {id}`, or with --confirm after a move of code"
    assert made["verdict"] == ("shown" if all(c["shown"] for c in made["checks"]) else "not shown")
    assert {c["name"] for c in made["checks"]} == {c.name for c in CLAIMS[id].checks}


def test_what_was_shown_of_an_earlier_claim_is_not_shown_on_a_language_model() -> None:
    check = {"name": "more", "metric": "x", "difference": 0.3, "low": 0.2, "high": 0.4, "margin": 0.1, "shown": True}
    made = {"attempt": 2, "date": "2026-01-02", "seeds": 5, "verdict": "shown", "level": "pocket", "checks": [check]}
    plain = {"id": "raft", "file": "claims/f/raft.py", "stale": True, "attempts": [made]}
    old = plain | {"attempts": [made | {"earlier": True}]}
    assert _start("grpo", [plain])[0] == "Start with grpo. Shown on a language model: `raft`."
    assert _start("grpo", [old])[0] == "Start with grpo. Nothing was shown on a language model."
    assert "| pocket: shown (attempt 2, stale) |" in _rows([plain])[-1]
    assert "| pocket: shown (attempt 2, of an earlier claim) |" in _rows([old])[-1]
    assert "| shown, of an earlier claim |" in tried(old)[-1]


def test_no_result_without_a_claim() -> None:
    held = {attempts_file(c) for c in CLAIMS.values() if not is_waiting(c) or attempts_file(c).is_file()}
    assert set((ROOT / "claims").rglob("*.jsonl")) == held and all(Path(f).is_file() for f in held)


def test_an_attempt_of_a_language_model_tells_its_commit_and_that_code_has_changed_since() -> None:
    made = {"attempt": 1, "date": "2026-01-02", "seeds": 5, "verdict": "shown", "checks": []}
    pocket = {"stale": True, "attempts": [made | {"level": "pocket", "commits": ["0a1b2c3"]}]}
    told = "| 1 (2026-01-02, 5 seeds, commit 0a1b2c3) | pocket | shown, the code has changed since |  |"
    assert tried(pocket)[-1] == told
    table = {"stale": True, "attempts": [made | {"level": "table"}]}
    assert tried(table)[-1] == "| 1 (2026-01-02, 5 seeds) | table | shown, stale |  |"
    assert ran({"machines": [{"commit": "0a1b2c3d4e"}, {"commit": "0a1b2c3d4e"}, {"commit": ""}]}) == {
        "commits": ["0a1b2c3"]
    }
    assert ran({}) == {}


def test_the_table_of_systems_says_whose_batches_were_not_refilled_and_who_took_fewer_updates() -> None:
    def row(system: str, updates: float) -> dict[str, Any]:
        return {
            "system": system, "task": "t", "seed": 0, "model": "m", "steps": 40, "prompts": 16, "n": 8, "hardware": "h", "versions": "v",
            "date": "d", "accuracy_before": 0.1, "accuracy_after": 0.2, "spent": {"samples": 5120.0, "updates": updates},
        }  # fmt: skip

    text = "\n".join(_systems([row("grpo", 160.0), row("dapo", 140.0), row("dapo", 134.0), row("cispo", 133.0)]))
    assert "## Twelve systems on one published model, at equal answers\n" in text
    assert (
        "| dapo, without refilled batches | 20.0" in text
        and "| grpo | 20.0" in text
        and "| cispo, without refilled batches | 20.0" in text
    )
    assert "Updates differ: `cispo` took 133 and `dapo` took 137 of 160, since groups whose" in text
    assert "Updates differ" not in "\n".join(_systems([row("grpo", 160.0)]))


def test_every_claim_answers_a_question_of_which_objective() -> None:
    asked = {id for _, ids in QUESTIONS.values() for id in ids}
    assert set(CLAIMS) <= asked, "name it in posttrain/view/objective_page.py"
    assert asked <= {r["id"] for r in systems()}
    lines = [line for line in objective_page()[FILE].splitlines() if line.startswith("| [par]")]
    assert len(lines) == 1 and " | pocket: not shown (attempt " in lines[0] and "margin +0.3" in lines[0]


def test_a_table_of_systems_has_every_seed_and_what_was_spent() -> None:
    spent = {"samples": 64.0, "tokens": 1000.0, "updates": 4.0}
    rows = [
        {"system": s, "task": f"tasks/{t}", "seed": k, "accuracy_before": 0.1, "accuracy_after": x, "spent": spent}
        for s, t, k, x in [("b", "u", 0, 0.2), ("a", "u", 1, 0.5), ("a", "u", 0, 0.7), ("a", "v", 0, 0.25)]
    ]
    head, _, first, second = systems_table(rows)
    assert head == "| system | u (10.0 before) | v (10.0 before) | answers | tokens | updates |"
    assert (
        first == "| a | 60.0 (70, 50) | 25.0 (25) | 64 | 1,000 | 4 |"
        and second == "| b | 20.0 (20) |  | 64 | 1,000 | 4 |"
    )


def test_a_comparison_says_which_of_its_runs_are_missing() -> None:
    every = [(t, s, k) for t, some in ARMS.items() for s in some for k in (0, 1)]
    rows = [{"track": t, "system": s, "seed": k} for t, s, k in every]
    assert _missing(rows) == []
    less = [
        r for r in rows if (r["system"], r["seed"]) not in (("reseek", 1), ("answer alone", 0), ("answer alone", 1))
    ]
    assert _missing(less)[0].endswith("there: reseek (seeds 1); answer alone (seeds 0, 1).")


def test_a_table_of_agents_counts_what_its_track_is_about() -> None:
    spent = {"samples": 160.0, "updates": 40.0}
    rows = [
        {"track": t, "system": s, "seed": k, "greedy": {w: x, "worth": 9.0}, "sampled": {w: x / 2}, "spent": spent}
        for t, w, s, k, x in [("search", "right", "reseek", 0, 0.2), ("calls", "accuracy", "toolrl", 1, 0.5), ("calls", "accuracy", "toolrl", 0, 0.7)]
    ]  # fmt: skip
    assert agents_table(rows)[2:] == [
        "| calls | toolrl | 60.0 (70, 50) | 30.0 (35, 25) | 160 | 40 |",
        "| search | reseek | 20.0 (20) | 10.0 (10) | 160 | 40 |",
    ]
