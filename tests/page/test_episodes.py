"""Answers that are more than one text, from the store to the API: turns with tools, trees, roles, pictures; runs of earlier versions."""

from __future__ import annotations

import base64
import json
import sqlite3
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.png import brightness, png
from posttrain.core.turn import Observation
from posttrain.core.types import Branch
from posttrain.page.api import answer
from posttrain.page.folder import Folder
from posttrain.page.pictures import drawn
from posttrain.page.report import gathered
from posttrain.runs import pictures
from posttrain.runs.store import Store
from tests.page import episodes, made
from tests.page.made import ATTACKS

TOOLS, TREE, ROLES, DRAWN = range(4)


@pytest.fixture(scope="module", params=[False, True], ids=["at once", "by the writer"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    episodes.write(folder, background=request.param)
    return folder


def ask(root: Path, address: str, group: int, **params: object) -> Any:
    key = {"run": "episodes", "phase": "train", "step": 1, "group": group} | params
    return answer(Folder(root), address, {k: str(v) for k, v in key.items()})


def pixels(src: str) -> tuple[int, int, bytes]:
    """Width, height and bytes of a PNG whose rows are not filtered."""
    file = base64.b64decode(src.removeprefix("data:image/png;base64,"))
    width, height = struct.unpack(">II", file[16:24])
    at, body = 8, b""
    while at < len(file):
        (length,) = struct.unpack(">I", file[at : at + 4])
        kind, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + data) == struct.unpack(">I", file[at + 8 + length : at + 12 + length])[0]
        body += data if kind == b"IDAT" else b""
        at += 12 + length
    rows = zlib.decompress(body)
    line = len(rows) // height
    assert all(rows[y * line] == 0 for y in range(height))
    return width, height, b"".join(rows[y * line + 1 : (y + 1) * line] for y in range(height))


def test_turns_have_rewards_credit_masks_and_calls(root: Path) -> None:
    found = ask(root, "tokens", TOOLS, sample=1)
    assert found["answer"]["stop"] == "max_calls" and [t["reward"] for t in found["turns"]] == [0, 0, 1]
    assert [set(t["adv"]) for t in found["turns"]] == [{-1.0}, {0.0}, {1.0}]
    assert found["turns"][1]["mask"] == [1, 0, 0, 1] and found["turns"][1]["seen"] == [1, 2, 3]
    first, second, _ = (t["calls"] for t in found["turns"])
    assert first == [{"name": "search", "arguments": json.dumps({"query": ATTACKS[0]}), "result": f"found {ATTACKS[0]}", "seconds": 0.25}]  # fmt: skip
    assert second[0]["fault"] == f"broken {ATTACKS[1]}" and second[0]["repaired"] is True
    assert second[0]["arguments"].startswith("x" * 4000 + " … (9000") and len(second[0]["arguments"]) < 4100
    row = ask(root, "group", TOOLS)["answers"][1]
    assert row["said"] == [t["text"] for t in found["turns"]] and row["said"][0].startswith("turn 1 ")
    assert ask(root, "group", TREE)["answers"][0]["said"] is None, "of one turn the text is the answer's"


@pytest.mark.parametrize("told", [None, "text", 3, [3, "x", None], {"name": "x"}, [[7, {"other": 1}]], [[]] * 9])
def test_calls_that_are_something_else_are_left_out(tmp_path: Path, told: object) -> None:
    group = episodes.tools()
    for r in group.rollouts:
        r.info["calls"] = told
    with Store(tmp_path / "run.sqlite") as store:
        store.log("train", 0, {}, [group], 0.0)
        kept = [row[0] for row in store.db.execute("SELECT calls FROM calls")]
    assert kept in ([], ["[{}]"] * 2)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ([{"calls": [{"name": "search", "result": "7"}], "faults": []}, {"calls": [], "faults": ["not JSON"]}],
         [(0, [{"name": "search", "result": "7"}]), (1, [{"fault": "not JSON"}])]),
        ("text", []), ([3, {"calls": 3, "faults": "no"}], []),
    ],
)  # fmt: skip
def test_records_of_tools_are_kept_by_turn(tmp_path: Path, told: object, kept: list[object]) -> None:
    group = episodes.tools()
    group.rollouts = group.rollouts[:1]
    group.rollouts[0].info = {"tools": told}
    with Store(tmp_path / "run.sqlite") as store:
        store.log("train", 0, {}, [group], 0.0)
        assert [(t, json.loads(c)) for t, c in store.db.execute("SELECT turn, calls FROM calls ORDER BY turn")] == kept


