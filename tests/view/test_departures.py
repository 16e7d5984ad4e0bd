"""Every system says how it departs from its paper, and what it tells the reader to type can be typed."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from posttrain.cli import command_parser
from posttrain.commands.list import systems as listed
from posttrain.commands.parser import parse, take
from posttrain.commands.run import literal, part_changes
from posttrain.commands.show import page_of
from posttrain.core.config import Config
from posttrain.core.index import idea, row
from posttrain.core.method import find_method
from posttrain.core.registry import find
from posttrain.view.methods_page import systems
from posttrain.view.system_pages import sections, system_page

WHOLE = {r["name"]: r for r in systems()}
WITH_PAPER = [name for name, r in WHOLE.items() if r["paper"]]
_OPTIONS = re.compile(r"`(--[^`]+)`")


def departures(name: str) -> str:
    return sections(WHOLE[name]["doc"])[1]


@pytest.mark.parametrize("name", WITH_PAPER)
def test_a_system_with_a_paper_says_how_it_departs_from_it(name: str) -> None:
    told = departures(name)
    assert len(told.split()) >= 8, f"{WHOLE[name]['file']}: end its docstring with a paragraph `Departures: ...`"
    text = system_page(WHOLE[name])
    assert f"## Departures from the paper\n\n{told[0].upper()}" in text
    assert "Departures:" not in text  # it is in its section, and nowhere else
    assert "<" not in re.sub(r"`[^`]*`", "", told), "a tag outside backticks is lost where Markdown is shown"


def test_a_page_names_the_settings_that_are_no_papers() -> None:
    c = Config()
    method, plan, claim = (system_page(WHOLE[n]) for n in ("dapo", "reft", "memory"))
    assert f"no paper's: {c.steps} steps of {c.prompts} prompts" in method and f"{c.prompts} prompts per step" in plan
    assert f"{c.steps} steps" not in plan
    assert "## Departures from the paper" in claim and "no paper's" not in claim


def test_departures_are_shown_and_are_no_part_of_the_idea() -> None:
    for name in ("lite-ppo", "reft", "rm-ensemble-conservative"):
        assert "Departures: " in page_of(name)[0], name
    for r in [*WHOLE.values(), *listed()]:
        assert "Departures" not in r["idea"], r["name"]
    found = row("method", "reinforce")
    assert found is not None and idea(found["doc"]).endswith("Williams 1992, doi:10.1007/BF00992696")


@pytest.mark.parametrize("name", [n for n in WITH_PAPER if WHOLE[n]["stage"] != "claim"])
def test_options_that_departures_name_are_options_of_the_run(name: str) -> None:
    for text in _OPTIONS.findall(departures(name).replace("\n", " ")):
        if text.count(" ") and not text.endswith(("NAME", "FUNCTION", "FOLDER", "FILE")):
            built(name, shlex.split(text))
        else:
            known = [*command_parser("run").names(), *(f"--plan.{o}" for o in WHOLE[name]["parameters"])]
            assert text.split()[0] in known, f"{name}: {text}"


def built(name: str, words: list[str]) -> Any:
    """The method or plan as the command line would build it with these options."""
    taken, rest = take(words, "--plan.")
    args = parse(command_parser("run"), [name, *rest])
    if WHOLE[name]["stage"] == "method":
        assert not taken
        return find_method(name).but(**part_changes(args))
    return find(name, "plan").but(**{k: literal(v) for k, v in taken.items()})()


def test_an_option_that_is_none_would_be_found() -> None:
    from posttrain.core.errors import UserError

    for words in (["--loss", "gspo(lowest=2e-3)"], ["--keep", "zero_variance"], ["--rollout", "vines"]):
        with pytest.raises(UserError):
            built("luspo", words)
