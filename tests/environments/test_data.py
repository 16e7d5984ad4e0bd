"""Data files: every format, every kind of bad input, splits."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.data import data, guess_reward
from posttrain.environments.questions import Layout

ROWS = [{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(40)]
BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"
FOLDER = Path(os.environ.get("POSTTRAIN_DATA") or BESIDE)


def jsonl(path: Path, rows) -> Path:
    text = "".join(json.dumps(r) + "\n" for r in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def all_prompts(env, split):
    return [env.prompt(i, split) for i in range(env.size(split))]


def write(path: Path, rows) -> Path:
    if ".jsonl" in path.name:
        return jsonl(path, rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix in (".csv", ".tsv"):
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text(
            "\n".join([mark.join(rows[0]), *(mark.join(f'"{v}"' for v in r.values()) for r in rows)]) + "\n"
        )
    else:
        arrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.json", "d.csv", "d.tsv", "d.parquet"])
def test_every_format_is_the_same_data(tmp_path, name):
    env = data(write(tmp_path / name, ROWS))
    want = {(r["question"], r["answer"]) for r in ROWS}
    assert {(p.last, p.answer) for s in ("train", "test") for p in all_prompts(env, s)} == want
    assert env.reward.name == "numeric"
    assert env.validate(40) == []


def test_rows_from_python_and_a_dict_of_splits():
    env = data(iter(ROWS))
    assert env.size("train") + env.size("test") == 40
    two = data({"train": ROWS[:30], "test": ROWS[30:], "validation": []})
    assert (two.size("train"), two.size("test")) == (30, 10)


def test_hash_split_is_disjoint_stable_and_never_empty():
    env = data(ROWS)
    train, test = ({p.last for p in all_prompts(env, s)} for s in ("train", "test"))
    assert not train & test and test
    more = data([*ROWS, {"question": "new?", "answer": "1"}])
    assert test <= {p.last for p in all_prompts(more, "test")}  # a row more moves no other row
    for n in (2, 3, 5):
        small = data(ROWS[:n])
        assert small.size("test") >= 1 and small.size("train") >= 1
    doubled = data(ROWS + ROWS)
    assert not {p.last for p in all_prompts(doubled, "train")} & {p.last for p in all_prompts(doubled, "test")}


def test_a_training_row_that_is_in_the_test_file_is_dropped_and_counted():
    env = data(ROWS[:10], test=ROWS[8:12])
    assert (env.size("train"), env.size("test")) == (8, 4)
    assert env.left_out["training rows that are in the test set"] == 2


def test_order_is_a_permutation_of_each_pass_and_belongs_to_the_seed():
    env = data(ROWS, test=[{"question": "t?", "answer": "1"}])
    first = [env.prompt(i).id for i in range(40)]
    second = [env.prompt(i).id for i in range(40, 80)]
    assert sorted(first) == sorted(second) and first != second
    assert first == [data(ROWS, test=[{"question": "t?", "answer": "1"}]).prompt(i).id for i in range(40)]
    assert first != [data(ROWS, test=[{"question": "t?", "answer": "1"}], seed=1).prompt(i).id for i in range(40)]


def test_a_folder(tmp_path):
    jsonl(tmp_path / "train.jsonl", ROWS[:9])
    jsonl(tmp_path / "test.jsonl.gz", ROWS[9:12])
    env = data(tmp_path)
    assert (env.size("train"), env.size("test")) == (9, 3)
    assert env.name == tmp_path.name
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UserError, match="train"):
        data(other)


def test_fields_by_name():
    env = data([{"q": "2+2?", "gold": 4, "why": "x"}], layout=Layout(fields={"question": "q", "answer": "gold"}))
    prompt = env.prompt(0)
    assert (prompt.last, prompt.answer, prompt.info) == ("2+2?", 4, {"why": "x"})


def test_solutions_are_cut_down_to_their_answer():
    env = data([{"question": "a", "answer": "2+2=4\n#### 4"}, {"question": "b", "answer": "so \\boxed{5}"}])
    assert {p.answer for s in ("train", "test") for p in all_prompts(env, s)} == {"4", "5"}


def test_choices_are_written_under_the_question():
    rows = [{"question": f"Which {i}?", "choices": ["one", "two"], "answer": 1} for i in range(3)]
    env = data(rows)
    prompt = env.prompt(0)
    assert prompt.last.endswith("?\nA) one\nB) two")
    assert env.reward.name == "choice"
    assert env.grade(prompt, "The answer is B.") == 1.0 and env.grade(prompt, "A") == 0.0


def test_messages_and_system():
    rows = [
        {
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
            "system": "Be kind.",
        },
        {"messages": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}], "system": ""},
    ]
    env = data(rows, test=[{"question": "t", "answer": "1"}], layout=Layout(reward="exact_match"))
    by_answer = {p.answer: p for p in all_prompts(env, "train")}
    assert [m["role"] for m in by_answer["hello"].content] == ["system", "user"]
    assert by_answer["4"].content == ({"role": "user", "content": "2+2?"},)


def test_guess_reward():
    def of(*answers):
        return guess_reward({"train": [Prompt.text("x", "q", a) for a in answers]})

    assert of("1", "-2.5", "1,000") == "numeric"
    assert of(r"\frac{1}{2}", r"\sqrt{2}", "3") == "math"
    assert of("Paris", "7") == "exact_match"
    assert of(*["7"] * 6, *[r"\frac{1}{2}"] * 3, "x + 1") == "math"  # as in MATH: most are plain numbers
    assert of(*["Paris"] * 6, *[r"\frac{1}{2}"] * 3, "7") == "exact_match"
    assert of(*["7"] * 59, "a\\b") == "exact_match"  # a stray backslash is no LaTeX
    assert of("Boeing747") == "exact_match"


def test_grade_is_within_bounds():
    env = data(ROWS, layout=Layout(reward="repetition"))
    assert env.grade(env.prompt(0), "a b c a b c") == 0.0  # the rule says less than 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"question": "a", "answer": "1"}\n{"question": "b", "ans', r"1 of 2 rows are bad.*line 2: not JSON"),
        ('{"question": "a", "answer": "1"}\n\n[1]\n7\n', r"2 of 3 rows.*line 3: a list, expected an object"),
        ('{"question": "a", "answer": "1"}\n{"question": "b"}\n', r"line 2: no 'answer'"),
        ('{"question": "a", "answer": "1"}\n{"answer": "1"}\n', r"line 2: no 'question'"),
        ('{"question": "a", "answer": "1"}\n{"question": 7, "answer": "1"}\n', r"line 2: expected a text"),
        ('{"question": "a", "answer": "1"}\n{"question": "  ", "answer": "1"}\n', r"line 2: the text is empty"),
        ('{"question": "a", "answer": "1"}\n{"question": null, "answer": "1"}\n', r"line 2: no 'question'"),
        ('{"question": "a", "answer": "1"}\n{"question": "b", "answer": ""}\n', r"line 2: no 'answer'"),
        ('{"question": "a", "choices": ["x"], "answer": 0}\n', r"choices are a list of 2"),
        ('{"messages": [{"role": "king", "content": "x"}]}\n', r"role is one of"),
        ('{"messages": []}\n', r"expected a text or a list of messages"),
        ('{"messages": [{"role": "user", "content": 5}]}\n', r"content is a text"),
    ],
)
def test_bad_rows_are_told_with_file_line_and_count(tmp_path, text, told):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match="bad.jsonl.*" + told):
        data(path)


def test_skip_bad_counts(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\nxx\n{"question": "b", "answer": "2"}\n{"question": "c"}\n')
    env = data(path, skip_bad=True)
    assert env.left_out["bad rows"] == 2 and env.size("train") + env.size("test") == 2
    path.write_text("xx\nyy\n")
    with pytest.raises(UserError, match="2 of 2"):
        data(path, skip_bad=True)  # nothing is left


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="no data file at"):
        data(tmp_path / "none.jsonl")
    for name, content, told in [
        ("empty.jsonl", b"", "has no rows"),
        ("empty.json", b"[]", "has no rows"),
        ("head.csv", b"question,answer\n", "has no rows"),
        ("x.txt", b"hello", "a data file ends in"),
        ("x.json", b'{"a": 1}', "expected a list of objects"),
        ("x.json", b"{", "is not JSON.*line 1"),
        ("x.jsonl.gz", b"not gzip", "not a whole gzip file"),
        ("cut.jsonl.gz", gzip.compress(json.dumps(ROWS).encode() * 50)[:100], "not a whole gzip file"),
        ("x.jsonl", b'\xff\xfe{"a"', "not UTF-8"),
        ("x.csv", b"question,answer\na,1\nb\n", "line 3: 1 values for 2 columns"),
        ("x.csv", b"question,answer\na,1,2\n", "line 2: 3 values for 2 columns"),
        ("x.csv", b"a,a\n1,2\n", "names a column twice"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UserError, match=told):
            data(path)
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="not a Parquet file"):
        data(tmp_path / "x.parquet")


def test_a_missing_column_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'qestion'"):
        data([{"qestion": "a", "answer": "1"}])
    with pytest.raises(UserError, match="did you mean 'question'"):
        data(ROWS, layout=Layout(fields={"question": "quesion"}))
    with pytest.raises(UserError, match="did you mean 'question'"):
        data(ROWS, layout=Layout(fields={"qestion": "question"}))
    with pytest.raises(UserError, match="it has 'a', 'b'"):
        data([{"a": 1, "b": 2}])


def test_what_is_no_data():
    with pytest.raises(UserError, match="iterable of dicts"):
        data(5)
    with pytest.raises(UserError, match="row 1: a number"):
        data([1, 2])
    with pytest.raises(UserError, match="train and test"):
        data({"dev": ROWS})
    with pytest.raises(UserError, match="did you mean 'test'"):
        data(ROWS).prompt(0, "tests")
    with pytest.raises(UserError, match="has no train questions"):
        data({"test": ROWS}).prompt(0)
    with pytest.raises(UserError, match="did you mean 'numeric'"):
        data(ROWS, layout=Layout(reward="numric"))


def test_a_pandas_index_column_is_no_trouble(tmp_path):
    (tmp_path / "x.csv").write_text(",question,answer\n0,a,1\n1,b,2\n")
    assert data(tmp_path / "x.csv").size("train") == 1