def test_calls_as_episodes_with_tools_tell_them(tmp_path: Path) -> None:
    group = episodes.tools()
    good = {"name": "calculator", "arguments": {"x": 1}, "repaired": False, "result": "2", "seconds": 0.5}
    record = {"calls": [good], "faults": ["no tool named 'calc'"], "seconds": 0.5}
    group.rollouts[0].info = {"tools": [record, {"calls": [], "faults": [], "seconds": 0.0}]}
    group.rollouts[1].info = {}
    with Store(tmp_path / "run.sqlite") as store:
        store.log("train", 0, {}, [group], 0.0)
        ((turn, kept),) = store.db.execute("SELECT turn, calls FROM calls").fetchall()
    assert turn == 0 and json.loads(kept) == [good | {"arguments": '{"x": 1}'}, {"fault": "no tool named 'calc'"}]


def test_a_tree_says_who_left_whom_and_where(root: Path) -> None:
    nodes = ask(root, "tree", TREE)["nodes"]
    assert [(n["parent"], n["at"], n["length"], n["total"]) for n in nodes] == [
        (None, 0, 6, 0.0), (0, 3, 7, 0.25), (0, 0, 8, 0.5), (1, 5, 9, 0.75),
    ]  # fmt: skip
    # #2 has the ids 1 2 3 4 5 6 7, of which it shares the first three
    assert nodes[1]["own"] == "forty two <b> \u202e " and nodes[0]["own"] == "so the answer is forty two "
    with pytest.raises(UserError, match="do not fork from one another"):
        ask(root, "tree", TOOLS)
    assert ask(root, "tokens", TREE, sample=3)["answer"]["parent"] == 1
    report = gathered(Folder(root), "episodes")
    assert "tree?group=1&phase=train&run=episodes&step=1" in report["data"]


def test_a_parent_that_was_taken_out(tmp_path: Path) -> None:
    """Without #1: #2 and #3 have lost their parent; that of #4 now stands first."""
    group = episodes.tree().only([1, 2, 3])
    with Store(tmp_path / "run.sqlite") as store:
        store.log("train", 0, {}, [group], 0.0)
        links = [tuple(r) for r in store.db.execute("SELECT episode, parent, at FROM links ORDER BY id")]
        store.forget("train", 0)
        assert store.db.execute("SELECT COUNT(*) FROM links").fetchone()[0] == 0
    assert links == [(1, -1, 3), (2, -1, 0), (3, 0, 5)]


def test_of_a_large_tree_the_first_are_drawn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.page.tree.MOST", 2)
    found = ask(root, "tree", TREE)
    assert [n["sample_index"] for n in found["nodes"]] == [0, 1] and found["left_out"] == 2


def test_a_circle_is_no_endless_tree(root: Path, tmp_path: Path) -> None:
    group = episodes.tree()
    group.rollouts[0].branch = Branch(1, 2)
    group.rollouts[2].branch = Branch(2, 2)
    where = episodes.write(tmp_path)
    with Store(where / "run.sqlite") as store:
        store.log("train", 2, {}, [group], 0.0)
    nodes = ask(tmp_path, "tree", 0, step=3)["nodes"]
    assert [n["parent"] for n in nodes] == [1, 0, None, 1]  # nobody is his own parent; the page breaks the circle


def test_roles_of_one_episode_know_one_another(root: Path) -> None:
    found = ask(root, "group", ROLES)["answers"]
    assert [(a["role"], a["episode"]) for a in found] == [
        ("proposer", None), (ATTACKS[1], 0), ("proposer", 1), (ATTACKS[1], 1),
    ]  # fmt: skip
    assert [o["sample_index"] for o in ask(root, "tokens", ROLES, sample=3)["others"]] == [2]
    assert [o["sample_index"] for o in ask(root, "tokens", ROLES, sample=0)["others"]] == [1]


