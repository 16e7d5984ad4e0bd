"""`list` and `show`: everything that is registered, and any of it on one page."""

from __future__ import annotations

import json

import pytest

from posttrain.core.evidence import LEVELS
from posttrain.core.index import index
from posttrain.core.plan import Make
from posttrain.core.registry import find, parts
from posttrain.view.algorithm_page import helpers, outline, page, parameters, source
from tests.cli.conftest import call


def test_list_has_every_part_once() -> None:
    rows = json.loads(call("list", "--json").out)
    assert {(r["stage"], r["name"]) for r in rows} == {(p.card.stage, p.name) for p in parts()}
    assert all(set(r["evidence"]) == set(LEVELS) for r in rows)
    assert all(r["file"] and r["title"] for r in rows)


def test_list_by_stage() -> None:
    stages = {r["stage"] for r in json.loads(call("list", "--stage", "loss", "--json").out)}
    assert stages == {"policy_loss", "preference_loss", "supervised_loss", "reward_model_loss"}
    text = call("list", "--stage", "methods").out
    assert "grpo" in text and "next:" in text and "policy_loss" not in text
    said = call("list", "--stage", "metod")
    assert said.code == 2 and "did you mean 'method'?" in said.err


def test_methods_are_listed_by_family_the_base_first() -> None:
    text = call("list", "--stage", "method").out
    heads = [line for line in text.splitlines() if line.startswith("method: ")]
    assert heads[0] == "method: base" and heads[1:] == sorted(heads[1:]) and len(heads) > 3
    preference = text.partition("\nmethod: preference\n")[2].partition("\nmethod: ")[0]
    assert "online-dpo" in preference and "cispo" not in preference


def test_claims_are_listed_from_the_index() -> None:
    rows = {r["id"]: r for r in json.loads(call("list", "--stage", "claim", "--json").out)}
    table = rows["lite-ppo"]["evidence"]["table"]
    assert table["attempt"] == 2 and table["verdict"] == "not shown" and rows["lite-ppo"]["stage"] == "claim"
    assert rows["one-shot-rlvr"]["evidence"]["pocket"] and not rows["one-shot-rlvr"]["evidence"]["table"]
    assert "(attempt 3" in call("list", "--stage", "claims").out  # summarize-hf


def test_list_tasks() -> None:
    said = call("list", "--stage", "task")
    assert "arithmetic" in said.out and "word_problems" in said.out and "gsm8k" in said.out


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
        text = page(f"{part.card.stage}/{part.name}")
        assert text.startswith(f"# {part.card.title}") and "```python" in text


def test_show_a_part_says_who_uses_it() -> None:
    text = call("show", "policy_loss/cispo").out
    assert "## Methods that use it\ncispo" in text and "next: posttrain run grpo --loss cispo" in text


def test_show_a_change() -> None:
    text = call("show", "grpo(loss='cispo(high=2)', epochs=2)").out
    assert "in force: high=2 (alone: 4.0)" in text and "epochs=2" in text and "def ppo(" not in text


def test_show_a_task_and_a_stranger() -> None:
    assert "posttrain/environments/school/arithmetic.py" in call("show", "arithmetic").out
    said = call("show", "gropo")
    assert said.code == 2 and "did you mean 'grpo'?" in said.err
    said = call("show", "losses/ppo")
    assert said.code == 2 and "no stage named 'losses'" in said.err


def test_show_a_study_that_is_a_claim_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    study = index()["claims"]["helping-or-herding"] | {"id": "a-study", "file": "claims/reward_model/a_study.py"}
    monkeypatch.setitem(index()["claims"], "a-study", study)
    text = call("show", "a-study").out
    assert "claims/reward_model/a_study.py" in text and "| 1 (" in text
    assert "next: posttrain check a-study" in text


def test_the_head_of_a_page_has_evidence_with_attempts_and_the_papers_title() -> None:
    text = call("show", "lite-ppo").out
    assert "table: not shown (attempt 2" in text and "real: measured" in text
    assert "A Deep Dive into RL for LLM Reasoning" in text and "claims/policy_gradient/lite_ppo.jsonl" in text


def test_show_json() -> None:
    assert json.loads(call("show", "ppo", "--json").out)["page"].startswith("# ")


def test_source_is_without_decorators() -> None:
    cispo = find("cispo", "policy_loss")
    assert source(cispo.fn).startswith(f"def {cispo.fn.__name__}(batch: Batch")
    assert [h.__name__ for h in helpers(cispo.fn)] == ["reinforce"]
    assert parameters(cispo.but(high=2.0)) == "in force: high=2.0 (alone: 4.0)"


def test_what_follows_a_setting_is_told_by_its_name() -> None:
    assert parameters(find("constant", "aggregate")) == "in force: length=the run's max_tokens"
    changed = parameters(find("constant", "aggregate").but(length=64))
    assert changed == "in force: length=64 (alone: the run's max_tokens)"


def test_a_role_that_is_made_anew_has_a_line() -> None:
    def merged(context: object) -> None:
        """The mean of two policies.

        More."""

    assert outline((Make("policy", merged),)) == ["- make the policy anew: The mean of two policies."]
