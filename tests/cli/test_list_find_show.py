"""`list`, `find` and `show`: everything that is registered, found by any of its names, on one page."""

from __future__ import annotations

import json

import pytest

from posttrain.commands.find import PAPERS, best, everything, worth
from posttrain.core.evidence import evidence, files, in_words
from posttrain.core.registry import Card, Part, find, parts
from posttrain.core.show import helpers, page, parameters, source
from tests.cli.conftest import call


def test_list_has_every_part_once() -> None:
    rows = json.loads(call("list", "--json").out)
    assert {(r["stage"], r["name"]) for r in rows} == {
        (p.card.stage, p.name) for p in parts() if p.card.stage != "claim"
    }
    assert all(set(r["evidence"]) == {"formula", "learns", "claim", "scale"} for r in rows)
    assert all(r["file"] and r["title"] for r in rows)


def test_list_by_stage() -> None:
    stages = {r["stage"] for r in json.loads(call("list", "--stage", "loss", "--json").out)}
    assert stages == {"policy_loss", "preference_loss", "supervised_loss", "reward_model_loss"}
    text = call("list", "--stage", "methods").out
    assert "grpo" in text and "next:" in text and "policy_loss" not in text
    said = call("list", "--stage", "metod")
    assert said.code == 2 and "did you mean 'method'?" in said.err


def test_list_tasks() -> None:
    said = call("list", "--stage", "task")
    assert "arithmetic" in said.out and "word_problems" in said.out and "gsm8k" in said.out


@pytest.mark.parametrize("words", [["2402.03300"], ["arXiv:2402.03300"], ["grpo"], ["GRPO"]])
def test_find_by_name_and_paper(words: list[str]) -> None:
    found = json.loads(call("find", *words, "--json").out)
    assert (found[0]["name"], found[0]["stage"]) == ("grpo", "method")  # the method before its parts
    assert len(found) <= 10


def test_find_by_words_of_the_idea() -> None:
    names = [r["name"] for r in json.loads(call("find", "clip", "importance", "weight", "--json").out)]
    assert names[0] == "cispo"
    said = call("find", "Dr. GRPO")
    assert said.out.startswith("dr-grpo") and "posttrain show dr-grpo" in said.out


def test_find_nothing() -> None:
    said = call("find", "xyzzyplugh")
    assert said.code == 2 and "nothing about 'xyzzyplugh'" in said.err


def test_ranking() -> None:
    """More words first, then the better places: a name 100, a piece of it 40, a word of the idea 5."""
    a = {"id": "abc", "name": "abc", "title": "ABC", "paper": "", "idea": "clip it", "stage": "term"}
    b = {"id": "abcd", "name": "abcd", "title": "D", "paper": "arXiv:1.2", "idea": "other", "stage": "term"}
    assert worth(a, "abc") == 100 and worth(b, "abc") == 40 and worth(a, "clip") == 5 and worth(b, "clip") == 0
    assert worth(b, "1.2") == worth(b, "arxiv:1.2") == 100
    assert best([b, a], ["abc", "clip"]) == [a, b]
    assert best([a, b], ["nothing"]) == []


def test_show_a_method_is_the_whole_algorithm() -> None:
    text = call("show", "grpo").out
    for words in (
        "for step in loop.steps():", "def credit(", "def objective(", "def grpo(batch", "def ppo(batch", "def kl(batch",
        "def kl_estimate(", "def group_whiten(", "def sequence_mean(", "arXiv:2402.03300", "evidence: ",
        "next: posttrain run grpo",        "`posttrain show advantage/grpo`",
    ):  # fmt: skip
        assert words in text, words
    assert "@policy_loss" not in text and "# noqa" not in text


def test_show_every_part_and_plan() -> None:
    for part in parts():
        if part.card.stage != "claim":
            text = page(f"{part.card.stage}/{part.name}")
            assert text.startswith(f"# {part.card.title}") and "```python" in text


def test_show_a_part_says_who_uses_it() -> None:
    text = call("show", "policy_loss/cispo").out
    assert "## Methods that use it\ncispo" in text and "next: posttrain run grpo --loss cispo" in text


def test_show_a_change() -> None:
    text = call("show", "grpo(loss='cispo(high=4)', epochs=2)").out
    assert "in force: high=4 (alone: 5.0)" in text and "epochs=2" in text and "def ppo(" not in text


def test_show_a_task_and_a_stranger() -> None:
    assert "posttrain/environments/school/arithmetic.py" in call("show", "arithmetic").out
    said = call("show", "gropo")
    assert said.code == 2 and "did you mean 'grpo'?" in said.err
    said = call("show", "losses/ppo")
    assert said.code == 2 and "no stage named 'losses'" in said.err


def test_show_json() -> None:
    assert json.loads(call("show", "ppo", "--json").out)["page"].startswith("# ")


def test_source_is_without_decorators() -> None:
    cispo = find("cispo", "policy_loss")
    assert source(cispo.fn).startswith(f"def {cispo.fn.__name__}(batch: Batch")
    assert [h.__name__ for h in helpers(cispo.fn)] == ["reinforce"]
    assert parameters(cispo.but(high=2.0)) == "in force: high=2.0 (alone: 5.0)"


def test_evidence_names_its_files() -> None:
    card = find("cispo", "policy_loss").card
    assert evidence(card)["formula"] is True
    assert any(f.startswith("tests/losses/") for f in files(card)["formula"])


def test_no_evidence_without_a_file() -> None:
    stranger = Card("not-a-part-at-all", "policy_loss", "Stranger")
    assert evidence(stranger) == {"formula": False, "learns": False, "claim": "none", "scale": False}
    assert in_words(evidence(stranger)) == "-"
    assert (
        in_words({"formula": True, "learns": False, "claim": "stale", "scale": True}) == "formula, claim stale, scale"
    )


def test_every_test_that_evidence_names_exists() -> None:
    from pathlib import Path

    from posttrain.core.evidence import TESTS, tested

    root = TESTS.parent.parent
    missing = [
        test
        for levels in tested().values()
        for tests in levels.values()
        for test in tests
        if f"def {test.partition('::')[2]}(" not in Path(root / test.partition("::")[0]).read_text()
    ]
    assert not missing, "run python -m tests.scan_evidence"


def test_a_method_has_formulas_when_all_its_parts_have() -> None:
    part: Part = find("grpo", "method")
    names = " ".join(files(part.card)["formula"])
    assert evidence(part.card)["formula"] and "test_advantages" in names and "test_policy" in names


@pytest.mark.parametrize(
    ("title", "id"),
    [
        ("Learning to summarize from human feedback", "summarize-hf"),
        ("Tapered Off-Policy REINFORCE", "topr"),
        ("Helping or Herding", "helping-or-herding"),  # a study: found as its claim
    ],
)
def test_a_paper_is_found_by_its_title(title: str, id: str) -> None:
    assert best(everything(), title.split())[0]["id"] == id


def test_every_title_belongs_to_a_system() -> None:
    assert set(json.loads(PAPERS.read_text())) <= {row["id"] for row in everything()}
