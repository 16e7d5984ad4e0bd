"""`traced("grpo")` runs a registered method or plan as `posttrain run` does, on a tiny language model, and writes down what happened.

    trace = traced("remax", reward=lambda prompt, text: float(len(text)), steps=2)
    trace.steps[0].groups[0].rollouts      what was sampled at the first step, with rewards; `kept`: what was trained on
    trace.updates[0].batch["adv_BT"]       what Learner.update got; `passes`: every optimiser step with the loss and its pull
    trace.calls, trace.samples             every call of the reward; who sampled with which weights
    trace.phases, trace.parts              the phases of a plan, and all that it did, in order

A reward is a function, or functions by name (they are summed); "{file}" in a setting stands for the file that holds them.
Options of a plan are written into its name: `traced("reft(steps=2)")`. `says` makes every sampler say these texts in turn.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import posttrain as pt
import posttrain.train
from posttrain.api import _is_plan
from posttrain.core.loop import Loop
from posttrain.core.method import find_method
from posttrain.core.registry import find, parse
from posttrain.policies.language import LanguagePolicy
from posttrain.rewards.runtime.file_reward import member
from posttrain.rewards.scorers import spec
from posttrain.rollouts.sources import LocalSource
from posttrain.runs import plans
from posttrain.weights import learner as learning
from posttrain.weights.learner import Learner
from tests.models.tiny import random_hf
from tests.wiring import record
from tests.wiring.trace import Call, Trace

SHAPE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": [1, *range(6, 20)],
}  # fmt: skip
# an answer ends with <end> or a mark such as "!": one token in seven, so that lengths differ
WORDS = ("<pad>", "<end>", "<think>", "</think>", "\n", *map(chr, range(32, 127)), "<unk>")
ROWS = [{"question": f"{a}+{b}=?", "answer": str(a + b)} for a in range(6) for b in range(4)]
_KEPT = tempfile.TemporaryDirectory()
_NUMBERS = itertools.count()
_ACTIVE: list[Trace] = []


def asked(name: str, *args: Any) -> Any:
    """A function of the reward's file was called."""
    trace = _ACTIVE[-1]
    found = trace.functions[name](*args)
    trace.calls.append(Call(*trace.now, name, args, found))
    return found


def traced(
    name: str, rows: Sequence[dict[str, Any]] | str | None = None, reward: Any = None, steps: int = 2,
    says: Sequence[str] = (), positions: int = 512, **settings: Any,
) -> Trace:  # fmt: skip
    """Run the method or plan of that name; rows: of its data file (or the name of a task; "": none is named), positions: of the model's
    window, settings: anything that `pt.run` takes."""
    functions = reward if isinstance(reward, dict) else {"reward": reward} if callable(reward) else {}
    trace = Trace(functions)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / f"spied_reward_{next(_NUMBERS)}.py"
        file.write_text(_source(functions))
        task = rows if isinstance(rows, str) else _written(rows or _default(name), Path(folder) / "rows.jsonl")
        if functions and "reward" not in settings:
            settings["reward"] = " + ".join(f"{file}:{f}" for f in functions)
        elif isinstance(reward, str):
            settings["reward"] = reward
        told = {k: v.replace("{file}", str(file)) if isinstance(v, str) else v for k, v in settings.items()}
        plain: dict[str, Any] = {
            "prompts": 2,
            "threads": 1,
            "eval_problems": 2,
            "lr": 3e-3,
            "warmup": 0,
        }
        plain |= {"sampling": {"max_tokens": 6}} if _samples(name) else {}
        plain |= {"steps": steps} if _counts_steps(name) else {}  # most plans' phases have their own
        _ACTIVE.append(trace)
        stack.callback(_ACTIVE.remove, trace)
        stack.callback(sys.modules.pop, file.stem, None)
        for owner, attribute, spy in _spies(trace, says):
            stack.enter_context(patch.object(owner, attribute, spy))
        trace.summary = pt.run(
            model=tiny_folder(positions), task=task or None, method=name.replace("{file}", str(file)),
            runs=Path(folder) / "runs", **{k: v for k, v in (plain | told).items() if v is not None},
        )  # fmt: skip
    return trace


@cache
def tiny_folder(positions: int = 512) -> str:
    """A language model of 5,000 random weights as a folder: a token for each letter and for the tags of a thought, no template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = str(Path(_KEPT.name) / f"model-{positions}")
    random_hf("llama", SHAPE | {"vocab_size": len(WORDS), "max_position_embeddings": positions}).save_pretrained(folder)
    fast = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?think>|[\s\S]"), "isolated")
    fast.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<end>", pad_token="<pad>").save_pretrained(folder)
    return folder


def _counts_steps(name: str) -> bool:
    """Whether it reads --steps: methods do, and plans that say so."""
    if not _is_plan(name):
        return True
    word, options = parse(name)
    if "{file}" in name:
        return False
    try:
        return "steps" in (find(word, "plan").fn(**options).uses or ())
    except (pt.UserError, TypeError):  # options that are wrong are told by the run itself
        return False


def _samples(name: str) -> bool:
    """Whether it samples as the settings say, to learn or to be measured by: others are told nothing of it."""
    if _is_plan(name):
        return not name.startswith("rlprompt")
    return find_method(name).rollout.card.data in ("", "demonstrations")


def _default(name: str) -> list[dict[str, Any]]:
    """Questions with answers; pairs for a method that learns from pairs."""
    try:
        data = find_method(name).rollout.card.data
    except pt.UserError:
        data = ""
    if data == "pairs":
        return [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no"} for r in ROWS]
    return [dict(r) for r in ROWS]


def _written(rows: Sequence[dict[str, Any]], file: Path) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def _source(functions: dict[str, Callable[..., Any]]) -> str:
    """The user's file: functions with these parameters, which call those that were given."""
    lines = ["from tests.wiring import spies"]
    for name, fn in functions.items():
        words = ", ".join(inspect.signature(fn).parameters)
        lines += [f"def {name}({words}):", f"    return spies.asked({name!r}, {words})"]
    return "\n".join(lines) + "\n"


def _spies(trace: Trace, says: Sequence[str]) -> list[tuple[Any, str, Any]]:
    """What is watched, and by whom."""
    return [
        (Loop, "steps", record.loops(trace)),
        (LocalSource, "next", record.sources(trace)),
        (posttrain.train, "select", record.kept(trace)),
        (Learner, "update", record.updates(trace)),
        (learning, "objective", record.objectives(trace)),
        (plans.Walk, "do", record.parts(trace)),
        (LanguagePolicy, "act", record.draws(trace)),
        *([(LanguagePolicy, "_generate", record.said(says))] if says else []),
        (spec, "file_reward", member),  # in this process, where calls can be counted
        (spec, "file_function", lambda file, name, timeout: None),
    ]
