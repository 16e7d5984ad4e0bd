"""A run as a file: config.toml repeats it to the last digit, whatever was said in it; mistakes in a file are one sentence."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.config import Config, from_dict, to_dict
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.registry import find, parse
from posttrain.core.sampling import Sampling
from posttrain.runs.config_file import method_changes, plan_call, read_file, toml, write_file
from posttrain.runs.run import Run
from posttrain.runs.start import Start
from tests.cli.conftest import FIRST, Said, call

ODD = Config(
    task='my "data"\\x.jsonl', name="odd", seed=-3, lr=1e-05, level=None, think=False, num_generations=7,
    reward="0.1*length(target=3, unit='characters') + \x7fä\u2028\n\t", reward_timeout=0.1 + 0.2,
    sampling=Sampling(temperature=0.7, top_p=0.95, raw_logp=True),
)  # fmt: skip


def test_every_setting_comes_back_to_the_last_digit(tmp_path: Path) -> None:
    with Run(tmp_path / "odd", to_dict(ODD)) as run:
        write_file(run, ODD, ODD.method, Start(use=("a b.py",)))
    said = read_file(tmp_path / "odd/config.toml")
    assert from_dict(Config, said.settings) == ODD and said.use == ["a b.py"] and said.source == ""


@pytest.mark.parametrize("value", [True, False, 0, -7, 1e-300, 1.5, "", 'q"\\\n\x00\x1f\x7fü', ["a", "b"]])
def test_values_as_toml(value: Any) -> None:
    assert tomllib.loads(f"x = {toml(value)}")["x"] == value


def test_methods_come_back_with_their_parts() -> None:
    changed = {
        "loss": "cispo(high=4.5)",
        "terms": ("kl(coef=0.03)", "entropy"),
        "shaping": (),
        "prompts": "uniform",
        "epochs": 3,
    }
    method = find_method("rloo").but(**changed)
    name, changes, unnamed = method_changes("rloo", method)
    assert name == "rloo" and unnamed == []
    assert changes == {"epochs": 3, "shaping": "none", "loss": "cispo(high=4.5)", "terms": "kl(coef=0.03) + entropy"}
    assert method_changes("grpo(epochs=2)", find_method("grpo(epochs=2)")) == ("grpo(epochs=2)", {}, [])
    assert method_changes("grpo", find_method("dapo"))[:2] == ("dapo", {})
    assert method_changes("grpo", method.but(name="mine"))[2] == ["method"]  # no file can name it


def test_plans_come_back_with_their_parameters() -> None:
    plan = find("rlhf-workflow(rounds=2)", "plan")()
    word, options = parse(plan_call(plan))
    assert word == "rlhf-workflow" and options == plan.options and options["rounds"] == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stepz = 3", "no setting in FILE named 'stepz'; did you mean 'steps'?"),
        ("[sampling]\ntemprature = 1", "named 'sampling.temprature'; did you mean 'sampling.temperature'?"),
        ("[parts]\nlosss = 'ppo'", "named 'parts.losss'; did you mean 'parts.loss'?"),
        ("sampling = 3", "sampling is 3; write it as a table: [sampling]"),
        ("use = 'mine.py'", 'write it as a list: use = ["mine.py"]'),
        ("steps = ", "not TOML"),
        ("objects = ['reward']", "given objects in Python (reward), which a file cannot repeat"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    said = call("run", "--config", str(file))
    assert said.code == 2 and sentence.replace("FILE", str(file)) in said.err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        read_file(tmp_path / "no.toml")
    said = call("run", "--config", str(tmp_path))
    assert said.code == 2 and "cannot be read" in said.err


def metrics(folder: Path) -> list[tuple[Any, ...]]:
    with Run.open(folder) as run:
        return [(r["phase"], r["step"], r["name"], r["value"]) for r in run.store.metrics()]


def test_a_file_repeats_a_run_and_the_command_line_wins(first_run: Said, runs: Path) -> None:
    file = str(runs / "grpo-arithmetic/config.toml")
    said = call("run", "--config", file, "--name", "again", "--runs", str(runs), "--json")
    assert said.code == 0, said.err
    one, two = (json.loads((runs / name / "config.json").read_text()) for name in ("grpo-arithmetic", "again"))
    assert {k for k in one if one[k] != two[k]} <= {"name", "threads"}
    assert metrics(runs / "again") == metrics(runs / "grpo-arithmetic") != []
    said = call("run", "--config", file, "--runs", str(runs), "--json")  # without another name it is that run
    assert said.code == 0 and json.loads(said.out) == json.loads((runs / "grpo-arithmetic/summary.json").read_text())
    said = call(
        "run",
        "rloo",
        "--config",
        file,
        "--name",
        "other",
        "--steps",
        "1",
        "--loss",
        "cispo",
        "--runs",
        str(runs),
        "--json",
    )
    assert said.code == 0, said.err
    other = json.loads((runs / "other/config.json").read_text())
    assert (other["method"], other["steps"], other["sampling"]["temperature"]) == ("rloo", 1, 3.0)
    assert other["parts"]["loss"][0]["part"] == "cispo" and other["reward"] == FIRST[3]


def test_a_file_repeats_a_plan(tmp_path: Path) -> None:
    from posttrain.core.plan import Do, Plan, plan
    from posttrain.core.registry import _PARTS

    seen: list[tuple[int, Any]] = []

    def note_twice(rounds: int = 1, words: tuple[str, ...] | None = ("a",)) -> Plan:
        """Note: writes its options down."""
        return Plan((Do("note", lambda context: seen.append((rounds, words))),), "note-twice")

    try:
        plan(title="Note")(note_twice)
        where = ["--runs", str(tmp_path), "--quiet"]
        assert call("run", "note-twice(words=None)", "--plan.rounds", "3", *where).code == 0
        assert call("run", "--config", str(tmp_path / "note-twice/config.toml"), "--name", "again", *where).code == 0
        (tmp_path / "mine.toml").write_text('method = "note-twice"\n[plan]\nrounds = 7\nwords = ["b", "c"]\n')
        assert call("run", "--config", str(tmp_path / "mine.toml"), "--name", "mine", *where).code == 0
        assert seen == [(3, None), (3, None), (7, ["b", "c"])]
    finally:
        _PARTS["plan"].pop("note-twice", None)
