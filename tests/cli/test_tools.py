"""`--tools` of run, eval, compare and chat: a real run that calls, a kill inside a call, and every mistake in a sentence."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.commands import chat
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_model
from tests.cli.conftest import SMALL, Said, call

TOOLS = '''
"""Tools that keep a list of what they were called with."""
from pathlib import Path

NOTES = Path(__file__).parent / "called.txt"


def look(what: str) -> str:
    """Look something up.

    what: a word
    """
    with NOTES.open("a") as notes:
        print(what, file=notes)
    return what.upper()
'''
KILLS = """
    import os, signal
    if not (NOTES.parent / "killed").exists():
        (NOTES.parent / "killed").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
"""
# the first call is written for the model, which then goes on by itself
CALLS = ["--prefill", "<look>oslo</look>", "--tools.format", "xml", "--tools.max-turns", "2"]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "notebook.py"
    file.write_text(TOOLS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"question": f"What is {a}+2?", "answer": str(a + 2)}) + "\n" for a in range(20)))  # fmt: skip
    yield file  # type: ignore[misc]
    sys.modules.pop("notebook", None)


def run(tools: Path, *more: str) -> list[str]:
    folder = tools.parent
    return ["run", "grpo", "--task", str(folder / "rows.jsonl"), "--tools", str(tools), "--name", "t", "--runs", str(folder / "runs"), *SMALL, *more]  # fmt: skip


def test_a_run_killed_inside_a_call_goes_on_and_is_refused_with_other_tools(tools: Path) -> None:
    """Two steps of GRPO on the embedded model; the process is killed by its first call, and the same command ends the run."""
    tools.write_text(
        TOOLS.replace("    with NOTES", f"{KILLS}    with NOTES").replace("\n\n    import", "\n    import")
    )
    env = {**os.environ, "PYTHONPATH": str(Path(pt.__file__).parent.parent)}
    argv = run(tools, *CALLS, "--eval-problems", "0")
    killed = subprocess.run([sys.executable, "-m", "posttrain", *argv], env=env, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    said = call(*argv)
    assert said.code == 0, said.err
    called = (tools.parent / "called.txt").read_text().split()
    assert called and set(called) == {"oslo"}
    db = sqlite3.connect(tools.parent / "runs" / "t" / "run.sqlite")
    assert db.execute("select count(distinct step) from rollouts").fetchone()[0] == 2
    tools.write_text(tools.read_text().replace("what.upper()", "what.lower()"))
    sys.modules.pop("notebook", None)
    other = call(*argv, "--steps", "3")
    assert other.code == 2 and "notebook.py" in other.err and "--fresh" in other.err and "Traceback" not in other.err
    tools.write_text(tools.read_text().replace("what.lower()", "what.upper()"))
    more = call(*argv[:-2], "--eval-problems", "0", "--tools.max-calls", "3")
    assert more.code == 2 and "other settings (tools" in more.err


def test_eval_and_compare_call_tools_too(tools: Path) -> None:
    rows = str(tools.parent / "rows.jsonl")
    saved = tools.parent / "saved.jsonl"
    said = call("eval", "--task", rows, "--tools", str(tools), "--problems", "2", "--max-tokens", "8", "--json", "--save", str(saved))  # fmt: skip
    assert said.code == 0, said.err
    assert 0 <= json.loads(said.out)["reward"] <= 1 and len(saved.read_text().splitlines()) == 2
    out = tools.parent / "written.jsonl"
    write = (
        "generate",
        "--task",
        rows,
        "--tools",
        str(tools),
        "--problems",
        "2",
        "--max-tokens",
        "8",
        "--out",
        str(out),
    )
    assert call(*write).code == 0 and len(out.read_text().splitlines()) == 2
    tools.write_text(TOOLS.replace("upper", "lower"))
    sys.modules.pop("notebook", None)
    other = call(*write)
    assert other.code == 2 and "notebook.py" in other.err and "--fresh" in other.err
    both = call("compare", "grpo", "rloo", "--task", rows, "--tools", str(tools), "--seeds", "2", "--steps", "1", "--prompts", "2",
                "--num-generations", "2", "--eval-problems", "2", "--sampling.max-tokens", "8", "--json")  # fmt: skip
    assert both.code == 0, both.err
    assert all(0 <= x <= 1 for row in json.loads(both.out)["rows"] for x in row["accuracy"])


class Seen:
    """The rollouts that were learned from."""

    def __init__(self) -> None:
        self.rollouts: list[pt.Rollout] = []

    def on_rollouts(self, loop: object, step: int, groups: list[pt.Group]) -> None:
        self.rollouts += [r for g in groups for r in g.rollouts]


@pytest.mark.parametrize(
    ("plan", "options"),
    [("multi-turn-agentic-guide", "steps=1"), ("archer", "iterations=1, warmup=1, episodes=2, critic=1, actor=1")],
)
def test_plans_that_play_episodes_take_tools(
    plan: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = Seen()
    pt.run(
        method=f"{plan}({options})", task="arithmetic", tools="calculator(max_turns=2)", name="played", model="pocket-2",
        prompts=2, eval_problems=2, sampling={"max_tokens": 12}, callbacks=[seen],
    )  # fmt: skip
    config = json.loads((tmp_path / "runs" / "played" / "config.json").read_text())
    assert config["tools"] == "calculator(max_turns=2)"
    told = [r.info["tools"] for r in seen.rollouts if "tools" in r.info]
    assert told or plan == "archer"  # whose actor learns from remembered states, not from episodes
    assert all(len(turns) <= 2 and {"calls", "faults"} <= set(turns[0]) for turns in told)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "grpo", "--tools", "nosuch.py"], "there is no such file"),
        (["run", "grpo", "--tools", "calculater"], "did you mean 'calculator'?"),
        (["run", "grpo", "--tools", "calculator", "--tools.max-trns", "3"], "did you mean 'max_turns'?"),
        (["run", "grpo", "--tools", "calculator", "--tools.max-turns", "none"], "whole number of at least 1"),
        (["run", "grpo", "--tools", "calculator", "--tools.format", "hermse"], "did you mean 'hermes'?"),
        (["run", "grpo", "--tools.max-turns", "3"], "name them too: --tools mine.py"),
        (["run", "grpo", "--tools", "calculator + calculator"], "two tools are named 'calculator'"),
        (["run", "sft", "--tools", "calculator"], "leave --tools away"),
        (["run", "dpo", "--tools", "calculator"], "leave --tools away"),
        (["run", "rlhf-workflow", "--tools", "calculator"], "takes no --tools; methods that sample do"),
        (["run", "grpo", "--rollout", "memory", "--tools", "calculator"], "takes no turns"),
        (["eval", "--url", "http://127.0.0.1:9", "--model", "m", "--tools", "calculator"], ""),
    ],
)
def test_mistakes(argv: list[str], words: str) -> None:
    said = call(*argv)
    assert said.code == 2 and words in said.err and "Traceback" not in said.err


def test_a_task_without_gold_answers_needs_a_reward_and_has_one(tmp_path: Path, tools: Path) -> None:
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps({"prompt": f"Say {a}"}) + "\n" for a in range(20)))
    argv = ["run", "grpo", "--task", str(tmp_path / "bare.jsonl"), "--tools", str(tools), "--runs", str(tmp_path / "r"), *SMALL, "--steps", "1"]  # fmt: skip
    said = call(*argv)
    assert said.code == 2 and "--reward" in said.err
    paid = call(*argv, "--reward", "length(target=1, soft=200, unit='characters')", "--json")
    assert paid.code == 0, paid.err
    assert 0 < json.loads(paid.out)["reward_after"] <= 1


def test_tools_as_functions_of_python(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(what: str) -> str:
        """Look."""
        seen.append(what)
        return what

    rows = [{"question": f"What is {a}+2?", "answer": str(a + 2)} for a in range(12)]
    how: dict[str, Any] = {
        "task": rows, "tools": [look], "steps": 1, "prompts": 2, "num_generations": 4, "eval_problems": 0, "max_turns": 3,
        "sampling": {"max_tokens": 40}, "prefill": '<tool_call>{"name": "look", "arguments": {"what": "x"}}</tool_call>', "runs": tmp_path,
    }  # fmt: skip
    summary = pt.run(name="f", **how)
    assert summary["steps"] == 1 and seen and set(seen) == {"x"}
    with pytest.raises(
        pt.UserError, match="functions are given to a method; to a plan that plays episodes give their file"
    ):
        pt.run(method="rlhf-workflow", task="arithmetic", tools=[look], runs=tmp_path)
    with pytest.raises(pt.UserError, match="workers build the tools"):
        pt.run(name="g", sampler="process", **how | {"task": "arithmetic"})


# ---- chat


class Scripted(LanguagePolicy):
    """The embedded model's tokenizer, and turns that are written down."""

    def __init__(self, texts: Sequence[str]) -> None:
        base = load_model("pocket")
        super().__init__(base.model, base.tokenizer, "scripted")
        self.texts, self.read = list(texts), list[str]()

    def act(self, pending: Any, keys: Any, how: Any, version: int = 0, chunk: int = 512) -> list[list[Turn]]:
        out = []
        for turns in pending:
            self.read.append(
                "".join(self.tokenizer.decode([*t.observation.tokens.tolist(), *t.actions.tolist()]) for t in turns)
            )
            text = self.texts.pop(0)
            ids = torch.tensor(
                [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            )
            made = Turn.of(turns[-1].observation, ids, torch.zeros(len(ids)), text)
            made.continues = turns[-1].continues
            out.append([made])
        return out


def talk(monkeypatch: pytest.MonkeyPatch, policy: Scripted, lines: Sequence[str], *argv: str) -> Said:
    monkeypatch.setattr(chat, "load", lambda args: (setattr(args, "run", None), (policy, Config()))[1])
    typed = iter([*lines, ""])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    return call("chat", "--memory", "5", *argv)


def test_chat_shows_calls_and_results_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = '<tool_call>{"name": "calculator", "arguments": {"expression": "12*7"}}</tool_call>'
    policy = Scripted([asked, "It is 84.", "<tool_call>oops</tool_call>", asked, "Still 84."])
    said = talk(monkeypatch, policy, ["12 times 7?", "sure?"], "--tools", "calculator")
    assert said.code == 0, said.err
    shown = "  > calculator(expression='12*7')\n    84\npocket: It is 84.\n"
    assert shown in said.out and "  > <tool_call>oops</tool_call>\n    error: the call is not JSON" in said.out
    assert said.out.index("oops") < said.out.rindex("  > calculator") < said.out.index("pocket: Still 84.")
    assert (
        "<tool_response>\n84\n</tool_response>" in policy.read[1]
    )  # the model read the result, in this turn and later
    assert "<tool_response>\n84\n</tool_response>" in policy.read[2] and "It is 84." in policy.read[2]


def test_chat_says_why_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>'
    said = talk(monkeypatch, Scripted([asked] * 2), ["?"], "--tools", "calculator", "--tools.max-turns", "2")
    assert "--tools.max-turns allows more" in said.out
    said = talk(monkeypatch, Scripted([asked, "2"]), [], "--tools", "calculator", "--say", "1+1?", "--json")
    told = json.loads(said.out)
    assert told["answer"] == "2" and told["stop"] == "answered" and told["tools"][0]["calls"][0]["result"] == "1"


def test_without_tools_an_answer_is_what_it_was() -> None:
    policy = load_model("pocket")
    plain = chat.Conversation(policy, Sampling(max_tokens=12, temperature=0.0)).ask("What is 2+3? Answer only.")
    assert plain.stop in ("stop", "length") and "tools" not in plain.info
