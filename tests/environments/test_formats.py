"""Rows as people have them: Alpaca, TRL, ShareGPT, ARC, MMLU, BBH, SQuAD; what is asked, answered, imitated, preferred."""

from __future__ import annotations

import json

import pytest

from posttrain.core.answers import conversation, demonstration, offered
from posttrain.core.errors import UserError
from posttrain.environments.data import data
from posttrain.environments.preferences import preferences
from posttrain.environments.questions import Layout
from posttrain.environments.task import of_rows, task

TEST = [{"question": "t", "answer": "1"}]


def only(row, **layout):
    """The prompt of a single row."""
    test = [TEST[0] | {k: "" for k in layout.get("fields", {}).values()}]
    return data([row], test=test, layout=Layout(**layout)).prompt(0)


def test_alpaca_writes_the_input_under_the_instruction():
    row = {"instruction": "Add the numbers.", "input": "3 and 4", "output": "7"}
    assert only(row).content == ({"role": "user", "content": "Add the numbers.\n3 and 4"},)
    assert only(row).answer == "7" and "input" not in only(row).info
    assert only(row | {"input": ""}).last == "Add the numbers."
    pair = preferences([{"instruction": "Add.", "input": "3 and 4", "chosen": "7", "rejected": "8", "system": "Be brief."}],
                       test=[{"prompt": "t", "chosen": "a", "rejected": "b"}]).pair(0)  # fmt: skip
    assert [m["content"] for m in pair.prompt.content] == ["Be brief.", "Add.\n3 and 4"]


def test_an_input_that_is_the_question_or_the_users_own_is_not_added():
    assert only({"input": "2+2?", "output": "4"}).last == "2+2?"
    assert only({"question": "2+2?", "input": "mine", "answer": "4"}).last == "2+2?"
    assert only({"question": "2+2?", "notes": "mine", "answer": "4"}, fields={"input": "notes"}).last == "2+2?\nmine"


def test_trl_prompt_and_completion_as_texts_and_as_messages():
    text = only({"prompt": "The sky is", "completion": " blue."})
    assert (text.last, text.answer) == ("The sky is", "blue.")
    chat = {
        "prompt": [{"role": "user", "content": "Which colour?"}],
        "completion": [{"role": "assistant", "content": "Blue."}],
    }
    assert (only(chat).last, only(chat).answer, demonstration(only(chat))) == ("Which colour?", "Blue.", "Blue.")
    both = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(UserError, match="one column `messages`"):
        data([chat | {"completion": both}])


