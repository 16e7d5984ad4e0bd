"""The page's API on run folders: what it answers, in which order, with which query plans, and without torch."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.page import rollouts, series
from posttrain.page.api import answer
from posttrain.page.folder import Folder, limited
from posttrain.page.held_out import wilson
from posttrain.page.rollouts import Filter, walk_for
from posttrain.runs.reader import Reader
from posttrain.runs.schema import roll_up_all
from posttrain.runs.store import Store
from tests.page import made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    made.write(folder, "one")
    made.write(folder, "plan", steps=5, phases=("sft", "rl"), seed=3)
    return folder


def ask(root: Path, address: str, **params: object) -> Any:
    return answer(Folder(root), address, {k: str(v) for k, v in params.items()})


def everything(root: Path, limit: int = 7, **params: object) -> list[dict[str, Any]]:
    """All pages, one after the other."""
    out: list[dict[str, Any]] = []
    at: dict[str, str] = {}
    for _ in range(100):
        found = ask(root, "rollouts", run="one", phase="train", limit=limit, **params, **at)
        out += found["rows"]
        if found["next"] is None:
            return out
        at = {"at": json.dumps(found["next"])}
    raise AssertionError("the pages do not end")


def key(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["step"], row["group_index"], row["sample_index"]


def test_reading_needs_no_torch(root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from posttrain.page.folder import Folder; from posttrain.page.api import answer\n"
        "f = Folder(Path(sys.argv[1]))\n"
        "answer(f, 'runs', {}); answer(f, 'run', {'run': 'one'}); answer(f, 'metrics', {'run': 'one'})\n"
        "answer(f, 'rollouts', {'run': 'one', 'phase': 'train'}); answer(f, 'systems', {})\n"
        "import posttrain.page.app, posttrain.page.report, posttrain.commands.view, posttrain.commands.report\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(root)], check=True)


def test_runs_and_a_run(root: Path) -> None:
    assert {r["name"] for r in ask(root, "runs")["runs"]} == {"one", "plan"}
    assert {r["speed"] for r in ask(root, "runs")["runs"]} == {50.0}, "tokens per second of the newest steps"
    assert str(root) not in json.dumps(ask(root, "runs")), "a page tells nobody where folders lie"
    found = ask(root, "run", run="one")
    assert found["run"]["state"] == "finished" and found["settings"]["sampling.max_tokens"] > 0
    assert [e["step"] for e in found["events"] if e["kind"] == "checkpoint"] == [7]
    assert [e["step"] for e in found["events"] if e["kind"] == "failed reward"] == [5, 10]
    assert found["stored"] == [{"phase": "train", "first": 1, "last": 12, "made": 12, "written": False}]


def test_warnings_alone_are_those_of_the_run(root: Path) -> None:
    found = ask(root, "warnings", run="one")["warnings"]
    assert found == ask(root, "run", run="one")["warnings"] and [w["name"] for w in found] == ["length drift"]
    assert (found[0]["first"], found[0]["last"], found[0]["x"]) == (8, 12, [8, 12])


def test_answers_that_could_not_be_scored_are_counted_with_the_reason(tmp_path: Path) -> None:
    where = made.write(tmp_path, "shaky", steps=0)
    with Store(where / "run.sqlite") as store:
        for step, failed in enumerate((1.0, 0.0, 2.0)):
            store.log("train", step, {"reward": 0.5, "failed": failed}, made.groups(step, 2, 2), 0.5)
            if failed:
                store.event("train", step, "reward error", f"r failed on {failed:.0f} of 4 (<b>late</b>)")
        store.begin("other", "policy", True)
        store.log("other", 0, {"reward": 0.5, "failed": 0.0}, made.groups(0, 1, 2), 0.5)
    told = [{"phase": "train", "failed": 3, "made": 12, "why": "r failed on 2 of 4 (<b>late</b>)"}]
    assert ask(tmp_path, "run", run="shaky")["unscored"] == told
    assert ask(tmp_path, "warnings", run="shaky")["unscored"] == told


def test_checkpoints_that_are_kept_are_events(tmp_path: Path) -> None:
    """By the names of their folders; what is half written, of no phase, or no number is none."""
    where = made.write(tmp_path, "kept", steps=6, phases=("sft", "rl"))
    for name in ("sft-000003", "rl-000005", ".rl-000004", "rl-x", "other-000001", "rl-99999999999"):
        (where / "checkpoints" / name).mkdir(parents=True)
    found = [e for e in ask(tmp_path, "run", run="kept")["events"] if "on the disk" in e["message"]]
    assert [(e["phase"], e["step"], e["x"], e["kind"]) for e in found] == [
        ("rl", 6, 12, "checkpoint"), ("sft", 4, 4, "checkpoint")
    ]  # fmt: skip


def test_phases_follow_one_another_on_the_axis(root: Path) -> None:
    found = ask(root, "run", run="plan")
    assert [(p["name"], p["start"], p["steps"]) for p in found["phases"]] == [("sft", 0, 5), ("rl", 5, 5)]
    assert ask(root, "metrics", run="plan", names="reward")["curves"]["reward"]["step"] == list(range(1, 11))
    tokens = ask(root, "metrics", run="plan", names="reward", x="tokens")["curves"]["reward"]["x"]
    assert tokens == [100.0 * n for n in range(1, 11)]
    assert ask(root, "metrics", run="plan", names="reward", x="answers")["curves"]["reward"]["x"][-1] == 120


def test_held_out_points_have_intervals(root: Path) -> None:
    """Wilson for 36 of 40, by hand: (0.9 + z2/80 -+ z sqrt(0.9 0.1 / 40 + z2/6400)) / (1 + z2/40), z2 = 3.8415: 0.7695 to 0.9604."""
    low, high = wilson(0.9, 40)
    assert (round(low, 4), round(high, 4)) == (0.7695, 0.9604)
    points = ask(root, "run", run="one")["held_out"]["points"]
    assert [p["step"] for p in points] == [0, 3, 6, 9, 12]
    assert (
        points[0]["value"] == 0.5 and points[-1]["value"] == 0.9 and points[-1]["low"] == pytest.approx(low, abs=1e-5)
    )


def test_a_run_that_goes_on_has_its_point_before_training(tmp_path: Path) -> None:
    """36 of 40, as above; a mean reward is told without the parts that its interval needs."""
    for name, score, metric in (("right", "accuracy", "accuracy"), ("paid", "reward", "held_out_reward")):
        where = made.write(tmp_path, name, steps=0)
        for file in ("held_out.json", "summary.json"):
            (where / file).unlink(missing_ok=True)
        (where / "state.json").write_text(
            json.dumps({"state": "running", "score": score, "before": 0.9, "started": 1.0})
        )
        with Store(where / "run.sqlite") as store:
            for step in range(4):
                store.log(
                    "train", step, {"reward": 0.5} | ({metric: 0.5} if step == 3 else {}), made.groups(step, 1, 2), 0.5
                )
        found = ask(tmp_path, "run", run=name)["held_out"]
        assert found["name"] == metric and [(p["step"], p["value"]) for p in found["points"]] == [(0, 0.9), (4, 0.5)]
        ends = [found["points"][0][k] for k in ("low", "high")]
        assert ends == (
            [pytest.approx(0.7695, abs=1e-4), pytest.approx(0.9604, abs=1e-4)] if score == "accuracy" else [None, None]
        )


def test_very_many_held_out_points_are_thinned(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.page.held_out._MOST", 2)
    assert [p["step"] for p in ask(root, "run", run="one")["held_out"]["points"]] == [0, 6, 12]


def test_fewer_points_keep_extremes_and_gaps(root: Path) -> None:
    """12 steps in at most 10 bins: bins of 2. The spike at step 8 is the most of the bin of steps 7 and 8; a NaN beside a number
    leaves the number."""
    found = ask(root, "metrics", run="one", names="spike,loss", points=10)
    assert found["width"] == 2 and found["curves"]["spike"]["high"] == [0, 0, 0, 100, 0, 0]
    assert found["curves"]["spike"]["mean"][3] == 50 and found["curves"]["spike"]["low"][3] == 0
    assert ask(root, "metrics", run="one", names="loss")["curves"]["loss"]["mean"][3] is None


def test_what_was_drawn_does_not_move(root: Path) -> None:
    whole = ask(root, "metrics", run="one", names="reward", points=10)["curves"]["reward"]
    part = ask(root, "metrics", run="one", names="reward", points=10, after=9)
    rest = part["curves"]["reward"]
    assert rest["step"] == whole["step"][-2:] == [10, 12] and rest["mean"] == whole["mean"][-2:] and part["from"] == 8
    later = ask(root, "metrics", run="plan", names="reward", after=7)
    assert later["from"] == 7 and later["curves"]["reward"]["step"] == [8, 9, 10]
    assert [series.width_for(n, 500) for n in (1, 500, 501, 16_000, 16_001, 50_001)] == [1, 1, 2, 32, 100, 200]


def test_pages_in_every_order_have_every_answer_once(root: Path) -> None:
    with Reader(root / "one" / "run.sqlite") as reader:
        every = [(r["step"] + 1, r["group_index"], r["sample_index"]) for r in reader.scores()]
        scored = {k for k, r in zip(every, reader.scores(), strict=True) if r["total"] is not None}
    assert [key(r) for r in everything(root)] == every
    assert [key(r) for r in everything(root, order="newest")] == every[::-1]
    for order in ("best", "worst"):
        found = everything(root, order=order)
        totals = [r["total"] for r in found]
        assert totals == sorted(totals, reverse=order == "best") and {key(r) for r in found} == scored
        assert len(found) == len(scored)


FILTERS: list[tuple[dict[str, object], Any]] = [
    ({"first": 3, "last": 5}, lambda r: 3 <= r["step"] <= 5),
    ({"first": 4, "last": 4, "order": "best"}, lambda r: r["step"] == 4),
    ({"first": 3, "last": 5, "order": "worst"}, lambda r: 3 <= r["step"] <= 5),
    ({"prompt": "p0"}, lambda r: r["prompt_id"] == "p0"),
    ({"prompt": "p0", "order": "worst"}, lambda r: r["prompt_id"] == "p0"),
    ({"low": 0.25, "high": 0.5}, lambda r: r["total"] is not None and 0.25 <= r["total"] <= 0.5),
    (
        {"low": 0.25, "order": "best", "first": 2},
        lambda r: r["total"] is not None and r["total"] >= 0.25 and r["step"] >= 2,
    ),
    ({"component": "numeric", "component_low": 0.5}, lambda r: (r["rewards"]["numeric"] or 0) >= 0.5),
    (
        {"component": "numeric", "component_high": 0.1},
        lambda r: r["rewards"]["numeric"] is not None and r["rewards"]["numeric"] <= 0.1,
    ),
    ({"shortest": 9, "longest": 11}, lambda r: 9 <= r["length"] <= 11),
    ({"stop": "length"}, lambda r: r["stop"] == "length"),
    ({"text": "ANSWER 3.1"}, lambda r: "answer 3.1" in r["text"]),
    ({"text": "question 0"}, lambda r: "question 0" in r["prompt"]),
    ({"text": "100%_no"}, lambda r: False),
    ({"failed": 1}, lambda r: r["failed"]),
    ({"failed": 1, "order": "best"}, lambda r: r["failed"]),
    ({"role": "nobody"}, lambda r: False),
]


@pytest.mark.parametrize("params, wanted", FILTERS, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_filters(root: Path, params: dict[str, object], wanted: Any) -> None:
    every = everything(root, 200)
    ranked = params.get("order") in ("best", "worst") and not params.get("failed")
    asked = {key(r) for r in every if wanted(r) and not (ranked and r["total"] is None)}
    found = [key(r) for r in everything(root, 5, **params)]
    assert len(found) == len(set(found)) and set(found) == asked
    if "nobody" not in params.values() and "100%_no" not in params.values():
        assert 0 < len(found) < len(every)


def test_a_page_that_ran_out_of_time_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "_DEEP", 10)
    monkeypatch.setattr(rollouts, "BUDGET", 0.0)
    first = ask(root, "rollouts", run="one", phase="train", text="answer 11.2.3")
    assert first["rows"] == [] and first["looked"] == 10 and not first["complete"] and first["next"]
    assert [key(r) for r in everything(root, text="answer 11.2.3")] == [(12, 2, 3)]


@pytest.mark.parametrize("params", [p for p, _ in FILTERS] + [{"order": o} for o in rollouts.ORDERS], ids=str)
def test_no_query_scans_a_big_table(root: Path, params: dict[str, Any]) -> None:
    wanted = Filter(phase="train", **{k: v if k != "failed" else bool(v) for k, v in params.items()})
    walk, deep = walk_for(wanted)
    with Reader(root / "one" / "run.sqlite") as reader:
        for at in (None, [1] * len(walk.keys)):
            query, values = walk.query(at, deep)
            plan = [row[3] for row in reader.db.execute(f"EXPLAIN QUERY PLAN {query}", values)]
            assert not [line for line in plan if "SCAN" in line and "json_each" not in line], (
                plan
            )  # json_each: of one answer
            small = wanted.prompt or wanted.first is not None  # what is sorted is one prompt, or one step
            assert small or not [line for line in plan if "TEMP B-TREE" in line], plan


def test_nothing_else_scans_a_big_table(root: Path) -> None:
    """Every statement that opening a run, its curves, a group and an answer makes."""
    seen: list[str] = []
    calls: list[tuple[str, dict[str, object]]] = [
        ("run", {}), ("metrics", {}), ("scatter", {"phase": "train"}), ("group", {"phase": "train", "step": 2, "group": 0}),
        ("tokens", {"phase": "train", "step": 2, "group": 0, "sample": 1}),
    ]  # fmt: skip
    opened = Folder.open

    @contextmanager
    def traced(self: Folder, name: str) -> Iterator[Reader]:
        with opened(self, name) as reader:
            reader.db.set_trace_callback(seen.append)
            yield reader

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "open", traced)
        for address, params in calls:
            ask(root, address, run="one", **params)
    assert len(seen) > 30
    small = ("phases", "roles", "components", "events", "sqlite_master", "CONSTANT")
    with sqlite3.connect(root / "one" / "run.sqlite") as db:
        for statement in {s for s in seen if s.startswith("SELECT")}:
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert not [p for p in plan if p.startswith("SCAN") and p.split()[1] not in small], (statement, plan)
            both = re.search(r"MIN\((id|step)\), MAX\(\w+\) FROM", statement)
            assert not both, "SQLite reads a whole index for both, and one entry for one"


def test_a_group_and_the_same_prompt_over_time(root: Path) -> None:
    found = ask(root, "group", run="one", phase="train", step=3, group=0)
    assert [a["sample_index"] for a in found["answers"]] == [0, 1, 2, 3] and found["gold"] == "42"
    assert found["weights"] == {"numeric": 1.0, "length": 0.3} and len(found["history"]) == 12
    assert found["answers"][2]["adv"] == pytest.approx(-0.25) and made.ATTACKS[2] in found["prompt"]


def test_texts_go_on_after_a_nul(root: Path) -> None:
    found = ask(root, "rollouts", run="one", phase="train", first=4, last=4, limit=1)["rows"][0]
    assert found["text"].endswith("\x07 \x00") and not found["cut"]
    with Folder(root).open("one") as reader:
        row = dict(reader.db.execute("SELECT * FROM rollouts WHERE step = 3 LIMIT 1").fetchone())
        (short,) = rollouts.with_texts(reader, [row], 5)
    assert short["text"] == "answe" and short["cut"]


def test_tokens_have_their_pieces_and_streams(root: Path) -> None:
    found = ask(root, "tokens", run="one", phase="train", step=1, group=1, sample=0)
    (turn,) = found["turns"]
    assert turn["tokens"] == [2, 3, 4, 5, 6, 7] and turn["seen"] == [1, 2] and found["pieces"][2] == "<b>2"
    assert found["pieces"][5] == "\\xe2\\x82", "part of a character is its bytes"
    assert turn["logp"][0] == pytest.approx(-0.01) and turn["mask"] == [1] * 6 and len(turn["entropy"]) == 6
    assert turn["kl"][-1] == 0.5 and (turn["value"][0], turn["value"][-1]) == (-2.0, 0.75)


MISTAKES = {
    "no run named 'on'; did you mean 'one'?": ("run", {"run": "on"}),
    "no run named '../one'": ("run", {"run": "../one"}),
    "run needs run": ("run", {}),
    "runs takes no 'x'": ("runs", {"x": "1"}),
    "no address named 'ru'; did you mean 'run'?": ("ru", {}),
    "no order named 'bets'; did you mean 'best'?": ("rollouts", {"run": "one", "phase": "train", "order": "bets"}),
    "limit is 201; it must be 1 to 200": ("rollouts", {"run": "one", "phase": "train", "limit": "201"}),
    "low is 'nan'; it must be a number": ("rollouts", {"run": "one", "phase": "train", "low": "nan"}),
    "first is '1.5'; it must be a whole number": ("rollouts", {"run": "one", "phase": "train", "first": "1.5"}),
    "another order of answers": ("rollouts", {"run": "one", "phase": "train", "at": "[1]"}),
    "the `next` of the page before": ("rollouts", {"run": "one", "phase": "train", "at": '{"a": 1}'}),
    "no phase of one named 'tain'; did you mean 'train'?": ("rollouts", {"run": "one", "phase": "tain"}),
    "no phase of one named 'rl'": ("group", {"run": "one", "phase": "rl", "step": "1", "group": "0"}),
    "no x axis named 'hours'": ("metrics", {"run": "one", "x": "hours"}),
    "step 99 of train has no prompt 1": ("group", {"run": "one", "phase": "train", "step": "99", "group": "0"}),
    "answer 10 to prompt 1 of step 1 is not stored": (
        "tokens", {"run": "one", "phase": "train", "step": "1", "group": "0", "sample": "9"}),
    "no system named 'grop'; did you mean 'grpo'?": ("system", {"name": "grop"}),
}  # fmt: skip


@pytest.mark.parametrize("told", MISTAKES)
def test_mistakes_are_sentences(root: Path, told: str) -> None:
    address, params = MISTAKES[told]
    with pytest.raises(UserError) as error:
        ask(root, address, **params)
    assert told in str(error.value)


def test_a_run_from_elsewhere_that_nobody_may_write(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied"
    shutil.copytree(root / "one", copy / "one")
    for extra in copy.glob("*/run.sqlite-*"):
        extra.unlink()
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    (copy / "one").chmod(0o555)
    try:
        assert ask(copy, "run", run="one")["run"]["step"] == 12
        assert ask(copy, "rollouts", run="one", phase="train")["rows"]
    finally:
        (copy / "one").chmod(0o755)
    assert all(p.read_bytes() == was for p, was in before.items())


def test_a_damaged_database_is_a_sentence(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "one", tmp_path / "runs" / "one")
    (tmp_path / "runs" / "one" / "run.sqlite").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
    assert [r["name"] for r in ask(tmp_path / "runs", "runs")["runs"]] == ["one"]
    with pytest.raises(UserError, match="damaged"):
        ask(tmp_path / "runs", "run", run="one")


def test_a_query_has_a_limit(root: Path) -> None:
    with (
        Reader(root / "one" / "run.sqlite") as reader,
        pytest.raises(UserError, match="longer than"),
        limited(reader.db, 0.0),
    ):
        reader.db.execute(
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000000) SELECT SUM(n) FROM c"
        ).fetchone()


def test_systems_with_their_evidence(tmp_path: Path) -> None:
    found = {s["name"]: s for s in ask(tmp_path, "systems")["systems"]}
    assert found["grpo"]["evidence"]["derived"] is True and found["dapo"]["family"] == "policy-gradient"
    page = ask(tmp_path, "system", name="dapo")
    assert {p["field"] for p in page["parts"]} >= {"advantage", "loss"} and "min(" in json.dumps(page["parts"])


def test_bins_of_hundreds_with_an_unequal_number_of_values(tmp_path: Path) -> None:
    """1,200 steps in bins of 200: a hundred values of 1 and a single one of 102 have the mean (100 + 102) / 101 = 2, not 51.5."""
    where = made.write(tmp_path, steps=1)
    with Store(where / "run.sqlite") as store, store.db as db:
        db.execute("DELETE FROM metrics")
        known = [*range(100), 150, *range(200, 1200)]
        db.executemany(
            "INSERT INTO metrics VALUES ('train', ?, 'x', ?)", [(s, 102.0 if s == 150 else 1.0) for s in known]
        )
        roll_up_all(db)
    found = ask(tmp_path, "metrics", run="made", names="x", points=10)
    assert found["width"] == 200 and found["curves"]["x"]["mean"] == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert found["curves"]["x"]["high"][0] == 102.0 and found["curves"]["x"]["step"][0] == 200
