"""Public data sets by name: where their files are under the data folder, and how they are asked and graded.

The folder is the user's: `--data PATH`, or the environment variable POSTTRAIN_DATA.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.types import Prompt
from posttrain.environments.data import THINK, DataEnvironment, data
from posttrain.environments.feedback import PreferenceFiles
from posttrain.environments.preferences import PreferenceData, preferences
from posttrain.environments.questions import PLAIN, Layout, Raw

VARIABLE = "POSTTRAIN_DATA"


@dataclass(frozen=True)
class Preset:
    """PreferenceFiles of a data set (a split may be missing) and their layout."""

    train: str = ""
    test: str = ""
    layout: Layout = PLAIN
    skip_bad: bool = False  # the public files themselves have bad rows
    level: str = ""  # the column that says how hard a row is
    levels: range = range(0)


def _countdown(row: Raw) -> Raw:
    numbers, target = [int(x) for x in row["nums"]], int(row["target"])
    listed = ", ".join(map(str, numbers))
    ask = f"Make {target} from the numbers {listed}. Use each number once, with + - * / and brackets."
    return {"question": ask, "answer": row["solution"], "numbers": numbers, "target": target}


def _knights(row: Raw) -> Raw:
    return {"question": row["quiz"], "answer": row["solution_text"], "names": row["names"], "n_people": row["n_people"]}


def _alpaca(row: Raw) -> Raw:
    return {"question": "\n".join(filter(None, (row["instruction"], row["input"]))), "answer": row["output"]}


def _box(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _one_more(rng: Random, prompt: Prompt) -> str:
    """Another value; infinity plus one would be the same."""
    return _box("17.31" if "infty" in str(prompt.answer) else f"{prompt.answer} + 1")


def _one_turned(rng: Random, prompt: Prompt) -> str:
    """One knight is a knave, or the other way round."""
    lines = str(prompt.answer).splitlines()
    i = rng.randrange(len(lines))
    swap = ("knight", "knave") if "knight" in lines[i] else ("knave", "knight")
    return "\n".join([*lines[:i], lines[i].replace(*swap), *lines[i + 1 :]])


def _off(rng: Random, prompt: Prompt) -> str:
    """An expression that misses the target, or uses a number that was not given."""
    return f"{prompt.answer}+1" if rng.random() < 0.5 else str(prompt.info["target"])


_MATH = Layout(reward="math", suffix="\nPut the final answer in \\boxed{}.", write=_box, spoil=_one_more)
_GSM8K = Layout(reward="numeric", suffix="\nWork it out, then write the answer after ####.")
_COUNTDOWN = Layout(
    reward="countdown", shape=_countdown, spoil=_off, suffix="\nEnd with the expression alone on a line."
)
_KNIGHTS = Layout(
    reward="knights_knaves", shape=_knights, spoil=_one_turned,
    suffix="\nEnd with one line for each person, like: (1) Ann is a knight",
)  # fmt: skip

QUESTIONS: dict[str, Preset] = {
    "gsm8k": Preset("gsm8k/train.jsonl.gz", "gsm8k/test.jsonl.gz", _GSM8K),
    "math": Preset("math/train_4500.jsonl.gz", "math/math500.jsonl.gz", _MATH, level="level", levels=range(1, 6)),
    "math_limr": Preset("math/train_limr_8k.jsonl.gz", "math/math500.jsonl.gz", _MATH, skip_bad=True),
    "deepmath": Preset("deepmath_5k/train.jsonl.gz", "", _MATH),
    "aime24": Preset("", "competition_math/aime24.jsonl.gz", _MATH),
    "aime25": Preset("", "competition_math/aime25.jsonl.gz", _MATH),
    "amc23": Preset("", "competition_math/amc23.jsonl.gz", _MATH),
    "countdown": Preset("countdown/train.jsonl.gz", "countdown/test.jsonl.gz", _COUNTDOWN),
    "knights_knaves": Preset(
        "knights_knaves/train.jsonl.gz", "knights_knaves/test.jsonl.gz", _KNIGHTS, level="n_people", levels=range(3, 8)
    ),
    "alpaca": Preset("llamafactory_demo/sft_alpaca.jsonl.gz", "", Layout(shape=_alpaca, reward="exact_match")),
}
_HERE = Path(__file__).parent / "pairs"
SHIPPED = {
    name: _HERE / f"{name}.jsonl" for name in ("school_pairs", "school_lists", "school_labels")
}  # by examples/make_pairs.py
PAIRS: dict[str, Preset] = {
    "hh_rlhf": Preset("hh_rlhf/harmless_train_first_turn_5k.jsonl.gz", "hh_rlhf/harmless_base_test.jsonl.gz"),
    "hh_helpful": Preset("hh_rlhf/helpful_test_human.jsonl.gz"),
    "dpo_demo": Preset("llamafactory_demo/dpo_pairs.jsonl.gz"),
    "alpaca_eval_prefs": Preset("alpaca_eval_prefs/train.jsonl.gz", "alpaca_eval_prefs/test.jsonl.gz"),
}
LABELS: dict[str, Preset] = {
    "kto_demo": Preset("llamafactory_demo/kto_binary.jsonl.gz"),
    "truthfulqa_judged": Preset("truthfulqa/judge_truth.jsonl.gz"),
}
PREFERRED = (*SHIPPED, *PAIRS, *LABELS)  # every set of preferences that has a name


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder with the data sets: the one given, else what POSTTRAIN_DATA names."""
    chosen = folder or os.environ.get(VARIABLE)
    if not chosen:
        raise UserError(f"the data sets are read from a folder of yours; pass --data PATH or set {VARIABLE}=PATH")
    if not Path(chosen).is_dir():
        raise UserError(f"no data folder at {chosen}; pass --data PATH or set {VARIABLE}=PATH")
    return Path(chosen)


