"""Data sets of the hub by id: which files, which subset, which split; one sentence without a connection."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.core.errors import UserError
from posttrain.environments import hub
from posttrain.environments.task import pair_task, task
from tests.environments.test_stream import parquet, rows


def listing(names):
    return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A hub of one data set with two subsets, of files on this disk."""
    root = tmp_path / "served"
    for subset in ("main", "other"):
        for split, some in (("train", rows(30)), ("test", rows(40)[30:])):
            folder = root / subset / split
            folder.mkdir(parents=True)
            parquet(folder / "0000.parquet", some[:5], 10)
            parquet(folder / "0001.parquet", some[5:], 10)
    (root / "README.md").write_text("a card")
    asked: list[tuple[str, str]] = []

    class Api:
        def dataset_info(self, spec, revision, timeout):
            asked.append((spec, revision))
            return listing(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda spec, file, repo_type, revision: str(root / file))
    return root, asked


def test_a_subset_with_its_splits(served):
    env = task("org/sums(subset='main')")
    assert (env.name, env.size("train"), env.size("test")) == ("sums", 30, 10)
    assert served[1] == [("org/sums", "refs/convert/parquet")]
    streamed = task("org/sums(subset='other')", stream=True)
    assert streamed.rows == 30 and streamed.size("test") == 10 and streamed.prompt(0).answer


def test_which_subset_must_be_said_where_there_are_several(served):
    with pytest.raises(
        UserError, match=r"several subsets: main, other; name one, like --task \"org/sums\(subset='main'\)\""
    ):
        task("org/sums")
    with pytest.raises(UserError, match="no subset of org/sums named 'mian'; did you mean 'main'"):
        task("org/sums(subset='mian')")
    shutil.rmtree(served[0] / "other")
    assert task("org/sums").size("train") == 30  # the only one


def test_files_of_the_data_set_itself_where_the_hub_converted_none(tmp_path, monkeypatch):
    from huggingface_hub.errors import RevisionNotFoundError

    parquet(
        tmp_path / "pairs-train.parquet", [{"prompt": f"q{i}", "chosen": "a", "rejected": "b"} for i in range(9)], 9
    )
    parquet(tmp_path / "pairs-test.parquet", [{"prompt": "t", "chosen": "a", "rejected": "b"}], 9)

    class Api:
        def dataset_info(self, spec, revision, timeout):
            if revision != "main":
                raise RevisionNotFoundError.__new__(RevisionNotFoundError)
            return listing(p.name for p in Path(tmp_path).iterdir())

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda spec, file, repo_type, revision: str(tmp_path / file))
    env = pair_task("org/pairs")
    assert (len(env.train), len(env.test)) == (9, 1)


def test_without_a_connection_one_sentence(monkeypatch):
    class Api:
        def dataset_info(self, *args, **more):
            raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr(hub, "_cached", lambda spec, revision: [])
    with pytest.raises(
        UserError, match=r"cannot get the data set 'org/none' from the hub \(ConnectionError\); .*--task train"
    ):
        task("org/none")


def test_what_is_no_hub_id():
    assert hub.is_hub_id("openai/gsm8k") and hub.is_hub_id("HuggingFaceH4/ultrachat_200k")
    assert not any(hub.is_hub_id(x) for x in ("gsm8k", "a/b/c", "/abs/path", "../x", "a/", "tests/environments"))
    with pytest.raises(UserError, match="did you mean 'school/arithmetic'"):
        task("school/arithmetc")