def test_pictures_that_were_seen(root: Path) -> None:
    shared = ask(root, "group", DRAWN)["pictures"]
    assert [p["name"] for p in shared] == [ATTACKS[0], "start"] and (shared[0]["low"], shared[0]["high"]) == (0, 1)
    assert pixels(shared[0]["src"]) == (6, 4, bytes([0, 51, 102, 153, 204, 255]) * 4)
    assert (shared[1]["width"], shared[1]["height"]) == (4, 4), "flat, of the shape that the policy says"
    (turn,) = ask(root, "tokens", DRAWN, sample=1)["turns"]
    assert turn["pictures"] == shared, "what all answers saw is stored once"
    with sqlite3.connect(root / "episodes" / "run.sqlite") as db:
        assert db.execute("SELECT COUNT(*), MAX(sample_index) FROM pictures").fetchone() == (4, -1)


def test_pictures_that_were_drawn(root: Path) -> None:
    (turn,) = ask(root, "tokens", DRAWN, sample=1)["turns"]
    assert [p["at"] for p in turn["drawn"]] == [0, 1, 2] and turn["tokens"] == [[], [], []]
    assert [pixels(p["src"])[2] for p in turn["drawn"]] == [
        bytes([128] * 16), bytes([64] * 8 + [191] * 8), bytes([0] * 8 + [255] * 8),
    ], "all three on the scale of the last, from -1 to 1"  # fmt: skip
    assert [a["picture"]["at"] for a in ask(root, "group", DRAWN)["answers"]] == [0, 0]
    assert pixels(ask(root, "group", DRAWN)["answers"][0]["picture"]["src"]) == (4, 4, bytes([0] * 8 + [255] * 8))


def test_actions_that_are_no_pictures() -> None:
    assert drawn([], (4, 4)) is None and drawn([[1.0, 2.0]], None) is None and drawn([[1.0] * 15], (4, 4)) is None
    assert drawn([3, 4], None) is None and drawn([0.5, 0.25], None) is None
    colour = drawn([[[[0.0] * 4] * 4, [[1.0] * 4] * 4, [[0.0] * 4] * 4]], None)
    assert colour is not None and pixels(colour[0]["src"])[2] == bytes([0, 255, 0] * 16), "three planes are a colour"
    many = drawn([[float(i)] * 16 for i in range(200)], (4, 4))
    assert many is not None and len(many) == 50 and many[-1]["at"] == 199, "every fourth, and the last"
    large = drawn([[0.5] * (200 * 100)], (200, 100))
    assert large is not None and (large[0]["width"], large[0]["height"]) == (25, 50)


def test_only_streams_of_pictures_are_kept() -> None:
    kinds = {
        "state": torch.zeros(1, 7), "sound": torch.zeros(1, 2, 16000), "wide": torch.zeros(1, 4, 40), "one": torch.zeros(3, 8, 8),
        "colour": torch.zeros(1, 8, 8, 3), "planes": torch.zeros(2, 3, 300, 200), "alpha": torch.zeros(1, 8, 8, 4).byte(),
        "latents": torch.zeros(1, 4, 8, 8), "none": torch.zeros(0, 8, 8),
    }  # fmt: skip
    kept = {k: tuple(x.shape) for k, x in pictures.seen(kinds, None).items()}
    assert kept == {"one": (3, 1, 8, 8), "colour": (1, 3, 8, 8), "planes": (2, 3, 60, 40), "alpha": (1, 3, 8, 8)}


def test_pictures_are_few_and_small(tmp_path: Path) -> None:
    """Large colour noise for each of 80 answers: 48 pictures of at most 64 pixels a side, whose bytes count for the cap."""
    group = episodes.drawn()
    draw = torch.Generator().manual_seed(0)
    one = group.rollouts[0]
    group.rollouts = [
        type(one)(one.prompt, [type(one.turns[0]).of(
            type(one.turns[0].observation)(torch.zeros(0).long(), {"pixels": torch.rand(1, 3, 256, 256, generator=draw)}),
            torch.zeros(1, 2), torch.zeros(1))], index=s, reward=float(s))
        for s in range(80)
    ]  # fmt: skip
    with Store(tmp_path / "run.sqlite", background=True) as store:
        store.log("train", 0, {}, [group], 0.0)
        store.sync()
        count, most, size = store.db.execute("SELECT COUNT(*), MAX(width), SUM(LENGTH(png)) FROM pictures").fetchone()
        assert (count, most) == (48, 64) and store.db.execute("SELECT bytes FROM steps").fetchone()[0] > size > 400_000
        store.cap = 1e5
        store.log("train", 1, {}, [group], 0.0)
        store.sync()
        left = store.db.execute("SELECT step, sample_index FROM pictures").fetchall()
        assert [tuple(r) for r in left] == [(0, 0), (1, 0)], "the worst of a step is pinned, the best has no picture"


