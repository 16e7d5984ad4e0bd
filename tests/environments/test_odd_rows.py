"""Rows as strangers have them: nothing is read as something else, and what cannot be used is a bad row with its reason."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import numpy as np
import pytest

from posttrain.core.answers import conversation, demonstration, imitable
from posttrain.core.errors import UserError
from posttrain.core.rng import key
from posttrain.core.types import Prompt
from posttrain.environments.choices import choices_of, letter_of
from posttrain.environments.data import data, question_of
from posttrain.environments.mapped import with_system_message
from posttrain.environments.preferences import preferences
from posttrain.environments.questions import Layout
from posttrain.environments.stream import stream
from posttrain.environments.task import of_rows
from posttrain.environments.understood import lines

TEST = [{"question": "t", "answer": "1"}]
PAIR = [{"prompt": "t", "chosen": "a", "rejected": "b"}]


def only(row):
    return data([row], test=TEST).prompt(0)


def said(*texts):
    return [{"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(texts)]


def pair(row):
    return preferences([row], test=PAIR).pair(0)


def contents(prompt):
    return [m["content"] for m in prompt.content]


def test_an_unnamed_index_column_is_neither_a_system_message_nor_an_input(tmp_path):
    (tmp_path / "x.csv").write_text(",prompt,chosen,rejected\n0,Which?,blue,red\n1,Why?,so,no\n")
    for found in preferences(tmp_path / "x.csv", test=PAIR).pairs("train"):
        assert contents(found.prompt) in (["Which?"], ["Why?"])


def test_pairs_of_several_turns_beside_a_prompt_column_keep_all_turns():
    good, bad = said("u1", "a1", "u2", "good"), said("u1", "a1", "u2", "bad")
    for prompt in ("u1", said("u1", "a1", "u2"), "u1 "):
        found = pair({"prompt": prompt, "chosen": good, "rejected": bad})
        assert [c.strip() for c in contents(found.prompt)] == ["u1", "a1", "u2"]
        assert (found.chosen, found.rejected) == ("good", "bad")
    system = [{"role": "system", "content": "S"}]
    for row in (
        {"prompt": "u1", "chosen": system + said("u1", "good"), "rejected": system + said("u1", "bad")},
        {"prompt": system + said("u1"), "chosen": said("u1", "good"), "rejected": said("u1", "bad")},
        {"prompt": system + said("u1"), "chosen": good[:1] + good[3:], "rejected": "bad"},
    ):
        assert contents(pair(row).prompt) == ["S", "u1"]
    more = pair({"prompt": said("u0", "a0", "u1"), "chosen": said("u1", "good"), "rejected": said("u1", "bad")})
    assert contents(more.prompt) == ["u0", "a0", "u1"]


def test_pairs_that_do_not_answer_one_conversation_are_bad_rows():
    other = said("u1", "a1", "else", "bad")
    with pytest.raises(UserError, match="do not answer the same dialogue"):
        pair({"prompt": "u1", "chosen": said("u1", "a1", "u2", "good"), "rejected": other})
    with pytest.raises(UserError, match=r"prompt column and the dialogue .* are not the same.*question=''"):
        pair({"prompt": "something else", "chosen": said("u1", "good"), "rejected": said("u1", "bad")})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("  ", "no 'answer' in it"),
        ([None], "no 'answer' in it"),
        (["a", ""], "no 'answer' in it"),
        ("so\n#### ", "marks its end as the answer, and nothing is there"),
        ("so \\boxed{ }", "marks its end as the answer, and nothing is there"),
        ([["a"], ["b"]], "a list of those, got"),
    ],
)
def test_an_answer_that_is_none_is_a_bad_row(answer, told):
    with pytest.raises(UserError, match=f"row 1: .*{told}"):
        only({"question": "q", "answer": answer})


def test_values_of_numpy_and_arrow_are_read_as_pythons_own(tmp_path):
    texts = np.array(["stone", "apple"], dtype=object)
    prompt = only({"question": "q", "choices": {"text": texts, "label": np.array(["A", "B"])}, "answer": "B"})
    assert prompt.last == "q\nA) stone\nB) apple" and prompt.answer == "B"
    assert only({"question": "q", "choices": texts, "answer": np.int64(1)}).answer == "B"
    for value, want in ((np.int64(4), "4"), (np.bool_(True), "True"), (np.float64(2.5), "2.5"), (texts, "stone")):
        assert demonstration(only({"question": "q", "answer": value})) == want
    assert type(only({"question": "q", "answer": np.float64(2.5)}).answer) is float
    chat = only({"messages": np.array(said("a", "b"), dtype=object)})
    assert (chat.last, chat.answer) == ("a", "b")
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    rows = [{"question": f"q{i}", "answer": Decimal("12.50"), "day": datetime.date(2024, 1, 2)} for i in range(3)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    env = data(tmp_path / "x.parquet", test=TEST)
    assert (env.prompt(0).answer, env.prompt(0).info["day"]) == ("12.50", "2024-01-02") and env.reward.name == "numeric"


def test_empty_cells_of_a_data_frame_add_nothing():
    nan = float("nan")
    assert contents(only({"instruction": "q", "input": nan, "output": "1", "system": nan, "choices": nan})) == ["q"]
    assert contents(only({"instruction": "q", "input": " ", "output": "1"})) == ["q"]
    assert data([{"question": "q", "choices": None, "answer": "B"}] * 2, test=TEST).reward.name == "exact-match"


def test_only_a_column_that_is_told_is_imitated_in_place_of_the_answer():
    env = data([{"question": "q", "answer": "A", "demonstration": "so A", "imitated": said("x", "y")[1]}], test=TEST)
    prompt = env.prompt(0)
    assert demonstration(prompt) == "so A" and prompt.answer == "A" and conversation(prompt) is None
    told = lines(env.understood, {"train": 1}, {})
    assert "demonstration (imitated in place of the answer)" in told[0] and "not in the prompt: imitated" in told[0]
    with pytest.raises(UserError, match="'demonstration' is a text"):
        only({"question": "q", "answer": "A", "demonstration": ["so A"]})


@pytest.mark.parametrize(
    ("value", "texts", "labels"),
    [
        ({"A": "x", "B": "y", "C": None}, ["x", "y"], ["A", "B"]),
        ([{"key": "A", "value": "x"}, {"key": "B", "value": "y"}], ["x", "y"], ["A", "B"]),
        ([{"label": 1, "text": "x"}, {"label": 2, "text": "y"}], ["x", "y"], ["1", "2"]),
        ([{"text": "x"}, {"text": "y"}], ["x", "y"], []),
        ([], [], []),
        (None, [], []),
    ],
)
def test_choices_as_objects(value, texts, labels):
    assert choices_of(value) == (texts, labels)


@pytest.mark.parametrize("value", [["x", None], {"A": "x"}, [{"name": "x"}, {"name": "y"}], "['x', 'y']", {"A": ["x"], "B": ["y"]}])  # fmt: skip
def test_choices_that_are_no_texts_are_refused(value):
    with pytest.raises(ValueError, match="choices are a list of 2 to 26 texts"):
        choices_of(value)


def test_a_gold_answer_is_looked_for_among_the_labels_first_and_never_guessed():
    assert letter_of("(a)", ["x", "y"], ["B", "A"]) == "B"  # the label A stands before the second
    assert letter_of("1", ["0", "1"], []) == "B" and letter_of(1, ["1", "2"], []) == "B"
    with pytest.raises(ValueError, match="the place of one choice and the text of another"):
        letter_of("1", ["1", "2", "3"], [])


def test_a_single_question_is_trained_on_and_two_are_one_each():
    for i in range(40):
        row = {"question": f"q{i}", "answer": "1"}
        for rows in ([row], [row] * 5):
            env = data(rows)
            assert (env.size("train"), env.size("test")) == (len(rows), 0)
        two = data([row, {"question": f"r{i}", "answer": "1"}])
        assert (two.size("train"), two.size("test")) == (1, 1)
    with pytest.raises(UserError, match=r"no test questions.*test='OTHER'"):
        data(rows).prompt(0, "test")


def test_two_files_for_one_split_are_not_chosen_between(tmp_path):
    (tmp_path / "train.csv").write_text("question,answer\na,1\n")
    (tmp_path / "test.csv").write_text("question,answer\nb,1\n")
    (tmp_path / "train.jsonl.bak").write_text("{}")
    assert data(tmp_path).size("train") == 1
    (tmp_path / "train.jsonl").write_text('{"question": "c", "answer": "1"}\n')
    with pytest.raises(UserError, match=r"several files for train: train.csv, train.jsonl;"):
        data(tmp_path)


def test_conversations_in_a_csv_file_are_json(tmp_path):
    (tmp_path / "x.csv").write_text('messages\n"' + json.dumps(said("a", "b")).replace('"', '""') + '"\n')
    prompt = data(tmp_path / "x.csv", test=TEST).prompt(0)
    assert (contents(prompt), prompt.answer) == (["a"], "b")
    for text in ("[1, 2] sorted?", "[1, 2]", '[{"a": 1}]', "[]"):
        assert only({"question": text, "answer": "1"}).last == text


def test_calls_of_tools_are_imitated_as_the_template_writes_them_and_an_empty_turn_is_a_bad_row():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    prompt = only({"messages": [*said("a"), call]})
    assert conversation(prompt)[-1]["tool_calls"] and imitable(prompt)
    with pytest.raises(UserError, match="the last turn of the assistant is empty"):
        only({"messages": said("a", "")})
    with pytest.raises(UserError, match=r"calls tools.*learn all turns"):
        data([{"messages": [*said("a"), call]}], test=TEST, layout=Layout(turns="last"))


def test_gold_answers_that_the_chosen_grader_does_not_suit_are_told():
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(300)]
    assert data(rows).understood.notes == ()
    odd = data([*rows, {"question": "z", "answer": "none"}], test=TEST)
    assert (
        odd.reward.name == "numeric"
        and "1 of 302 gold answers are no numbers (the first, 'none')" in odd.understood.notes[0]
    )
    rows = [{"question": f"q{i}", "choices": ["x", "y"], "answer": 1} for i in range(3)]
    mixed = data([*rows, {"question": "z", "answer": "B"}], test=[rows[0] | {"question": "t"}])
    assert mixed.reward.name == "exact-match" and "only 4 of 5 rows have choices" in mixed.understood.notes[0]


def test_a_grader_is_tried_on_answers_without_letters():
    assert data([{"question": "a", "answer": "+"}, {"question": "b", "answer": "∅"}], test=TEST).validate(3) == []


def test_the_column_that_is_named_asks_even_beside_a_conversation():
    row = {"ask": "mine?", "messages": said("a", "b")}
    prompt = data([row], test=[{"ask": "t", "messages": said("t")}], layout=Layout(fields={"question": "ask"})).prompt(
        0
    )
    assert contents(prompt) == ["mine?"] and prompt.answer is None


def test_a_dialogue_that_ends_where_the_answer_begins_is_a_question():
    prompt = only({"question": "\n\nHuman: hi\n\nAssistant: yes?\n\nHuman: why\n\nAssistant:", "answer": "so"})
    assert contents(prompt) == ["hi", "yes?", "why"] and prompt.answer == "so"
    asked = pair({"prompt": "\n\nHuman: hi\n\nAssistant:", "chosen": "a", "rejected": "b"}).prompt
    assert asked.content == ({"role": "user", "content": "hi"},)


def test_there_is_one_system_message_and_it_is_the_columns():
    prompt = only({"messages": [{"role": "system", "content": "old"}, *said("a", "b")], "system": "new"})
    assert [(m["role"], m["content"]) for m in prompt.content] == [("system", "new"), ("user", "a")]


def test_which_questions_are_held_out_stays_as_it_is():
    """A run that is resumed, or evaluated later, must find the same rows held out: those whose hash ends in 0."""
    env = data([{"question": f"q{i}", "answer": "1"} for i in range(60)])
    assert {p.last for p in env.splits["test"]} == {
        f"q{i}" for i in range(60) if key(question_of(Prompt.text("", f"q{i}"))) % 10 == 0
    }


def test_the_same_last_words_after_another_beginning_are_another_question():
    rows = {"train": [{"messages": said("a", "b", "why?", "so")}], "test": [{"messages": said("c", "d", "why?", "so")}]}
    assert data(rows).size("train") == 1
    same = {"train": rows["test"], "test": rows["test"]}
    assert data(same).left_out["training rows that are in the test set"] == 1


def test_a_worked_solution_of_a_multiple_choice_is_graded_by_its_letter_and_imitated_whole():
    prompt = only({"question": "q", "choices": ["x", "y"], "answer": "y is even.\n#### B"})
    assert prompt.answer == "B" and demonstration(prompt) == "y is even.\n#### B"


def test_a_pair_of_equal_answers_is_left_out_and_counted():
    rows = [{"prompt": f"q{i}", "chosen": "a", "rejected": "a" if i == 3 else "b"} for i in range(6)]
    found = preferences({"train": rows, "test": PAIR})
    assert found.size("train") == 5 and sum(found.left_out.values()) == 1


def test_a_stream_with_a_system_message_still_trains_on_no_held_out_row(tmp_path):
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"question": f"q{i}", "answer": "1"}) + "\n" for i in range(40))
    )
    env = with_system_message(stream(tmp_path / "x.jsonl"), "brief")
    held = {p.last for p in env.test}
    assert len(held) == 4 and not held & {env.prompt(i).last for i in range(40)}
    assert env.prompt(0).content[0]["content"] == env.test[0].content[0]["content"] == "brief"


def test_a_system_message_stands_before_held_out_pairs_too():
    rows = [{"prompt": f"q{i}", "chosen": "a", "rejected": "b"} for i in range(4)]
    env = with_system_message(of_rows({"train": rows, "test": PAIR}, "pairs"), "brief")
    assert {p.content[0]["content"] for p in (*env.train, *env.test)} == {"brief"} and len(env.test) == 1
