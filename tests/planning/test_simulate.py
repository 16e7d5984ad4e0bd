"""The simulation by hand: when each step of small runs is done."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from posttrain.planning.costs import Costs, Layout
from posttrain.planning.hardware import cluster
from posttrain.planning.lengths import Lengths
from posttrain.planning.shapes import known_shape
from posttrain.planning.simulate import Crew, Simulation, Stages, simulate
from posttrain.planning.work import Work

NEVER = 10**6


def test_synchronous_steps_are_the_sum_of_their_stages() -> None:
    """Two workers make shards of 10 and 8 s at once; scoring 1 s each, one after the other: the first at 8..9, the second at 10..11;
    host 2 and training 6 until 19, publishing 1: 20. Then loading 0.5 comes before the shards: 20.5 per step."""
    stages = Stages([[10.0, 8.0]], [6.0], score=1.0, publish=1.0, load=0.5, host=2.0)
    seen = simulate(Crew(1, 2, steps=3, save_every=NEVER), stages)
    assert seen.ticks == [20.0, 40.5, 61.0]
    assert (seen.training, seen.publishing, seen.making, seen.loading) == (24.0, 3.0, 54.0, 2.0)
    # trainer: 27 of 61 s; workers: (54 + 2) / 2 of 61 s
    assert seen.idle == pytest.approx({"trainers": 1 - 27 / 61, "rollout workers": 1 - 28 / 61})


def test_a_shard_is_not_scored_sooner_than_an_answer_is() -> None:
    """Many reward workers: 0.1 s of all of them per shard, but an answer takes 5 s."""
    seen = simulate(Crew(1, 2, steps=1), Stages([[10.0, 10.0]], [6.0], score=0.1, grade=5.0))
    assert seen.ticks == [21.0]


def test_a_lag_overlaps_rollouts_and_training() -> None:
    """Shards take 10, training and publishing 7. Steps 0 and 1 are made by version 0: ready at 10 and 20; step 2 by version 1, which
    is out at 17: ready at 30. So steps end at 17, 27, 37: the slower of the two stages, 10, apart."""
    seen = simulate(Crew(1, 1, lag=1, steps=4, save_every=NEVER), Stages([[10.0]], [6.0], publish=1.0))
    assert seen.ticks == [17.0, 27.0, 37.0, 47.0]
    assert seen.stale == {0: 1, 1: 3}  # step 0 cannot be behind


def test_a_lag_waits_for_the_version_it_is_due() -> None:
    """Training takes 20, shards 5. Step 2 needs version 1, out at 25, and step 1 was ready at 10: trained 25..45; step 2 is made
    25..30 and trained 45..65. Never by a newer version than max(0, k - 1)."""
    seen = simulate(Crew(1, 1, lag=1, steps=3, save_every=NEVER), Stages([[5.0]], [20.0]))
    assert seen.ticks == [25.0, 45.0, 65.0] and seen.stale == {0: 1, 1: 2}


def test_colocated_cards_do_one_thing_at_a_time() -> None:
    """Shards 10 and 8 on the cards of two ranks, training 6, publishing 1: 17 a step, of which a rank waits 2."""
    stages = Stages([[10.0, 8.0]], [6.0], publish=1.0)
    seen = simulate(Crew(2, 2, colocated=True, steps=2, save_every=NEVER), stages)
    assert seen.ticks == [17.0, 34.0] and seen.idle == pytest.approx({"cards": 1 / 17})


def test_colocated_with_a_lag_hides_rewards_and_nothing_else() -> None:
    """Rewards take 5 s: 10 + 5 + 6 + 1 = 22 a step in turn. With a lag both first steps are sampled until 20, step 0 is trained until 27, step 2
    sampled until 37, and then step 1, scored at 25, is trained until 44; nothing is left to sample, and step 2 ends at 51."""
    stages = Stages([[10.0, 8.0]], [6.0], grade=5.0, publish=1.0)
    sync, lagged = (Crew(2, 2, colocated=True, lag=lag, steps=3, save_every=NEVER) for lag in (0, 1))
    assert simulate(sync, stages).ticks == [22.0, 44.0, 66.0]
    assert simulate(lagged, stages).ticks == [27.0, 44.0, 51.0]


def test_ranks_take_their_own_shards_in_rounds() -> None:
    """Three shards of 1, 2 and 4 s on two ranks: rank 0 makes the first and the third, 5 s."""
    seen = simulate(Crew(2, 2, colocated=True, steps=2, save_every=NEVER), Stages([[1.0, 2.0, 4.0]], [1.0]))
    assert seen.ticks == [6.0, 12.0]


def test_free_workers_take_the_next_shard() -> None:
    """Elsewhere the third goes to whoever is free first: the worker that was done at 1, so 5 s; with 4, 1, 2: 1 + 2 beside 4."""
    stages = Stages([[4.0, 1.0, 2.0]], [1.0])
    assert simulate(Crew(1, 2, steps=1), stages).ticks == [5.0]


def test_opportunistic_steps_take_what_is_ready_first() -> None:
    """Shards of 10 and 2 s, in turn. Worker 0 makes the first until 10; worker 1 the second until 2 and the third until 12; worker 0 the
    fourth from 10 to 12. Two are ready at 10: step 0 ends at 11; the others at 12: 13. A third worker has the third shard from
    the start, and worker 1 makes the fourth from 2 to 4: two are ready at 4, and step 0 need not wait for the first."""
    stages = Stages([[10.0, 2.0]], [1.0])
    two = simulate(Crew(1, 2, staleness=1, steps=2, save_every=NEVER), stages)
    assert two.ticks == [11.0, 13.0]
    three = simulate(Crew(1, 3, staleness=1, steps=2, save_every=NEVER), stages)
    assert three.ticks[0] == 5.0
    assert simulate(Crew(1, 3, lag=1, steps=2, save_every=NEVER), stages).ticks[0] == 11.0


def test_staleness_is_bounded() -> None:
    """Shards of 1 s, training of 100: without a bound all would be made by version 0. With 1, the third is begun when step 0 is done."""
    seen = simulate(Crew(1, 1, staleness=1, steps=4, save_every=NEVER), Stages([[1.0]], [100.0]))
    assert seen.stale == {0: 1, 1: 3} and seen.ticks == [101.0, 201.0, 301.0, 401.0]


def test_checkpoints_are_waited_for_when_due() -> None:
    """Step 1 is trained at 4 and saved at 9. A worker of another card makes step 2's shard meanwhile, so it is trained at 10; on the
    trainer's own card it begins at 9 and is trained at 11. With a lag step 1's shard is ready at 2: trained at 3, saved at 8."""
    stages = Stages([[1.0]], [1.0], save=5.0)
    seen = simulate(Crew(1, 1, steps=4, save_every=2), stages)
    assert seen.ticks == [2.0, 9.0, 10.0, 17.0] and seen.saving == 10.0
    assert simulate(Crew(1, 1, colocated=True, steps=4, save_every=2), stages).ticks == [2.0, 9.0, 11.0, 18.0]
    assert simulate(Crew(1, 1, lag=1, steps=4, save_every=2), stages).ticks == [2.0, 8.0, 9.0, 15.0]


class Planned(Simulation):
    """Failures of given cards at given times."""

    def __init__(self, crew: Crew, stages: Stages, failures: dict[float, int]) -> None:
        self.planned = failures
        super().__init__(crew, stages)
        self.rng = self  # type: ignore[assignment]
        for when in failures:
            self.at(when, "failed")

    def randrange(self, count: int) -> int:
        return self.planned[self.now]

    def _next_failure(self) -> None:
        pass


def test_a_worker_that_fails_gives_its_shard_to_another() -> None:
    """Worker 0 (card 1) fails at 4 of its 10 s; worker 1, done at 10, makes the shard again until 20: trained at 21. 4 s are lost."""
    crew = Crew(1, 2, steps=1, restart=100.0, mtbf=1.0)
    seen = Planned(crew, Stages([[10.0, 10.0]], [1.0]), {4.0: 1}).run()
    assert seen.ticks == [21.0] and seen.lost == 4.0 and seen.failures == 1
    back = Planned(Crew(1, 2, steps=1, restart=3.0), Stages([[10.0, 10.0]], [1.0]), {4.0: 1}).run()
    assert back.ticks == [18.0]  # it is back at 7 and makes its shard itself
    fresh = Planned(Crew(1, 2, steps=1, restart=3.0), Stages([[10.0, 10.0]], [1.0], load=2.0), {4.0: 1}).run()
    assert fresh.ticks == [20.0]  # and must load the weights, which all had at the start


def test_a_trainer_that_fails_goes_back_to_its_checkpoint() -> None:
    """Steps of 1 + 4 s; at 13 the third is 2 s into training, and the first two were not saved: 100 s of restart, and what was trained
    since the start, 4 + 4 + 4 as planned, again. It ends at 15 + 112."""
    seen = Planned(Crew(2, 1, steps=3, save_every=NEVER, restart=100.0), Stages([[1.0]], [4.0]), {13.0: 0}).run()
    assert seen.ticks == [5.0, 10.0, 127.0] and seen.lost == 2 * 112.0
    saved = Planned(Crew(2, 1, steps=3, save_every=1, restart=100.0), Stages([[1.0]], [4.0]), {13.0: 0}).run()
    assert saved.ticks == [5.0, 10.0, 119.0]
    both = Planned(Crew(1, 1, colocated=True, steps=1, restart=100.0), Stages([[10.0]], [4.0]), {4.0: 0}).run()
    assert both.ticks == [118.0]  # its engine is gone with it: the shard begins again at 104
    waiting = Planned(Crew(1, 1, steps=1, restart=100.0), Stages([[10.0]], [4.0]), {5.0: 0}).run()
    assert waiting.ticks == [109.0]  # nothing to do again, and the shard is there


def test_failures_are_a_function_of_the_seed() -> None:
    crew, stages = Crew(4, 4, lag=1, steps=40, mtbf=500.0, restart=20.0), Stages([[5.0] * 8], [6.0])
    one, same, other = (simulate(crew, stages, seed) for seed in (1, 1, 2))
    assert one.failures > 3 and one == same and one.ticks != other.ticks
    calm = simulate(Crew(4, 4, lag=1, steps=40), stages)
    assert one.seconds > calm.seconds and calm.failures == 0 == calm.lost


def test_quantiles_leave_the_start_out() -> None:
    seen = simulate(Crew(1, 1, steps=5, save_every=NEVER), Stages([[9.0], [9.0], [1.0], [2.0], [4.0]], [1.0]))
    assert seen.steps == [2.0, 3.0, 5.0] and seen.quantile(0.5) == 3.0 and seen.quantile(0.75) == 4.0
    assert seen.step == pytest.approx(10 / 3)


def test_a_thousand_cards_take_two_seconds_and_no_torch() -> None:
    found = known_shape("Qwen/Qwen2.5-7B")
    assert found
    work, where = Work(1024, 16, Lengths(4000, 16000)), cluster("8xh100-80gb", 128)
    layout = Layout("split", 512, 512, lag=1, shards=512, slots=64, recomputed=1.0)
    began = time.process_time()
    stages, tokens = Costs(found[1], work, where, layout).stages(50)
    seen = simulate(layout.crew(50, work), stages)
    assert time.process_time() - began < 2.0
    assert len(seen.ticks) == 50 and 0.9 * 4000 < tokens / (1024 * 16) < 4000
    code = "import sys, posttrain.planning.layouts, posttrain.planning.words, posttrain.planning.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