def test_few_pictures_are_held_until_they_are_written() -> None:
    held = pictures.Held({})
    same = {"pixels": torch.zeros(2, 8, 8)}
    seen = [
        Observation(torch.zeros(0).long(), {"pixels": torch.zeros(2, 8, 8), "state": torch.zeros(1, 3)})
        for _ in range(60)
    ]
    kept = [held(Observation(torch.zeros(0).long(), same), "policy").streams for _ in range(60)]
    assert all(k["pixels"] is kept[0]["pixels"] for k in kept), "what is shown to many is held once"
    rest = [held(o, "policy").streams for o in seen]
    assert sum(map(len, rest)) == 23 and all("state" not in k for k in rest), "48 in all, two at a time"


def test_a_run_of_before_opens(root: Path, tmp_path: Path) -> None:
    """Databases that were made without the new tables: they are read as they are, and get them when the run goes on."""
    where = made.write(tmp_path, "old", steps=3)
    with sqlite3.connect(where / "run.sqlite") as db:
        for table in ("links", "calls", "pictures", "shapes"):
            db.execute(f"DROP TABLE {table}")
    key = {"run": "old", "phase": "train", "step": "1", "group": "0"}
    found = answer(Folder(tmp_path), "group", key)
    assert found["pictures"] == [] and all(a["at"] is None and a["picture"] is None for a in found["answers"])
    tokens = answer(Folder(tmp_path), "tokens", key | {"sample": "0"})
    assert tokens["turns"][0]["calls"] == [] and tokens["others"] == []
    with Store(where / "run.sqlite") as store:
        store.log("train", 3, {}, [episodes.tools()], 0.0)
        assert store.db.execute("SELECT COUNT(*) FROM calls").fetchone()[0] == 6


def test_png_and_brightness() -> None:
    assert pixels("data:image/png;base64," + base64.b64encode(png(bytes(range(12)), 2, 2, 3)).decode()) == (2, 2, bytes(range(12)))  # fmt: skip
    for wrong in ((b"123", 2, 2, 1), (b"", 0, 0, 1), (b"1234", 1, 2, 2)):
        with pytest.raises(ValueError, match="are no picture of"):
            png(*wrong)
    nan, inf = float("nan"), float("inf")
    assert brightness([0.0, 0.5, 1.0]) == (0, 1) and brightness([-0.5, 0.5]) == (-1, 1)
    assert brightness([0, 200]) == (0, 255) and brightness([-300.0, 300.0]) == (-300, 300)
    assert brightness([nan, inf]) == (0, 1) and brightness([nan, -7.0, 9.0, -8.0]) == (-8, 9)


def test_damaged_rows_are_passed_over(tmp_path: Path) -> None:
    where = episodes.write(tmp_path)
    with sqlite3.connect(where / "run.sqlite") as db:
        for k, wrong in enumerate(("{", "[1, null, [2]]", "7")):
            db.execute("UPDATE calls SET calls = ? WHERE turn = ?", (wrong, k))
        db.execute("UPDATE pictures SET png = 'text' WHERE name = 'start'")
        db.execute("UPDATE pictures SET png = x'00' WHERE name != 'start'")
        db.execute("UPDATE shapes SET shape = '[4, \"x\"]'")
        db.execute("UPDATE links SET parent = 99, at = 99 WHERE at = 5")
    assert [t["calls"] for t in ask(tmp_path, "tokens", TOOLS, sample=0)["turns"]] == [[], [], []]
    assert ask(tmp_path, "group", DRAWN)["pictures"] == []
    (turn,) = ask(tmp_path, "tokens", DRAWN, sample=0)["turns"]
    assert turn["drawn"] is None and [len(a) for a in turn["tokens"]] == [13] * 3, (
        "vectors, as many numbers as are shown"
    )
    assert ask(tmp_path, "tree", TREE)["nodes"][3]["parent"] is None
    with sqlite3.connect(where / "run.sqlite") as db:
        db.execute("UPDATE shapes SET shape = '{'")
    assert ask(tmp_path, "group", DRAWN)["answers"][0]["picture"] is None
