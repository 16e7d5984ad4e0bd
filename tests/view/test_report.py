"""The end of a run: paired differences, the three problems, and lines while it trains."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from posttrain.core.method import find_method
from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt, Rollout
from posttrain.evals.accuracy import Score
from posttrain.view.live import Bar, Lines, Watch, display
from posttrain.view.report import clip, next_steps, paired, report, samples


def answer(reward: float, text: str, i: int = 0, stopped: bool = True) -> Rollout:
    ids = torch.tensor([1, 2])
    asked = Prompt.text(f"p{i}", f"question {i}")
    return Rollout.single(asked, ids, ids, -torch.ones(2), text=text, reward=reward, stopped=stopped)


def score(rewards: list[float], word: str, name: str = "accuracy") -> Score:
    rollouts = [answer(r, f"{word} {i}", i) for i, r in enumerate(rewards)]
    mean = sum(rewards) / len(rewards)
    of = "problems" if name == "accuracy" else "prompts"
    return Score(mean, 0.1, len(rewards), 3.0, rollouts, name, of=of)  # type: ignore[arg-type]


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None, highlight=False)


def text(c: Console) -> str:
    return c.file.getvalue()  # type: ignore[attr-defined]


def test_the_error_of_the_change_is_that_of_paired_differences() -> None:
    """d = 1, 0, 1, 0: mean 1/2, variance 1/3, error sqrt(1/3 / 4)."""
    gain, error = paired(score([0, 1, 0, 1], "a"), score([1, 1, 1, 1], "b"))
    assert gain == 0.5 and error == pytest.approx(math.sqrt(1 / 12))


def test_the_three_problems_are_one_won_one_lost_one_the_same() -> None:
    before, after = score([0, 0, 1, 1, 0], "old"), score([0, 0, 0, 1, 1], "new")
    shown = "\n".join(t.plain for t in samples(before, after))
    for i in (0, 2, 4):  # unchanged, lost, won
        assert f"question {i}" in shown and f"old {i}" in shown and f"new {i}" in shown
    assert "question 1" not in shown and "question 3" not in shown
    assert len(samples(score([0], "a"), score([0], "b"))) == 1


def test_report_counts_and_survives_brackets_in_answers() -> None:
    before, after = score([0, 1], "[bold]x[/nope]"), score([1, 1], "[b]")
    c = console()
    report(c, before, after, {"seconds": 61.0, "tokens": 1234, "skipped_updates": 2}, [0.0, 0.5, 1.0])
    shown = text(c)
    assert "[bold]x[/nope] 0" in shown and "50.0% ± 10.0" in shown and "+50.0 ±" in shown
    assert "3 steps in 1m 01s, 1,234 tokens; 2 updates were not finite" in shown and "▁" in shown


def test_a_reward_is_told_as_the_number_it_is() -> None:
    """Means 3 and 5, so +2; no per cent, no ticks: nothing says which reward is a right answer."""
    c = console()
    report(c, score([2, 4], "a", "reward"), score([4, 6], "b", "reward"), {"seconds": 1.0, "tokens": 2}, [])
    shown = text(c)
    assert "2 held-out prompts" in shown and "3.000 ± 0.1" in shown and "5.000 ± 0.1" in shown and "+2 ± 0" in shown
    assert "before 2.000  a 0" in shown and "after  4.000  b 0" in shown
    assert "accuracy" not in shown and "✓" not in shown and "✗" not in shown


def test_pairs_are_ranked_not_answered() -> None:
    """1 of 2 and then 2 of 2 ranked right, margins -1 and 3: +4. Nobody answered, so no length and no end is shown."""
    before, after = score([0, 1], "good"), score([1, 1], "good")
    for s, margin in ((before, -1.0), (after, 3.0)):
        s.of, s.margin = "pairs", margin
        for i, r in enumerate(s.rollouts):
            r.prompt = Prompt.text(f"p{i}", f"question {i}", rejected=f"bad {i}")
    c = console()
    report(c, before, after, {"seconds": 1.0, "tokens": 2}, [0.7, 0.5], "loss")
    shown = text(c)
    assert "2 held-out pairs" in shown and "ranked right" in shown and "50.0% ± 10.0" in shown and "+50.0 ±" in shown
    assert "mean margin" in shown and "-1.000" in shown and "3.000" in shown and "+4" in shown
    assert "preferred  good 0" in shown and "rejected   bad 0" in shown and "ranked before ✗ after ✓" in shown
    assert "accuracy" not in shown and "finished answers" not in shown and "tokens per answer" not in shown


def test_grades_that_failed_are_told_with_their_reason() -> None:
    before, after = score([1, 0], "a"), score([1, 0], "b")
    after.failed, after.why = 1, "task failed on 1 of 2 (ValueError: no gold)"
    c = console()
    report(c, before, after, {"seconds": 1.0, "tokens": 2}, [])
    assert "1 of 2 could not be graded: task failed on 1 of 2 (ValueError: no gold)" in " ".join(text(c).split())


def test_answers_that_could_not_be_scored_are_counted() -> None:
    c = console()
    rewards = [math.nan, 1.0, 2.0, 3.0]
    report(c, score(rewards, "a", "reward"), score(rewards, "b", "reward"), {"seconds": 1.0, "tokens": 2}, [])
    assert "could not be scored" in text(c) and "question 1" in text(c)  # an example that has a reward comes first


def test_what_turns_earned_counts() -> None:
    """An episode that pays its turns: 0 for the outcome, 0.75 on the way."""
    before, after = score([0.0], "a", "reward"), score([0.0], "b", "reward")
    after.rollouts[0].turns[0].reward = 0.75
    assert paired(before, after) == (0.75, 0.0)
    (shown,) = samples(before, after)
    assert "before 0.000  a 0" in shown.plain and "after  0.750  b 0" in shown.plain


def test_an_answer_that_was_cut_off_says_so() -> None:
    before, after = score([0], "a"), score([0], "b")
    before.rollouts = [answer(0.0, "a", stopped=False)]
    (shown,) = samples(before, after)
    assert "a (cut off)" in shown.plain and "b (cut off)" not in shown.plain


def test_what_could_not_be_scored_is_no_change() -> None:
    """d = nan, 1, 1: the failed one is left out, so mean 1 and error 0."""
    assert paired(score([math.nan, 0, 1], "a"), score([0, 1, 2], "b")) == (1.0, 0.0)


def test_long_answers_are_clipped_to_a_line() -> None:
    assert clip("a\n b") == "a b" and clip("") == "(nothing)" and len(clip("x" * 999)) == 240


def test_answers_cannot_act_on_the_terminal() -> None:
    assert clip("a\x1b[2J b\ud800") == "a\\x1b[2J b\\ud800"


def test_next_steps() -> None:
    c = console()
    next_steps(c, [("posttrain x", "does x"), ("posttrain longer", "does y")])
    assert "posttrain x       does x" in text(c)


def loop(steps: int = 40) -> SimpleNamespace:
    config = SimpleNamespace(steps=steps, task="t", model="m", prompts=2, name="n")
    parameter = SimpleNamespace(numel=lambda: 2_000_000)
    policy = SimpleNamespace(parameters=lambda: [parameter], device="cpu")
    return SimpleNamespace(
        config=config, method=find_method("grpo"), learner=SimpleNamespace(policy=policy), phase="train", env=Environment(),
        run=SimpleNamespace(folder="runs/n", label="runs/n", store=SimpleNamespace(series=lambda name, phase: [(0, 0.5)])),
    )  # fmt: skip


METRICS = {"reward": 0.25, "tokens": 300.0, "seconds": 2.0, "nll": 0.5}


def test_lines_every_few_steps() -> None:
    """40 steps, 20 lines: every second step, and the last."""
    c = console()
    watch = Lines(c)
    watch.begin(loop(), score([0, 1], "a"))
    for step in range(40):
        watch.step(step, METRICS)
    lines = [x for x in text(c).splitlines() if x.startswith("step ")]
    assert len(lines) == 21 and lines[-1].startswith("step 40/40")
    assert "reward 0.250" in lines[0] and "entropy 0.500" in lines[0] and "150 tokens/s" in lines[0]
    assert "1m 18s left" in lines[0]  # 39 steps of 2 s
    assert "m (2M parameters)" in text(c) and "before training: 50.0% ± 10.0" in text(c)


def test_what_others_wrote_has_a_loss_and_no_reward() -> None:
    c = console()
    watch, trained = Lines(c), loop(1)
    trained.method = find_method("sft")
    watch.phase(trained)
    watch.step(0, METRICS | {"loss": 1.25})
    assert "loss 1.250" in text(c) and "reward" not in text(c) and "entropy" not in text(c)


def test_what_is_shown_where_it_was_measured() -> None:
    c = console()
    watch = Lines(c)
    watch.phase(loop(1))
    watch.step(0, METRICS | {"kl": 0.01, "entropy": 1.5, "accuracy": 0.5})
    assert "accuracy 50.0%" in text(c) and "entropy 1.500" in text(c) and "KL 0.010" in text(c)


def test_the_bar_is_taken_away() -> None:
    c = console(terminal=True)
    watch = Bar(c)
    watch.begin(loop(2), score([0], "a"))
    watch.step(0, METRICS)
    assert watch.bar is not None
    watch.close()
    assert watch.bar is None and "reward 0.250" in text(c)


def test_quiet_shows_only_the_end() -> None:
    c = console()
    watch = Watch(c, "elsewhere")
    watch.on_load(loop().config)
    watch.begin(loop(1), score([0], "a"))
    watch.step(0, METRICS)
    assert text(c) == ""
    watch.end(loop(1), score([0], "a"), score([1], "b"), {"seconds": 1.0, "tokens": 5})
    assert "posttrain chat --model n --runs elsewhere" in text(c)


def test_what_is_worth_typing_depends_on_what_was_trained() -> None:
    def verbs(name: str) -> list[str]:
        trained = loop()
        trained.method = find_method(name)
        return [command.split()[1] for command, _ in Watch(console()).worth_typing(trained)]

    assert verbs("grpo") == ["chat", "eval", "show", "export"]
    assert verbs("dpo") == ["chat", "show", "export"]  # pairs are no task
    assert verbs("reward-model") == ["run", "show"]  # it only scores: another run can be rewarded by it


def test_display_suits_where_it_is() -> None:
    assert type(display(quiet=True)) is Watch
    assert type(display(silent=True)) is Watch and display(silent=True).console.quiet
    assert type(display()) is Lines  # a test's output is no terminal