def test_a_conversation_is_imitated_in_all_turns_of_the_assistant():
    said = [("human", "a?"), ("gpt", "A"), ("human", "b?"), ("gpt", "B")]
    row = {"conversations": [{"from": who, "value": text} for who, text in said]}
    prompt = only(row)
    assert prompt.answer == "B" and [m["content"] for m in prompt.content] == ["a?", "A", "b?"]
    assert [m["content"] for m in conversation(prompt)] == ["a?", "A", "b?", "B"]
    assert "imitated" not in only(row, turns="last").info
    one = {"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "A"}]}
    assert "imitated" not in only(one).info  # a single answer is one anyway
    graded = only({"messages": row["conversations"], "answer": "gold"})
    assert graded.answer == "gold" and "imitated" not in graded.info  # a column answers: the conversation only asks


def test_messages_are_taken_where_a_prompt_column_answers_nothing():
    row = {"prompt": "a?", "messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "A"}]}
    assert (only(row).last, only(row).answer) == ("a?", "A")


def test_numbers_booleans_and_lists_are_answers_to_imitate():
    for value, text in ((7, "7"), (2.5, "2.5"), (True, "True"), (["Paris", "paris"], "Paris")):
        prompt = only({"question": "q", "answer": value})
        assert demonstration(prompt) == text and prompt.answer == value
    squad = only({"question": "q", "answers": {"text": ["Paris", "the city"], "answer_start": [1, 9]}})
    assert squad.answer == ["Paris", "the city"]
    with pytest.raises(UserError, match="row 1: no 'answer'"):
        data([{"question": "q", "answer": float("nan")}])


def test_a_solution_is_graded_by_its_end_and_imitated_whole():
    prompt = only({"question": "q", "answer": "2+2=4\n#### 4"})
    assert prompt.answer == "4" and demonstration(prompt) == "2+2=4\n#### 4"


@pytest.mark.parametrize(
    ("choices", "gold", "letter"),
    [
        ({"text": ["one", "two", "three"], "label": ["A", "B", "C"]}, "B", "B"),  # ARC
        ({"text": ["2", "1", "3"], "label": ["1", "2", "3"]}, "1", "A"),  # ARC with numbers: the label, not the text
        ({"text": ["x", "y"], "label": ["B", "A"]}, "A", "B"),  # the label A stands before the second choice
        (["one", "two", "three", "four"], 2, "C"),  # MMLU
        (["one", "two", "three", "four"], "2", "C"),  # the same in a CSV file
        (["one", "two"], "B", "B"),
        (["one", "two"], "two", "B"),
        (["4", "1", "0"], "1", "B"),  # a text of one of the choices is that choice
        ([f"c{i}" for i in range(10)], 9, "J"),  # MMLU-Pro
    ],
)
def test_the_gold_answer_is_the_letter_that_is_shown(choices, gold, letter):
    rows = [{"question": f"Which {i}?", "choices": choices, "answerKey": gold} for i in range(3)]
    env = data(rows)
    prompt = env.prompt(0)
    texts = choices["text"] if isinstance(choices, dict) else choices
    assert f"\n{letter}) {texts['ABCDEFGHIJ'.index(letter)]}" in prompt.last
    assert env.reward.name == "choice" and prompt.answer == letter
    wrong = "AB"[letter == "A"]
    assert (
        env.grade(prompt, f"The answer is ({letter}).") == 1.0 and env.grade(prompt, f"The answer is ({wrong}).") == 0.0
    )
    assert demonstration(prompt) == letter


@pytest.mark.parametrize(
    ("choices", "gold", "told"),
    [
        (["one", "two"], 2, "a place from 0 to 1"),
        (["one", "two"], "three", "or one of the texts"),
        (["B", "A"], "A", "the letter of one choice and the text of another"),
        ({"text": ["one", "two"], "label": ["1"]}, "1", "a label each"),
        ({"text": ["one", "two"], "label": ["1", "2"]}, "3", "one of the labels"),
        (["one", "two"], True, "a letter, a place or a text"),
    ],
)  # fmt: skip
def test_a_gold_answer_that_is_no_choice_is_a_bad_row(choices, gold, told):
    with pytest.raises(UserError, match=told):
        data([{"question": "q", "choices": choices, "answer": gold}])


def test_choices_written_out_in_the_question_are_graded_by_letter():
    ask = "Which is a fruit {}?\nOptions:\n(A) stone\n(B) apple\n(C) chair"
    env = data([{"input": ask.format(i), "target": "(B)"} for i in range(12)])
    prompt = env.prompt(0)
    assert env.reward.name == "choice"
    assert env.grade(prompt, "The answer is (B).") == 1.0 and env.grade(prompt, "(B)") == 1.0
    assert env.grade(prompt, "The answer is (A).") == 0.0 and env.grade(prompt, "It is (A) or (B)") == 0.0
    assert env.validate(12) == []
    plain = data([{"question": f"Name a grade, {i}.", "answer": "B"} for i in range(12)])
    assert plain.reward.name == "exact-match"  # a letter alone is no multiple choice


def test_letters_that_a_question_offers():
    assert offered("x\n(A) one\n(B) two") == "AB" and offered("A. one\nB. two\nC. three") == "ABC"
    assert offered("(A) one alone") == "" and offered("We ask A) or B) in a line") == ""
    many = "\n".join(f"({c}) {c.lower()}{c.lower()}" for c in "ABCDEFGHIJKLMNOPQR")
    env = data([{"input": f"{i}?\n{many}", "target": "(R)"} for i in range(6)])
    assert env.grade(env.prompt(0), "I think it is (R)") == 1.0 and env.grade(env.prompt(0), "(Q)") == 0.0


USER, GOOD, BAD = (
    {"role": r, "content": c} for r, c in (("user", "Which?"), ("assistant", "blue"), ("assistant", "red"))
)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Which?", "chosen": "blue", "rejected": "red"},  # explicit
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},  # explicit, conversational
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},  # implicit, conversational
        {"chosen": "Which? blue", "rejected": "Which? red"},  # implicit: the beginning that both share
        {
            "prompt": "Which?",
            "chosen": [USER, GOOD],
            "rejected": [USER, BAD],
            "messages": [USER, GOOD],
        },  # ultrafeedback
    ],
)
def test_preferences_in_the_forms_of_trl(row):
    pair = preferences([row], test=[{"prompt": "t", "chosen": "a", "rejected": "b"}]).pair(0)
    assert [m["content"] for m in pair.prompt.content] == ["Which?"]
    assert (pair.chosen, pair.rejected) == ("blue", "red")


