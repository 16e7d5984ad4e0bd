"""`find`: by name, paper, link, title, words; misspelled; known but not here; fast, and without torch."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.commands.find import best, closest, everything, is_called, plain, sentence, worth
from posttrain.core.index import known
from tests.cli.conftest import call


@pytest.mark.parametrize(
    "words",
    [
        ["2402.03300"], ["arXiv:2402.03300"], ["grpo"], ["GRPO"], ["https://arxiv.org/abs/2402.03300v3"],
        ["https://arxiv.org/pdf/2402.03300"], ["http://www.arxiv.org/pdf/2402.03300v1.pdf"], ["arxiv.org/abs/2402.03300"],
        ["https://huggingface.co/papers/2402.03300"], ["Group", "Relative", "Policy", "Optimization"],
    ],
)  # fmt: skip
def test_find_by_name_paper_link_and_alias(words: list[str]) -> None:
    found = json.loads(call("find", *words, "--json").out)
    assert (found[0]["name"], found[0]["stage"]) == ("grpo", "method")  # the method before its parts
    assert len(found) <= 10 and all(r["here"] for r in found)


def test_only_links_to_papers_are_taken_apart() -> None:
    assert plain("https://arxiv.org/abs/2402.03300v3?context=cs") == "2402.03300"
    for word in ("grpo", "0.5", "1e-3", "v1.2345", "https://arxiv.org/list/cs.LG"):
        assert plain(word) == word


def test_find_by_words_of_the_idea() -> None:
    names = [r["name"] for r in json.loads(call("find", "clip", "importance", "weight", "--json").out)]
    assert names[0] == "cispo"
    said = call("find", "Dr. GRPO")
    assert said.out.startswith("dr-grpo") and "posttrain show dr-grpo" in said.out


def test_evidence_is_told_with_its_attempt() -> None:
    assert "table: not shown (attempt 2" in call("find", "lite-ppo").out


@pytest.mark.parametrize(
    ("typed", "meant"), [("grppo", "grpo"), ("gropo", "grpo"), ("lite-poo", "lite-ppo"), ("reinforec", "reinforce")]
)
def test_a_misspelled_name_is_found(typed: str, meant: str) -> None:
    said = call("find", typed)
    assert said.code == 0 and f"did you mean '{meant}'?" in said.out.splitlines()[0]
    assert said.out.splitlines()[1].startswith(f"{meant}  method") and f"posttrain show {meant}" in said.out
    assert json.loads(call("find", typed, "--json").out)[0]["name"] == meant


def test_find_nothing() -> None:
    said = call("find", "xyzzyplugh")
    assert said.code == 2 and "nothing about 'xyzzyplugh'" in said.err


# ---- known, not here


@pytest.mark.parametrize(
    "words",
    ["ARPO", "arpo", "2507.19849", "https://arxiv.org/abs/2507.19849", "Agentic Reinforced Policy Optimization"],
)
def test_a_system_that_is_not_here_yet(words: str) -> None:
    said = call("find", words)
    assert said.code == 0
    assert said.out.splitlines()[0] == "ARPO (arXiv:2507.19849) is known but not here yet; nearest here: gigpo"
    assert "posttrain show gigpo" in said.out
    rows = json.loads(call("find", words, "--json").out)
    assert [(r["name"], r["here"], r["near"]) for r in rows] == [("ARPO", False, "gigpo")]


def test_a_misspelled_system_that_is_not_here() -> None:
    said = call("find", "arpoo")
    assert said.code == 0 and "did you mean 'ARPO'?" in said.out and "ARPO (arXiv:2507.19849) is known but" in said.out


def test_what_is_here_is_preferred_to_what_is_as_close_and_is_not() -> None:
    rows = [{"name": "grpo", "aliases": []}]
    assert closest("gpro", rows, [{"name": "PRO", "aliases": []}]) == "grpo"
    assert closest("gpro", rows, [{"name": "GPRO", "aliases": []}]) == "GPRO"
    assert closest("zzz", rows, []) == ""


def test_the_table_of_known_systems_is_sound() -> None:
    """Ids once each; papers are arXiv ids; what is near is here; what is here is not called absent."""
    rows = everything()
    names = {r["name"] for r in rows} | {r["id"] for r in rows}
    ids = [e["id"] for e in known()]
    assert len(ids) == len(set(ids)) > 400
    for e in known():
        assert set(e) == {"id", "name", "aliases", "paper", "title", "family", "near"}
        assert e["name"] and (not e["paper"] or e["paper"].startswith("arXiv:")), e["id"]
        assert not e["near"] or e["near"] in names, e["id"]
        assert e["id"] in names or is_called(e, [e["name"]])
    assert "is known but not here yet" not in call("find", "dapo").out
    assert sentence({"name": "X", "paper": "", "near": ""}) == "X is known but not here yet"


# ---- ranking


def test_ranking() -> None:
    """More words first, then the better places: a name 100, a piece of it 40, a word of the idea 5."""
    a = {"id": "abc", "name": "abc", "title": "ABC", "paper": "", "idea": "clip it", "stage": "term"}
    b = {"id": "abcd", "name": "abcd", "title": "D", "paper": "arXiv:1.2", "idea": "other", "stage": "term"}
    assert worth(a, "abc") == 100 and worth(b, "abc") == 40 and worth(a, "clip") == 5 and worth(b, "clip") == 0
    assert worth(b, "1.2") == worth(b, "arxiv:1.2") == 100
    assert worth(a | {"aliases": ["Some Thing"]}, "some thing") == 100
    assert best([b, a], ["abc", "clip"]) == [a, b]
    assert best([a, b], ["nothing"]) == []


@pytest.mark.parametrize(
    ("title", "id"),
    [
        ("Learning to summarize from human feedback", "summarize-hf"),
        ("Tapered Off-Policy REINFORCE", "topr"),
        ("Helping or Herding", "helping-or-herding"),
    ],
)
def test_a_paper_is_found_by_its_title(title: str, id: str) -> None:
    assert best(everything(), title.split())[0]["id"] == id


# ---- cost


def cpu_of(*argv: str) -> float:
    """Seconds of user and system time of a process."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent.parent), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *argv], env=env, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def test_find_costs_little_cpu() -> None:
    # measured 0.12 s on one core of 2026, twice what this part of the standard library takes; importing every part, or torch alone, takes
    # ten times as much and more
    library = min(cpu_of("-c", "import argparse, inspect, json, dataclasses") for _ in range(2))
    assert min(cpu_of("-m", "posttrain", "find", "grpo") for _ in range(3)) < max(0.4, 6 * library)


def test_no_torch_is_imported() -> None:
    asked = [
        ["find", "grpo"],
        ["find", "gpro"],
        ["find", "arpo"],
        ["list"],
        ["list", "--stage", "claim"],
        ["completion", "bash"],
    ]
    each = f"for argv in {asked!r}:\n    assert main(argv) == 0\n    assert 'torch' not in sys.modules, argv"
    cpu_of("-c", f"import sys\nfrom posttrain.cli import main\n{each}")


def test_what_is_said_of_claims_needs_no_checkout() -> None:
    """An installed package has neither claims nor tests beside it."""
    asked = [["find", "lite-ppo"], ["list", "--stage", "claim"], ["show", "lite-ppo"], ["show", "helping-or-herding"]]
    missing = "import sys\nsys.modules['claims'] = sys.modules['tests'] = None\nfrom posttrain.cli import main"
    cpu_of("-c", f"{missing}\nfor argv in {asked!r}:\n    assert main(argv) == 0, argv")