def question_set(
    name: str, folder: str | Path | None = None, level: int | None = None, think: bool = False, seed: int = 0
) -> DataEnvironment:
    """A data set of questions by name; `level` keeps the rows of one difficulty where the set has them."""
    if name not in QUESTIONS:
        raise unknown("data set of questions", name, QUESTIONS)
    preset = QUESTIONS[name]
    layout = preset.layout
    if level is not None:
        layout = replace(layout, shape=_at_level(name, preset, level))
    if think:
        layout = replace(layout, suffix=layout.suffix + THINK)
    return data(_files(preset, folder), layout=layout, seed=seed, skip_bad=preset.skip_bad, name=name)


def _at_level(name: str, preset: Preset, level: int) -> Any:
    """A shape that leaves out the rows of other levels."""
    if level not in preset.levels:
        have = f"has levels {preset.levels[0]} to {preset.levels[-1]}" if preset.levels else "has no levels"
        raise UserError(f"{name} {have}, got level={level}")
    inner = preset.layout.shape

    def shape(row: Raw) -> Raw | None:
        if str(row.get(preset.level, "")).removeprefix("Level ") != str(level):
            return None
        return inner(row) if inner else row

    return shape


def pair_set(name: str, folder: str | Path | None = None, seed: int = 0) -> PreferenceData:
    """A data set of preference pairs by name; those that ship need no folder."""
    found = preference_set(name, folder)
    return preferences(found.source, None, found.layout, seed, found.skip_bad, name)


def preference_set(name: str, folder: str | Path | None = None) -> PreferenceFiles:
    """The files of a data set of preferences by name, whatever their kind."""
    if name in SHIPPED:
        return PreferenceFiles(SHIPPED[name], name=name)
    if name not in PREFERRED:
        raise unknown("data set of preferences", name, PREFERRED)
    preset = (PAIRS | LABELS)[name]
    return PreferenceFiles(_files(preset, folder), layout=preset.layout, skip_bad=preset.skip_bad, name=name)


def _files(preset: Preset, folder: str | Path | None) -> Any:
    root = data_folder(folder)
    return {split: root / file for split, file in (("train", preset.train), ("test", preset.test)) if file}
