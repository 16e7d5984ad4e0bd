"""What a run says of its data before it begins; contents that changed, ids that are one, environments without pairs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import posttrain as pt
from posttrain.core.adopt import adopt
from posttrain.core.errors import UserError
from posttrain.core.terminal import shown
from posttrain.environments.contents import contents, file_hash
from posttrain.environments.data import data
from posttrain.environments.language.listed import Listed
from posttrain.environments.task import of_rows, task
from posttrain.runs.told import understood
from tests.runs.tiny_run import policy as tiny_policy

ROWS = [{"question": f"what is {i} and 1", "answer": str(i + 1), "source": "me"} for i in range(30)]


def test_columns_rows_grader_and_the_first_prompt():
    told = understood(data(ROWS))
    assert told[0] == "columns: question (the question), answer (the answer); not in the prompt: source"
    assert told[1].startswith("rows: 2") and "one question in ten, by its hash, is held out" in told[1]
    assert "graded by: numeric (the gold answers are numbers)" in told
    assert any(line.startswith("first prompt: what is ") for line in told) and told[-1].startswith("its gold answer: ")
    told = understood(data({"train": ROWS[:9], "test": ROWS[8:]}))
    assert "rows: 8 to train on, 22 to test on" in told
    assert "left out: 1 training rows that are in the test set" in told
    bad = data([*ROWS, {"question": None, "answer": "1"}], skip_bad=True)
    assert "left out: 1 bad rows; the first, row 31: no 'question' in it" in understood(bad)


def test_of_a_prompt_and_a_conversation_the_one_that_is_used_is_told():
    chat = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "A"}]
    rows = [{"prompt": f"{i}?", "messages": [chat[0] | {"content": f"{i}?"}, chat[1]]} for i in range(20)]
    assert understood(data(rows))[0] == "columns: messages (the conversation); not in the prompt: prompt"
    graded = understood(data([r | {"answer": "1"} for r in rows]))
    assert graded[0] == "columns: prompt (the question), answer (the answer); not in the prompt: messages"


def test_what_methods_on_written_answers_say():
    pairs = of_rows([{"prompt": f"q{i}", "chosen": "a\x1b[2J", "rejected": "b"} for i in range(20)], "pairs")
    told = understood(pairs, kind="pairs")
    assert "columns: prompt (the question), chosen (the preferred answer), rejected (the other answer)" in told
    assert told[-1] == "first pair: a\\x1b[2J > b"  # an escape sequence does not reach the terminal
    told = understood(data(ROWS), kind="demonstrations")
    assert "learned from: the written answers; measured by numeric (the gold answers are numbers)" in told
    assert told[-1].startswith("first demonstration: ")
    assert "reward: mine.py:f; measured by numeric (the gold answers are numbers)" in understood(
        data(ROWS), reward="mine.py:f"
    )
    assert "graded by: the task's own grader" in understood(task("arithmetic"))


def test_shown_on_one_line_and_shortened():
    assert shown("a\tb\n\x1b[31mred\x9b\u202e é 漢字", 80) == "a\\tb\\n\\x1b[31mred\\x9b\\u202e é 漢字"
    assert shown("x" * 50 + "END", 30) == "x" * 20 + " ... " + "x" * 7 + "END"


def test_a_run_tells_its_callbacks_and_rows_left_out_are_never_silent(tmp_path, caplog):
    class Heard:
        def on_data(self, loop, lines):
            self.lines = lines

    def run(name, *callbacks):
        rows = {"train": ROWS[:9], "test": ROWS[8:10]}
        pt.run(model=tiny_policy(), task=rows, method="sft", name=name, runs=tmp_path, steps=1, prompts=2, callbacks=callbacks,
               system="be brief", sampling={"max_tokens": 2})  # fmt: skip

    heard = Heard()
    with caplog.at_level(logging.WARNING, "posttrain"):
        run("told", heard)
        assert not caplog.records
        run("untold")
    assert "left out: 1 training rows that are in the test set" in heard.lines
    assert any(line.startswith("first prompt: be brief\\nwhat is") for line in heard.lines)
    assert "left out 1 training rows" in caplog.text


# ---- contents


def write(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_contents_of_every_file_that_a_task_names(tmp_path):
    one, two = write(tmp_path / "a.jsonl", ROWS), write(tmp_path / "b.jsonl", ROWS[:3])
    code = tmp_path / "mine.py"
    code.write_text("def f(prompt, text):\n    return 1.0\n")
    found = contents(f"{one}(test='{two}')")
    assert set(found) == {str(one), str(two)} and set(contents(f"{code}:f")) == {str(code)}
    assert set(contents(f"{one} + arithmetic")) == {str(one)} and contents("arithmetic") == {}
    assert set(contents(f"{one}(question='question') + {two}")) == {str(one), str(two)}
    assert set(contents(str(tmp_path))) == {str(one), str(two)}
    before = file_hash(code)
    code.write_text("# a comment\ndef f(prompt, text):\n\n    return 1.0\n")
    assert file_hash(code) == before
    code.write_text("def f(prompt, text):\n    return 2.0\n")
    assert file_hash(code) != before
    write(one, ROWS[::-1])
    assert contents(str(one))[str(one)] != found[str(one)]


def test_a_file_that_changed_since_the_run_began_is_noticed(tmp_path):
    file = write(tmp_path / "sums.jsonl", ROWS)

    def run(**more):
        settings = {"steps": 1, "prompts": 2, "sampling": {"max_tokens": 2}} | more
        return pt.run(model=tiny_policy(), task=str(file), method="sft", name="x", runs=tmp_path, **settings)

    run()
    run()  # the same contents: it goes on
    write(file, [r | {"answer": "0"} for r in ROWS])
    with pytest.raises(UserError, match=r"learns from has changed since it began \(.*sums.jsonl was .*--fresh"):
        run()
    run(fresh=True)


# ---- environments that cannot be trained on


def test_one_id_for_different_prompts_is_refused():
    class OneId:
        def prompt(self, index, split="train"):
            return pt.Prompt.text("same", f"question {index}", "1")

    with pytest.raises(UserError, match=r"OneId\.prompt gives different prompts the id 'same'"):
        adopt(OneId())

    class OnePrompt(OneId):
        def prompt(self, index, split="train"):
            return pt.Prompt.text("same", "the question", "1")

    assert adopt(OnePrompt()).prompt(3).id == "same"  # one prompt has one id
    with pytest.raises(UserError, match="two prompts"):
        raise UserError(Listed("x", (OneId().prompt(0), OneId().prompt(1))).validate(2)[0])


def test_a_preference_method_without_pairs_and_sft_without_answers(tmp_path):
    class Asks:
        def prompt(self, index, split="train"):
            return pt.Prompt.text(f"{split}-{index}", f"question {index}")

        def grade(self, prompt, text):
            return 1.0

    for method, told in (("dpo", "dpo learns from preference pairs, and the prompts of asks carry none"),
                         ("reward-model", "reward-model learns from preference pairs"),
                         ("sft", "sft learns from written answers, and the first prompt of asks has none")):  # fmt: skip
        with pytest.raises(UserError, match=told):
            pt.run(model=tiny_policy(), env=Asks(), method=method, name="x", runs=tmp_path, steps=1)
