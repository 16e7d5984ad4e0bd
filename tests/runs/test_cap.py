"""The cap on what is stored of a run: the oldest texts go first, and a run that was killed ends with the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.runs.store import Store
from tests.runs.test_store import groups


def fill(store: Store, first: int, last: int) -> None:
    for step in range(first, last):
        some = groups(2, 2)
        for k, r in enumerate(r for g in some for r in g.rollouts):
            r.reward = float(k)
            r.turns[0].text = f"{step}.{k} " * (5 + 3 * (step * 7 % 5))  # of other sizes from step to step
        store.log("train", step, {}, some, 0.0)


def kept(store: Store) -> list[tuple[int, int]]:
    return [(r["step"], round(r["reward"])) for r in store.rollouts()]


def test_beyond_the_cap_the_oldest_texts_go_and_the_best_and_worst_stay_longest(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        store.cap = 12_000
        fill(store, 0, 40)
        steps = {k: [s for s, reward in kept(store) if reward == k] for k in range(4)}
        for k in (0, 3, 1, 2):
            assert steps[k] == list(range(steps[k][0], 40))  # the newest, without a gap
        assert steps[0] == steps[3] and steps[1] == steps[2] and 0 < steps[0][0] < steps[1][0]
        assert len(store.scores()) == 160 and sum(store.made("train").values()) == 160
        query = "SELECT SUM(bytes * (step >= ?) + pinned_bytes * (step >= ?)) FROM steps"
        (size,) = store.db.execute(query, (steps[1][0], steps[0][0])).fetchone()
        assert 0.7 * store.cap < size <= store.cap
        prompts = {row[0] for row in store.db.execute("SELECT step FROM groups")}
        assert prompts == {s for s, _ in kept(store)}


@pytest.mark.parametrize(("again", "closed"), [(3, True), (20, True), (11, False)])
def test_a_run_that_was_killed_ends_with_the_same_texts(tmp_path: Path, again: int, closed: bool) -> None:
    """Rows of 30 steps are written and trimmed, then the run goes back and does the last ones again."""
    with Store(tmp_path / "whole.sqlite") as whole, Store(tmp_path / "killed.sqlite") as killed:
        whole.cap = killed.cap = 12_000
        fill(whole, 0, 35)
        fill(killed, 0, 30)
        killed.forget("train", again)
        if closed:
            killed.close()
            killed = Store(killed.path)
            killed.cap = 12_000
        fill(killed, again, 35)
        assert kept(killed) == kept(whole)
        killed.close()


def test_a_cap_of_nothing_keeps_the_figures_alone(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite") as store:
        store.cap = 0
        fill(store, 0, 3)
        assert store.rollouts() == [] and len(store.scores()) == 12
