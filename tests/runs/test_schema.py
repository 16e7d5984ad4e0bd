"""Version 2 of the database: gold answers, turns, token pieces, weights, figures of all answers, a cap; version 1 is read."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.task import log_task
from posttrain.policies.pieces import token_bytes
from posttrain.runs.reader import Reader
from posttrain.runs.store import Store
from tests.runs.test_store import groups

OLD = """
CREATE TABLE phases (place INTEGER PRIMARY KEY, phase TEXT UNIQUE, finished INTEGER DEFAULT 0);
CREATE TABLE metrics (phase TEXT, step INTEGER, name TEXT, value REAL, PRIMARY KEY (phase, step, name));
CREATE TABLE times (phase TEXT, step INTEGER, name TEXT, value REAL, PRIMARY KEY (phase, step, name));
CREATE TABLE rollouts (
    phase TEXT, step INTEGER, group_index INTEGER, sample_index INTEGER, prompt_id TEXT, prompt TEXT, text TEXT,
    reward REAL, failed INTEGER, rewards TEXT, tokens TEXT, logp TEXT, adv TEXT, mask TEXT, version INTEGER,
    stopped INTEGER, PRIMARY KEY (phase, step, group_index, sample_index));
CREATE TABLE events (id INTEGER PRIMARY KEY, phase TEXT, step INTEGER, kind TEXT, message TEXT);
"""  # as the first version made them


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(OLD)
        db.execute("INSERT INTO phases (phase, finished) VALUES ('train', 1)")
        db.executemany("INSERT INTO metrics VALUES ('train', ?, 'loss', ?)", [(s, float(s)) for s in range(250)])
        db.execute("INSERT INTO times VALUES ('train', 0, 'seconds', 1.5)")
        for s in range(2):
            row = (
                "train",
                3,
                0,
                s,
                "p0",
                "question",
                f"answer {s}",
                0.5,
                0,
                '{"right": 0.5}',
                "[5, 6, 7]",
                "[-0.5, -1, 0]",
            )
            db.execute(f"INSERT INTO rollouts VALUES ({','.join('?' * 16)})", (*row, None, "[1, 1, 0]", 7, 1))
        db.execute("INSERT INTO events (phase, step, kind, message) VALUES ('train', 1, 'note', 'hello')")
    return path


def test_a_run_of_the_first_version_is_read_as_it_is(old: Path) -> None:
    before = old.read_bytes()
    with Reader(old) as reader:
        assert reader.version == 1 and reader.finished("train") and reader.names() == ["loss"] and reader.roles() == {}
        assert reader.series("loss")[:2] == [(0, 0.0), (1, 1.0)] and reader.series("seconds") == [(0, 1.5)]
        row = reader.rollouts(step=3)[1]
        assert (row["text"], row["tokens"], row["logp"], row["mask"]) == (
            "answer 1",
            [5, 6, 7],
            [-0.5, -1, 0],
            [1, 1, 0],
        )
        assert row["rewards"] == {"right": 0.5} and row["adv"] is None and row["gold"] is None
        assert reader.turns("train", 3, 0, 1)[0]["tokens"] == [5, 6, 7] and reader.made("train") == {3: 2}
        assert [b["mean"] for b in reader.buckets("loss", "train")] == [49.5, 149.5, 224.5]
        assert reader.pieces() == {} and reader.weights() == {} and reader.events()[0]["message"] == "hello"
        with pytest.raises(UserError, match="read its rollouts instead"):
            reader.scores()
    assert old.read_bytes() == before and len(log_task(str(old.parent)).prompt(0).info["answers"]) == 2


def test_a_run_of_the_first_version_that_is_gone_on_with_is_brought_up_to_date(old: Path) -> None:
    with Reader(old) as reader:
        before = reader.rollouts(), reader.metrics()
    with Store(old) as store:
        after = store.rollouts()
        assert store.version == 2 and store.metrics() == before[1]
        for a, b in zip(before[0], after, strict=True):
            assert {k: b[k] for k in a} == a
        assert store.buckets("loss", "train")[1]["mean"] == 149.5
        assert store.db.execute("SELECT COUNT(*) FROM rollups").fetchone()[0] == 2  # hundreds that are complete
        assert store.scores()[0]["mean_logp"] == -0.75 and store.made("train") == {3: 2}
        store.log("train", 250, {"loss": 1.0}, groups(), 0.0)
        assert len(store.rollouts()) == 8
    with Store(old) as store:
        assert len(store.rollouts()) == 8


def test_streams_that_an_earlier_version_did_not_have(tmp_path: Path) -> None:
    """A database of before `kl` and `value` is read as it is, and gets their columns when its run goes on."""
    path = tmp_path / "run.sqlite"
    with Store(path) as store:
        store.log("train", 0, {}, [conversation()], 0.0)
        for name in ("kl", "value"):
            store.db.execute(f"ALTER TABLE turns DROP COLUMN {name}")
        store.db.commit()
    with Reader(path) as reader:
        (row,) = reader.rollouts()
        assert (
            row["kl"] is None and row["value"] is None and row["entropy"] == [0.0] * 4 + [pytest.approx(0.3, abs=1e-3)]
        )
        assert all(t["kl"] is None for t in reader.turns("train", 0, 0, 0))
    assert log_task(str(tmp_path)).prompt(0).info["answers"]
    group = conversation()
    group.rollouts[0].turns[0].streams_T |= {"kl": torch.tensor([0.25]), "value": torch.tensor([-0.5])}
    with Store(path) as store:
        store.log("train", 1, {}, [group], 0.0)
        (first, second) = (store.turns("train", step, 0, 0)[0] for step in (0, 1))
    assert (first["kl"], first["value"]) == (None, None) and (second["kl"], second["value"]) == ([0.25], [-0.5])


def test_bringing_up_to_date_is_all_or_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("posttrain.runs.rows.from_version_1", fails)
    with pytest.raises(KeyboardInterrupt):
        Store(old)
    with Reader(old) as reader:
        assert reader.version == 1 and len(reader.rollouts()) == 2


def test_a_newer_database_is_a_sentence(tmp_path: Path) -> None:
    Store(tmp_path / "run.sqlite").close()
    with sqlite3.connect(tmp_path / "run.sqlite") as db:
        db.execute("PRAGMA user_version = 3")
    for readonly in (True, False):
        with pytest.raises(UserError, match="upgrade posttrain"):
            Store(tmp_path / "run.sqlite", readonly=readonly)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "what? 100% #1"
    folder.mkdir()
    with Store(folder / "run.sqlite") as store:
        store.log("train", 0, {"loss": 1.0}, groups(), 0.0)
    with Reader(folder / "run.sqlite") as reader:
        assert reader.series("loss") == [(0, 1.0)]
    assert len(log_task(str(folder)).prompt(0).info["answers"]) == 3


def conversation() -> Group:
    """Two turns of one context after one of another; the second observes two tokens in between."""
    prompt = Prompt("p", ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}), {"sum": 3})
    first = Turn.of(Observation(torch.tensor([9])), torch.tensor([1]), torch.tensor([-1.0]), "one")
    second = Turn.of(Observation(torch.tensor([7, 7])), torch.tensor([2, 3]), torch.tensor([-1.0, -2.0]), "two")
    third = Turn.of(Observation(torch.tensor([8, 8])), torch.tensor([4]), torch.tensor([-0.5]), "three")
    third.continues, third.reward = True, 0.25
    r = Rollout(prompt, [first, second, third], reward=1.0, rewards={"right": 1.0}, stop="answered")
    r.set_stream("adv", torch.tensor([0.5, 0.5, 0.0, 0.0, 0.25]))
    r.turns[2].streams_T["entropy"] = torch.tensor([0.3])
    return Group(prompt, [r])


def test_an_episode_comes_back_by_turns_and_as_a_row(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        group = conversation()
        store.log("train", 0, {}, [group], 0.0)
        (row,) = store.rollouts()
        r = group.rollouts[0]
        assert row["tokens"] == r.actions.tolist() and row["logp"] == r.logp_T.tolist()
        assert row["mask"] == r.mask_T.int().tolist() and row["adv"] == [0.5, 0.5, 0.0, 0.0, 0.25]
        assert row["text"] == "three" and row["turns"] == 3 and row["gold"] == {"sum": 3} and row["stop"] == "answered"
        assert row["reward"] == 1.0 and row["total"] == 1.25
        turns = store.turns("train", 0, 0, 0)
        assert [t["text"] for t in turns] == ["one", "two", "three"] and [t["seen"] for t in turns] == [
            [9],
            [7, 7],
            [8, 8],
        ]
        assert (
            turns[2]["reward"] == 0.25
            and turns[2]["entropy"] == [pytest.approx(0.3, abs=1e-3)]
            and turns[1]["entropy"] is None
        )
        messages = store.db.execute("SELECT messages FROM groups").fetchone()[0]
        assert [m["role"] for m in json.loads(messages)] == ["system", "user"]
        (figures,) = store.scores()
        # adv: mean of .5 .5 .25 over the three own actions; logp: (-1 -2 -.5) / 3; tokens made: 1 + 2 + 1
        assert (figures["adv"], figures["mean_logp"], figures["length"]) == (
            pytest.approx(1.25 / 3),
            pytest.approx(-3.5 / 3),
            4,
        )


def test_the_figures_of_all_answers_are_kept_and_sorted(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        some = groups(2, 3)
        for n, r in enumerate(r for g in some for r in g.rollouts):
            r.reward = [0.5, 0.1, float("nan"), 0.9, 0.2, 0.3][n]
        store.log("train", 0, {}, some, 0.0, limit=2)
        assert len(store.rollouts()) == 2 and len(store.scores()) == 6 and store.made("train") == {0: 6}
        assert [s["total"] for s in store.scores(order="best", limit=2)] == [0.9, 0.5]
        assert [s["total"] for s in store.scores(order="worst", limit=2)] == [0.1, 0.2]
        assert [s["sample_index"] for s in store.scores(failed=1)] == [2] and len(store.scores(failed=0)) == 5
        later = groups(1, 1, 0.7)
        store.log("later", 0, {}, later, 0.0)
        assert [s["total"] for s in store.scores(order="best", limit=2)] == [0.9, 0.7]
        store.forget("later", 0)
        assert len(store.scores(prompt_id="p1")) == 3
        store.log("train", 1, {}, groups(), 0.0, limit=0)
        assert len(store.scores()) == 6 and store.made("train") == {0: 6, 1: 6}


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ({"phase": "train", "order": "best", "limit": 5}, "rollouts_total"),
        ({"prompt_id": "p1"}, "rollouts_prompt"),
        ({"failed": 1}, "rollouts_failed"),
        ({"phase": "train", "step": 1}, "sqlite_autoindex_rollouts_1"),
    ],
)
def test_half_a_million_answers_are_not_scanned(tmp_path: Path, query: dict, index: str) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        asked: list[str] = []
        store.db.set_trace_callback(asked.append)
        store.scores(**query)
        store.db.set_trace_callback(None)
        plan = " ".join(row["detail"] for row in store.db.execute(f"EXPLAIN QUERY PLAN {asked[-1]}"))
        assert index in plan, plan


def test_a_prompt_without_answers_is_no_row(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        some = groups(3, 2)
        some[0].rollouts, some[2].rollouts = [], []
        store.log("train", 0, {}, some, 0.0)
        assert [(r["group_index"], r["prompt"]) for r in store.rollouts()] == [(1, "question 1"), (1, "question 1")]


def test_repetition_is_the_share_of_fourgrams_that_came_before(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        for step, ids in enumerate(([1, 2, 3, 4, 5, 6], [1, 2, 1, 2, 1, 2, 1, 2], [1, 2, 3])):
            r = Rollout.single(Prompt.text("p", "q"), torch.tensor([1]), torch.tensor(ids), torch.zeros(len(ids)))
            store.log("train", step, {}, [Group(r.prompt, [r])], 0.0)
        # 8 tokens have five 4-grams, of which 1212 and 2121 are distinct; 3 tokens have none
        assert [s["repetition"] for s in store.scores()] == [0.0, pytest.approx(1 - 2 / 5), None]


def test_hundreds_are_rolled_up_and_forgotten_with_their_steps(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        for step in range(230):
            store.log("train", step, {"loss": float(step) if step else float("nan")}, [], 0.0)
        rows = store.buckets("loss", "train")
        assert [(b["bucket"], b["n"], b["least"], b["most"]) for b in rows] == [
            (0, 99, 1, 99),
            (1, 100, 100, 199),
            (2, 30, 200, 229),
        ]
        store.forget("train", 150)
        assert store.db.execute("SELECT bucket FROM rollups").fetchall()[0][0] == 0
        assert [(b["bucket"], b["n"]) for b in store.buckets("loss", "train")] == [(0, 99), (1, 50)]


def test_token_pieces_and_weights(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        asked: list[int] = []

        def pieces(ids: list[int]) -> list[bytes]:
            asked.extend(ids)
            return [f"<{i}>".encode() for i in ids]

        store.token_bytes = pieces
        store.begin("train", "policy", True, {"right": 1.0, "short": -0.5})
        for step in range(3):
            store.log("train", step, {}, groups(), 0.0)
        assert store.pieces() == {1: b"<1>", 5: b"<5>", 6: b"<6>"} and asked == [1, 5, 6]
        assert store.weights() == {"right": 1.0, "short": -0.5}


def test_bytes_of_tokens() -> None:
    """é is two bytes, which a byte-level vocabulary may split; a special token is its name."""
    from posttrain.policies.load import load_model

    tokenizer = load_model("pocket").tokenizer
    for text in ("12 + 7 = 19\n", "naïve é"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert b"".join(token_bytes(tokenizer, ids)) == text.encode()
    assert token_bytes(tokenizer, [tokenizer.eos_token_id]) == [tokenizer.eos_token.encode()]


def test_half_a_surrogate_pair_does_not_end_a_run(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        prompt = Prompt.text("p\ud800", "q\udc00", "a\ud800")
        r = Rollout.single(prompt, torch.tensor([1]), torch.tensor([2]), torch.zeros(1), text="t\udfff", reward=1.0)
        store.log("train", 0, {}, [Group(prompt, [r])], 0.0)
        (row,) = store.rollouts()
        assert (row["prompt"], row["text"], row["gold"]) == ("q\\udc00", "t\\udfff", "a\ud800")


def test_a_stored_run_of_turns_is_a_log_again(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        store.log("train", 0, {}, [conversation()], 0.0)
    (answer,) = log_task(str(tmp_path)).prompt(0).info["answers"]
    assert answer["tokens"] == [2, 3, 8, 8, 4] and answer["mask"] == [1, 1, 0, 0, 1]