class Frame:
    """As much of a pandas data frame as is read."""

    def __init__(self, rows):
        self.rows = rows

    def iterrows(self):
        raise AssertionError

    def to_dict(self, kind):
        assert kind == "records"
        return self.rows


class Dataset(list):
    """As much of a `datasets.Dataset` as is read: dicts, one by one."""

    features = {}


def test_data_frames_tables_and_datasets():
    rows = [{"question": f"{i}+1?", "answer": i + 1} for i in range(20)]
    arrow = pytest.importorskip("pyarrow")
    for source in (Frame(rows), arrow.Table.from_pylist(rows), Dataset(rows), iter(rows)):
        assert data(source).size("train") + data(rows).size("test") == 20
    split = data({"train": Dataset(rows[:15]), "validation": Dataset(rows[15:])})
    assert (split.size("train"), split.size("test")) == (15, 5)
    assert split.understood.split == "the split validation is held out"


def test_a_split_in_pieces(tmp_path):
    for k in range(2):
        rows = [{"question": f"{k} {i}?", "answer": "1"} for i in range(4)]
        (tmp_path / f"train-0000{k}-of-00002.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "validation.jsonl").write_text('{"question": "v?", "answer": "2"}\n')
    env = data(tmp_path)
    assert (env.size("train"), env.size("test")) == (8, 1)


def test_lone_surrogates_long_numbers_and_deep_nesting_are_bad_rows(tmp_path):
    path = tmp_path / "odd.jsonl"
    good = '{"question": "a", "answer": "1"}\n'
    for line, told in [
        ('{"question": "b \\ud800", "answer": "1"}', "line 2: not a text: a lone surrogate"),
        ('{"question": "b", "answer": "\\udc00"}', "line 2: not a text: a lone surrogate"),
        (
            '{"question": "b", "answer": ' + "7" * 5000 + "}",
            "line 2: not JSON that can be read: a number of too many digits",
        ),
        ('{"question": "b", "answer": ' + "[" * 100_000 + "}", "line 2: not JSON that can be read: nested too deeply"),
    ]:
        path.write_text(good + line + "\n")
        with pytest.raises(UserError, match=told):
            data(path)
        assert data(path, skip_bad=True).left_out["bad rows"] == 1
    for text, told in (("[" + "7" * 5000 + "]", "too many digits"), ("[" * 100_000, "nested too deeply")):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(UserError, match=told):
            data(tmp_path / "odd.json")
    with pytest.raises(UserError, match="lone surrogate"):
        preferences([{"prompt": "q", "chosen": "\ud800", "rejected": "b"}])


def test_columns_by_name_from_python_and_from_a_task(tmp_path):
    rows = [{"ask": f"{i}+1?", "gold": str(i + 1)} for i in range(20)]
    assert of_rows(rows, question="ask", answer="gold").prompt(0).answer
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert task(str(path), question="ask", answer="gold").prompt(0).answer
    with pytest.raises(UserError, match=r"no column 'gould'; did you mean 'gold'\? it has: ask, gold"):
        task(str(path), question="ask", answer="gould")
    with pytest.raises(UserError, match="no question column; it has 'ask', 'gold'; add --question COLUMN"):
        task(str(path))
    with pytest.raises(UserError, match="no option 'chosen'"):
        task(str(path), chosen="ask")


def test_a_file_is_asked_as_it_is_unless_thinking_is_asked_for(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}+1?", "answer": i + 1}) + "\n" for i in range(9)))
    assert "<think>" not in task(str(path), think=None).prompt(0).last
    assert task(str(path), think=True).prompt(0).last.endswith("</think> first, then answer.")
    assert "Think first." in task("arithmetic", think=None).prompt(0).last
