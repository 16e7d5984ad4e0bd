"""One function reads preference pairs for every plan: of a file that an option names, or of --task."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.core.config import Config
from posttrain.core.plan import Context
from posttrain.methods.members import asked_prompts
from posttrain.methods.settings import asked_pairs


def context(**settings: str) -> Context:
    return Context(None, Config(**settings), {})  # type: ignore[arg-type]


def file(folder: Path, name: str) -> str:
    path = folder / f"{name}.jsonl"
    rows = [{"prompt": f"{name} {i}", "chosen": "good", "rejected": "bad"} for i in range(20)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def test_pairs_of_the_task_are_read_once_and_count_as_read(tmp_path: Path) -> None:
    asked = context(task=file(tmp_path, "mine"), system="Be kind.")
    env = asked_pairs(asked)
    assert env is asked_pairs(asked) is asked_prompts(asked) and asked.read == {"task"}
    assert env.prompt(0).content[0] == {"role": "system", "content": "Be kind."}


def test_pairs_of_an_option_leave_the_task_unread(tmp_path: Path) -> None:
    asked, named = context(task="countdown"), file(tmp_path, "theirs")
    assert asked_pairs(asked, named) is asked_pairs(asked, named) and not asked.read
    assert asked_pairs(asked, named).prompt(0).last.startswith("theirs")


def test_without_a_task_they_are_those_that_ship() -> None:
    assert asked_pairs(context()).name == "school_pairs"
