"""A reference that is renewed when held-out scores stall: when, with what, and after a restart."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.registry import find
from posttrain.runs.refuse import refuse
from posttrain.runs.run import Run
from posttrain.train import train
from tests.runs import tiny_run

PRORL = find_method("prorl")


@pytest.mark.derived("reference/stalled")
def test_it_is_renewed_after_as_many_scores_without_a_better_one() -> None:
    p, kept = tiny_run.policy(), find("stalled(patience=2)", "reference").live()
    kept.start(p)
    with torch.no_grad():
        next(p.parameters()).add_(1.0)
    # a first score, a better one, no better, worse: renewed; then the worse one is what is to be beaten
    assert [kept.after_eval(p, x) for x in (0.1, 0.3, 0.3, 0.2)] == [False, False, False, True]
    for a, b in zip(p.parameters(), kept.policy.parameters(), strict=True):
        assert torch.equal(a, b) and a is not b
    assert [kept.after_eval(p, x) for x in (0.25, float("nan"), 0.2, 0.25)] == [False, False, False, True]
    with pytest.raises(UserError, match="patience is 0"):
        find("stalled(patience=0)", "reference").live()


def scored(folder: Path, steps: int, stop: int = 0) -> tuple[list[tuple[bool, int]], dict[str, float]]:
    """Held-out scores .5, .4, .3 ...; after each step: is the policy the reference, how many moments has the optimiser."""
    settings = tiny_run.config(steps=steps, save_every=1, eval_every=1)
    method = PRORL.but(rollout=PRORL.rollout.but(n=4), select=(), rounds=1)
    seen = []

    class Look:
        def on_step(self, loop, step, metrics):  # type: ignore[no-untyped-def]
            ours, its = loop.policy.state_dict(), loop.learner.reference.policy.state_dict()
            seen.append((all(torch.equal(ours[k], its[k]) for k in ours), len(loop.learner.optimiser.state)))
            if step + 1 == stop:
                raise KeyboardInterrupt

    with Run(folder, {"a": 1}) as run:
        loop = tiny_run.build(run, settings, method)
        loop.callbacks, loop.monitors = [Look()], []
        loop.evaluator = lambda p: {"accuracy": 0.5 - 0.1 * loop.learner.updates}
        with suppress(KeyboardInterrupt):
            train(loop)
        return seen, dict(run.store.series("renewed"))


def test_reference_and_optimiser_start_anew_and_a_resumed_run_knows_the_scores(tmp_path: Path) -> None:
    whole, renewed = scored(tmp_path / "whole", 5)
    moments = whole[0][1]
    assert moments > 0 and whole == [(False, moments), (False, moments), (True, 0), (False, moments), (True, 0)]
    assert renewed == {2: 1.0, 4: 1.0}
    first, _ = scored(tmp_path / "halves", 5, stop=2)
    rest, again = scored(tmp_path / "halves", 5)
    assert [*first[:2], *rest[-3:]] == whole and again == renewed


def test_a_run_that_measures_nothing_on_the_way_is_refused() -> None:
    with pytest.raises(UserError, match=r"prorl renews .* --eval-every 10"):
        refuse(tiny_run.config(eval_every=0), PRORL)
    refuse(tiny_run.config(eval_every=5), PRORL)
    refuse(tiny_run.config(eval_every=0), PRORL.but(reference="fixed"))


def test_settings_of_a_method_give_way_to_those_of_the_user() -> None:
    assert PRORL.own({"steps": 3}) == {"steps": 3, "sampling": {"temperature": 1.2}, "eval_every": 10}
    given = {"eval_every": 0, "sampling": {"temperature": 1.0, "max_tokens": 9}}
    assert PRORL.own(given) == given
    assert find_method("grpo").own({}) == {}
