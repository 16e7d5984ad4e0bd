"""Data sets that stay on the disk: every row by its number, an order without memory, nothing held out is trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.environments.data import data, question_of
from posttrain.environments.mapped import each, with_system_message
from posttrain.environments.shelf import Shelf, permuted
from posttrain.environments.task import pair_task, task
from posttrain.prompts.uniform import uniform


def rows(n: int) -> list[dict[str, str]]:
    return [{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(n)]


def jsonl(path: Path, some: list[dict[str, str]], gap: str = "\n") -> Path:
    path.write_text("".join(json.dumps(r) + gap for r in some))
    return path


def parquet(path: Path, some: list[dict[str, str]], group: int) -> Path:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as files

    files.write_table(arrow.Table.from_pylist(some), path, row_group_size=group)
    return path


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 100])
def test_the_order_is_a_permutation_and_another_for_another_identity(n):
    one, two = ([permuted(i, n, ("x", k)) for i in range(n)] for k in (0, 1))
    assert sorted(one) == sorted(two) == list(range(n))
    assert n < 17 or (one != two and one != list(range(n)))


def test_every_row_by_its_number_in_lines_with_gaps_and_in_row_groups(tmp_path):
    want = rows(150)
    shelves = [
        Shelf([jsonl(tmp_path / "a.jsonl", want, "\n\n")]),
        Shelf([jsonl(tmp_path / "b.jsonl", want[:70]), jsonl(tmp_path / "c.jsonl", want[70:])]),
        Shelf([parquet(tmp_path / "a.parquet", want[:100], 33), parquet(tmp_path / "b.parquet", want[100:], 33)]),
    ]
    for shelf in shelves:
        assert shelf.count == 150
        assert [shelf.row(i)[1] for i in (0, 31, 32, 33, 69, 70, 99, 100, 149)] == [
            want[i] for i in (0, 31, 32, 33, 69, 70, 99, 100, 149)
        ]
        passes = [[shelf.place(i, "x", 0) for i in range(k * 150, (k + 1) * 150)] for k in (0, 1)]
        assert all(sorted(p) == list(range(150)) for p in passes) and passes[0] != passes[1]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_pass_sees_every_training_row_once_and_no_held_out_one(tmp_path, kind):
    path = tmp_path / f"d.{kind}"
    jsonl(path, rows(200)) if kind == "jsonl" else parquet(path, rows(200), 16)
    env = task(str(path), stream=True)
    test = {question_of(env.prompt(i, "test")) for i in range(env.size("test"))}
    assert 16 <= len(test) <= 20 and env.size("train") == 0 and env.graded and env.reward.name == "numeric"
    seen = [question_of(env.prompt(i)) for i in range(200)]
    assert set(seen) == {question_of(p) for p in every(path)} - test  # whatever is not held out, and only that
    again = task(str(path), stream=True)
    assert [env.prompt(i).id for i in range(50)] == [again.prompt(i).id for i in range(50)]
    assert [env.prompt(i).id for i in range(50)] != [
        task(str(path), stream=True, seed=1).prompt(i).id for i in range(50)
    ]
    assert env.grade(env.prompt(3), str(env.prompt(3).answer)) == 1.0


def every(path: Path):
    env = data(path)
    return [p for some in env.splits.values() for p in some]


def test_what_comes_at_a_step_belongs_to_seed_and_step_alone(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", rows(100))

    def step(seed: int, at: int) -> list[str]:
        sampler = uniform()
        sampler.start(task(str(path), stream=True), seed)
        return [p.id for p in sampler.propose(4, at)]

    assert step(0, 7) == step(0, 7) != step(1, 7)


def test_a_test_file_is_held_out_and_its_questions_are_never_trained_on(tmp_path):
    train, test = jsonl(tmp_path / "d.jsonl", rows(40)), jsonl(tmp_path / "t.jsonl", rows(10))
    env = task(f"{train}(test='{test}', stream=True)")
    assert env.size("test") == 10
    held = {question_of(env.prompt(i, "test")) for i in range(10)}
    assert not held & {question_of(env.prompt(i)) for i in range(80)}


def test_pairs_from_the_disk(tmp_path):
    some = [{"prompt": f"q{i}", "chosen": "a", "rejected": "a" if i == 3 else "b"} for i in range(40)]
    env = pair_task(str(jsonl(tmp_path / "p.jsonl", some)), stream=True)
    made = [env.prompt(i) for i in range(80)]
    assert all(p.info["chosen"] == "a" and p.info["rejected"] == "b" for p in made) and env.test


def test_rows_are_changed_or_stepped_over_and_ids_stay(tmp_path):
    env = task(str(jsonl(tmp_path / "d.jsonl", rows(60))), stream=True)
    short = each(env, lambda p, split: p if len(p.last) < 13 else None)  # What is 9+1? has 12 characters
    assert {p.last for p in (short.prompt(i) for i in range(30))} <= {f"What is {i}+1?" for i in range(10)}
    told = with_system_message(env, "Be brief.")
    assert (
        told.prompt(5).content[0] == {"role": "system", "content": "Be brief."}
        and told.prompt(5).id == env.prompt(5).id
    )


def test_bad_rows_are_told_with_their_number_or_stepped_over(tmp_path):
    path = tmp_path / "d.jsonl"
    good = [json.dumps(r) for r in rows(140)]
    path.write_text("\n".join([*good[:120], "{oops", *good[120:]]) + "\n")
    with pytest.raises(UserError, match=r"d, row 121: not JSON: .*skip_bad=True"):
        env = task(str(path), stream=True)
        [env.prompt(i) for i in range(141)]
    env = task(str(path), stream=True, skip_bad=True)
    assert len({env.prompt(i).id for i in range(141)}) > 100


@pytest.mark.parametrize(
    ("name", "told"),
    [("d.csv", "write it as .jsonl or .parquet first"), ("d.jsonl.gz", "gunzip -k"), ("none.jsonl", "no data file at")],
)
def test_files_that_cannot_be_read_row_by_row(tmp_path, name, told):
    if name != "none.jsonl":
        (tmp_path / name).write_text("question,answer\na,1\n")
    with pytest.raises(UserError, match=told):
        task(str(tmp_path / name), stream=True)


def test_an_empty_file_and_rows_from_python(tmp_path):
    (tmp_path / "d.jsonl").write_text("\n")
    with pytest.raises(UserError, match="has no rows"):
        task(str(tmp_path / "d.jsonl"), stream=True)
