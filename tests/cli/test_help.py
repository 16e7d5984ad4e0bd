"""Help: quick, complete, without torch; and mistakes in the command line as one sentence."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from posttrain.cli import COMMANDS, command_parser, main
from posttrain.commands.parser import dashed, field_docs, take
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from tests.cli.conftest import call


def test_no_help_page_imports_torch() -> None:
    code = (
        "import sys, posttrain.cli as c\n"
        "for argv in [[], ['--help'], ['--version'], *[[name, '--help'] for name in c.COMMANDS]]:\n"
        "    assert c.main(argv) == 0, argv\n"
        "heavy = {'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_package_can_be_run() -> None:
    made = subprocess.run([sys.executable, "-m", "posttrain", "--version"], check=True, capture_output=True, text=True)
    assert made.stdout.startswith("posttrain ")


def test_overview_names_every_command() -> None:
    text = call("--help").out
    assert all(f"\n  {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_with_an_example(name: str) -> None:
    said = call(name, "--help")
    assert said.code == 0
    assert f"usage: posttrain {name}" in said.out and "examples:" in said.out and f"posttrain {name}" in said.out


def test_every_setting_is_an_option_of_run_and_is_explained() -> None:
    options = command_parser("run").names()
    for f in dataclasses.fields(Config):
        if f.name not in ("method", "sampling"):
            assert "--" + f.name.replace("_", "-") in options
    for f in dataclasses.fields(Sampling):
        assert "--sampling." + f.name.replace("_", "-") in options
    assert field_docs(Config)["prompts"] == "prompts per step"


@pytest.mark.parametrize("kind", [Config, Sampling])
def test_every_setting_has_a_docstring_and_the_help_prints_it(kind: type) -> None:
    told = field_docs(kind)
    assert list(told) == [f.name for f in dataclasses.fields(kind)]
    page = " ".join(call("run", "--help").out.split())
    for name, doc in told.items():
        if name not in ("method", "sampling"):  # an argument, and a group of settings
            assert doc.replace("None:", "if not given:") in page


def test_a_docstring_belongs_to_the_field_above_it() -> None:
    @dataclasses.dataclass
    class Some:
        """Not of a field."""

        one: int = 1
        two: int = 2
        """the second,
        on two lines"""
        three: int = 3  # a comment is for readers of the source

    assert field_docs(Some) == {"two": "the second, on two lines"}


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["rnu"], "no command named 'rnu'; did you mean 'run'?"),
        (["run"], "say what to do: posttrain run METHOD, or --config FILE"),
        (["run", "grop"], "no method or plan named 'grop'; did you mean 'grpo'?"),
        (["run", "grpo", "--step", "3"], "posttrain run has no option --step; did you mean --steps?"),
        (["run", "grpo", "--max-tokens", "3"], "did you mean --sampling.max-tokens?"),
        (["run", "grpo", "--steps", "many"], "--steps: expected a whole number, got 'many'"),
        (["run", "grpo", "--lr", "fast"], "--lr: expected a number, got 'fast'"),
        (["run", "grpo", "--steps"], "--steps: a value is missing"),
        (["run", "grpo", "rloo"], "does not know what to do with 'rloo'"),
        (["run", "grpo", "--steps", "-1"], "steps is -1; it must be at least"),
        (["run", "grpo", "--num-generations", "0"], "num_generations is 0; a prompt needs at least 1 answer"),
        (["run", "grpo", "--lr", "0"], "lr is 0.0; a learning rate is more than 0"),
        (["run", "grpo", "--sampling.temperature", "-1"], "temperature is -1.0"),
        (["run", "grpo", "--sampling.top-p", "2"], "top_p must be in (0, 1]"),
        (["run", "grpo", "--use", "no.py"], "--use no.py: there is no such file"),
        (["completion", "bsh"], "no shell named 'bsh'; did you mean 'bash'?"),
        (["check"], "say which claims"),
        (["export", "x"], "say what to export"),
        (["find"], "required: WORDS"),
    ],
)
def test_a_mistake_is_one_sentence(argv: list[str], sentence: str) -> None:
    said = call(*argv)
    assert said.code == 2
    assert said.err.startswith("error: ") and sentence in said.err
    assert said.err.count("\n") == 1 and "Traceback" not in said.err


def test_debug_shows_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_DEBUG", "1")
    with pytest.raises(UserError, match="did you mean 'run'"):
        main(["rnu"])


def test_out_of_memory_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    import posttrain.commands.doctor as doctor

    def full(args: object) -> int:
        raise MemoryError

    monkeypatch.setattr(doctor, "main", full)
    said = call("doctor")
    assert said.code == 2 and "--micro-tokens" in said.err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    import posttrain.commands.doctor as doctor

    def broken(args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor, "main", broken)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_underscores_are_dashes_in_options_and_not_in_values() -> None:
    assert dashed("--max_norm=a_b") == "--max-norm=a_b"
    assert dashed("a_b") == "a_b"


def test_options_of_plans_are_taken_out() -> None:
    taken, rest = take(["x", "--plan.rounds", "2", "--steps", "3", "--plan.a-b=c"], "--plan.")
    assert taken == {"rounds": "2", "a_b": "c"}
    assert rest == ["x", "--steps", "3"]
    with pytest.raises(UserError, match="has no value"):
        take(["--plan.rounds"], "--plan.")
