"""Each monitor fires on what it is for, says it in words with its evidence, and is silent on a sound run and just below its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.runs import monitors as m
from posttrain.runs.reader import Reader
from posttrain.runs.schema import roll_up_all
from posttrain.runs.store import Store
from posttrain.runs.warnings import findings, history
from tests.page import made


def line(start: float, end: float, steps: int = 40) -> list[tuple[int, float]]:
    """Straight from start to end, with a wobble of 1% of the way that is no trend."""
    return [(s, start + (end - start) * s / (steps - 1) + (end - start) * 0.01 * (-1) ** s) for s in range(steps)]


def scores(*values: float) -> list[tuple[int, float]]:
    return [(10 * k, v) for k, v in enumerate(values)]


def test_the_ends_of_a_curve() -> None:
    """40 steps: windows of max(5, 2) = 5; 9 steps are too few for two of them; 200 steps: windows of 10."""
    found = m.ends([(s, float(s)) for s in range(40)])
    assert found is not None and (found.start, found.now, found.first, found.last) == (2.0, 37.0, 35, 39)
    assert m.ends([(s, 1.0) for s in range(9)]) is None and m.window(200) == 10
    gaps = m.ends([(s, float("nan") if s % 2 else 1.0) for s in range(40)])
    assert gaps is not None and gaps.now == 1.0


def test_reward_rises_while_held_out_falls() -> None:
    """The first five steps: 0.2 + 0.7 * 2 / 39 and a fifth of one wobble, 0.0359 + 0.0014."""
    found = m.over_optimised(line(0.2, 0.9), scores(0.5, 0.52, 0.5, 0.48, 0.45))
    assert found is not None and (found.first, found.last) == (20, 39)
    assert found.says == "reward rises while held-out falls: reward 0.237 to 0.863, held-out 0.5 to 0.45"
    assert m.over_optimised(line(0.2, 0.9), scores(0.5, 0.52, 0.5, 0.48, 0.55)) is None, "held-out rises at last"
    assert m.over_optimised(line(0.2, 0.9), scores(0.5, 0.5, 0.55, 0.5, 0.45)) is None, (
        "one of the last three is above the first"
    )
    assert m.over_optimised(line(0.2, 0.9), scores(0.5, 0.48, 0.45)) is None, "three measurements are too few"
    assert m.over_optimised(line(0.9, 0.9), scores(0.5, 0.5, 0.48, 0.45)) is None, "the reward does not rise"
    noisy = [(s, 0.5 + (0.3 if s % 2 else -0.3) + 0.002 * s) for s in range(40)]
    assert m.over_optimised(noisy, scores(0.5, 0.5, 0.48, 0.45)) is None, "a rise within the noise is none"


def test_reward_falls() -> None:
    """Up to 1 in 20 steps and back to 0.2 in 20: windows of 5, the best of them 0.9 or so; the wobble of 1% is no noise to speak of."""
    up, down = line(0.2, 1.0, 20), [(20 + s, v) for s, v in line(1.0, 0.2, 20)]
    found = m.reward_falls(up + down)
    assert found is not None and found.says.startswith("reward falls: 0.9") and found.says.endswith("now")
    assert "at steps 18 to 22" in found.says and (found.first, found.last) == (35, 39), found.says
    assert m.reward_falls(up) is None and m.reward_falls(line(0.5, 0.5)) is None
    back = [(20 + s, v) for s, v in line(1.0, 0.7, 20)]
    assert m.reward_falls(up + back) is None, "most of what was won is kept"
    noisy = [(s, 0.5 + (0.3 if s % 2 else -0.3) - 0.005 * s) for s in range(40)]
    assert m.reward_falls(noisy) is None, "a fall within the noise is none"
    assert m.reward_falls(down[:9]) is None, "nine steps are too few"
    assert m.reward_falls([(s, float("nan") if s % 2 else v) for s, v in up + down]) is not None


def test_length_drift() -> None:
    longer, shorter = m.length_drift(line(20, 60)), m.length_drift(line(60, 20))
    assert (
        longer is not None
        and longer.says == "answers grow longer: 22 to 58 tokens"
        and longer.filter == {"shortest": 23}
    )
    assert shorter is not None and "shorter" in shorter.says and "longest" in shorter.filter
    assert m.length_drift(line(20, 28)) is None
    assert m.length_drift(line(2, 5)) is None, "three tokens more are no drift"
    cut = m.length_drift(line(20, 20), line(0.0, 0.3))
    assert cut is not None and cut.name == "cut off" and cut.filter == {"stop": "length"}
    assert m.length_drift(line(20, 20), line(0.3, 0.3)) is None, "as many were cut off at the start"


def test_entropy_collapse() -> None:
    assert m.entropy_collapse(line(1.0, 0.05), line(0.3, 0.5)) is not None
    assert m.entropy_collapse(line(1.0, 0.05), line(0.3, 1.0)) is None, "the task is solved"
    assert m.entropy_collapse(line(1.0, 0.4), line(0.3, 0.5)) is None


def test_repetition() -> None:
    assert m.repetition([0.3] * 20, 5, 9) is not None and m.repetition([0.1] * 20, 5, 9) is None
    assert m.repetition([0.0] * 17 + [0.9] * 3, 5, 9) is not None, "the worst tenth"
    assert m.repetition([0.9] * 9, 5, 9) is None, "nine answers are too few"


def test_silent_groups_that_could_still_learn() -> None:
    """Where it is known which of them are solved, the mean reward decides no more."""
    silent, reward = line(0.1, 0.8), line(0.3, 0.8)
    assert m.silent_groups(silent, reward) is not None, "0.8 of 1 is not solved"
    assert m.silent_groups(silent, reward, 1.0, 0.1) is None, "most of the silent ones are"
    assert (
        m.silent_groups(silent, line(0.9, 0.95), 1.0, 0.5) is not None
        and m.silent_groups(line(0.1, 0.4), reward, 1.0, 0.9) is None
    )


def test_one_component_takes_over() -> None:
    """R = a + 2 b. Of (a, b) = (0, 0) and (0, 1), b decides all; of (0, 0) and (2, 1) each half: Cov(2, R) over 2 groups
    with deviations a -+1, 2b -+1, R -+2: shares 1 * 2 / 4 and 1 * 2 / 4."""
    weights = {"right": 1.0, "style": 2.0}
    by_style = [[{"right": 0.0, "style": 0.0}, {"right": 0.0, "style": 1.0}]] * 10
    both = [[{"right": 0.0, "style": 0.0}, {"right": 2.0, "style": 1.0}]] * 10
    assert m.variance_shares(by_style, weights) == {"right": 0.0, "style": 1.0}
    assert m.variance_shares(both, weights) == {"right": 0.5, "style": 0.5}
    found = m.take_over(by_style, weights, 0.0, 3, 9)
    assert found is not None and found.says.startswith("style takes over: it decides 100%")
    assert m.take_over(both, weights, 0.0, 3, 9) is None
    assert m.take_over(by_style[:9], weights, 0.0, 3, 9) is None, "nine groups are too few"
    assert m.take_over(by_style, weights, 0.2, 3, 9) is None, "what the run is for has risen"
    assert m.take_over(by_style, {"style": 2.0, "right": 1.0}, 0.0, 3, 9) is None, "the first is what the run is for"
    assert m.variance_shares([[{"right": 1.0, "style": 1.0}] * 4], weights) == {}


def test_gap_growing() -> None:
    assert m.gap_growing(line(0.001, 0.05)) is not None
    assert m.gap_growing(line(1e-6, 1e-4)) is None, "rounding" and m.gap_growing(line(0.02, 0.03)) is None


def test_silent_groups() -> None:
    assert m.silent_groups(line(0.1, 0.8), line(0.1, 0.3)) is not None
    assert m.silent_groups(line(0.1, 0.8), line(0.1, 1.0)) is None, "they are all right"
    assert m.silent_groups(line(0.1, 0.3), line(0.1, 0.3)) is None


def test_answers_that_are_their_prompt() -> None:
    pairs = [("What is 1+1?", "2")] * 8 + [("What is 1+1?", " What is 1+1?\n")] * 2
    found = m.echoes(pairs, 0, 4)
    assert found is not None and found.says == "20% of answers are their prompt again"
    assert m.echoes(pairs[:8] + [("q", "2")] * 2, 0, 4) is None and m.echoes([("", "")] * 20, 0, 4) is None


def write(folder: Path, text: str, style: bool) -> Path:
    """A run of 20 steps whose reward rises; with `style` only by the second component, and the answers loop."""
    folder.mkdir(parents=True)
    with Store(folder / "run.sqlite") as store:
        store.begin("train", "policy", True, {"zz-right": 1.0, "a-style": 2.0})
        for step in range(20):
            groups = made.groups(step)
            for g in groups:
                for k, r in enumerate(g.rollouts):
                    r.reward, r.rewards = (
                        float(k),
                        {"zz-right": 0.0 if style else float(k), "a-style": k / 2 if style else 0.0},
                    )
                    r.turns[-1].text = text or g.prompt.last
            metrics = {
                "reward": step / 10,
                "accuracy": 0.5 - step / 100 if style else 0.5 + step / 100,
                "length": 10.0,
                "entropy": 1.0,
            }
            store.log("train", step, metrics | {"reward/zz-right": 0.0, "frac_reward_zero_std": 0.0}, groups, 1.0)
        store.finish("train")
    return folder / "run.sqlite"


def test_on_a_run(tmp_path: Path) -> None:
    with Reader(write(tmp_path / "bad", "", style=True)) as reader:
        assert {f.name for f in findings(reader, "train")} == {"over-optimised", "take-over", "echo"}
    with Reader(write(tmp_path / "good", "fine", style=False)) as reader:
        assert findings(reader, "train") == []


def test_a_long_run_is_read_by_hundreds(tmp_path: Path) -> None:
    """5,100 steps: lengths from 10 to 61 by hundreds, the last five hundreds against the first five."""
    with Store(tmp_path / "run.sqlite") as store:
        rows = [("train", step, "length", 10 + step / 100) for step in range(5100)]
        store.db.execute("INSERT INTO phases (phase) VALUES ('train')")
        store.db.executemany("INSERT INTO metrics VALUES (?,?,?,?)", rows)
        store.db.commit()
        roll_up_all(store.db)
        assert len(history(store, "length", "train")) == 51
        (found,) = findings(store, "train")
    assert found.says == "answers grow longer: 12 to 58 tokens" and (found.first, found.last) == (4699, 5099)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_run_that_has_hardly_begun_has_no_warnings(tmp_path: Path, steps: int) -> None:
    made.write(tmp_path, steps=steps)
    with Reader(tmp_path / "made" / "run.sqlite") as reader:
        assert findings(reader, "train") == []


def test_what_repeats_by_nature_is_no_warning(tmp_path: Path) -> None:
    """200 steps of 12 answers, 3 in 10 of whose 4-grams are repeated from the first on (calls as JSON do); then only in the last quarter."""
    for name, first, count in (("always", 0.3, 0), ("later", 0.05, 1)):
        where = made.write(tmp_path, name, steps=200)
        with Store(where / "run.sqlite") as store, store.db as db:
            db.execute("UPDATE rollouts SET repetition = CASE WHEN step < 150 THEN ? ELSE 0.3 END", (first,))
        with Reader(where / "run.sqlite") as reader:
            assert sum(f.name == "repetition" for f in findings(reader, "train")) == count, name
