"""A reward model from a folder: one that `posttrain run reward-model` trained, or one in the format of Hugging Face."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.registry import scorer
from posttrain.core.types import Prompt
from posttrain.rewards.runtime.scorer import TextBase

RUN_READERS: list[Callable[..., Any]] = []  # posttrain.runs.saved puts itself here: this layer knows no runs
Values = Callable[[Sequence[Prompt], Sequence[str]], list[float]]


@scorer(title="Learned reward", paper="arXiv:2203.02155")
class LearnedReward(TextBase):
    """Learned reward: the score that a trained reward model gives to a prompt with its answer, as its head gives it.

    --reward runs/NAME               a finished run of reward-model (or of a plan that trains one)
    --reward runs/NAME@best          its checkpoint with the best held-out score
    --reward path/to/folder          a Hugging Face folder for sequence classification with one label
    It reads texts with its own tokenizer and chat template, so it may judge the answers of any policy.
    """

    by_name = {"folder": "folder"}

    def __init__(self, folder: str, device: str = "") -> None:
        self.name = Path(folder).name
        self.reported = (self.name,)
        self.read = values_of(Path(folder), device)

    def values(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return self.read(prompts, texts) if len(texts) else []


def run_of(folder: Path) -> tuple[Path, str]:
    """`runs/NAME@best` as the run's folder and the checkpoint that is meant; "" for the newest, or where it is no run."""
    head, _, at = folder.name.rpartition("@")
    meant = folder.with_name(head) if head and at else folder
    return (meant, at) if not folder.exists() and (meant / "run.sqlite").exists() else (folder, "")


def values_of(folder: Path, device: str = "") -> Values:
    """A folder as a function from texts to rewards; an error where it holds no reward model."""
    folder, at = run_of(folder)
    if not folder.is_dir():
        near = nearest(folder.name, [p.name for p in folder.parent.glob("*/")] if folder.parent.is_dir() else [])
        hint = f"did you mean {folder.parent / near}?" if near else "train one: posttrain run reward-model"
        raise UserError(f"--reward {folder}: there is no such folder; {hint}")
    if (folder / "run.sqlite").exists():
        from posttrain.rewards.scorers.reward_model import RewardModel

        if not RUN_READERS:
            raise UserError(f"--reward {folder}: runs cannot be read here; import posttrain.runs.saved first")
        try:
            return RewardModel(RUN_READERS[0](folder, device, at=at))
        except sqlite3.DatabaseError as error:
            raise UserError(f"--reward {folder}: its run.sqlite is not that of a run: {error}") from None
    if not (folder / "config.json").exists():
        raise UserError(f"--reward {folder}: neither a run nor a model folder; there is no config.json in it")
    try:
        kinds = json.loads((folder / "config.json").read_text()).get("architectures") or []
    except (ValueError, AttributeError):
        raise UserError(f"--reward {folder}: its config.json is not a JSON object") from None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        got = f"a model of the kind {kinds[0]}" if kinds else "no sequence classifier"
        raise UserError(
            f"--reward {folder}: it holds {got}; a reward model is a ...ForSequenceClassification with one label"
        )
    from posttrain.rewards.scorers.classifier import load_classifier

    return load_classifier(folder, device)
