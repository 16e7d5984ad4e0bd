"""What sets plans of AI feedback apart: who answers, what the judge is shown, which pairs are written and learned from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from posttrain.core.types import Prompt
from posttrain.methods.judged import assigned, best_and_worst, every_pair, pooled
from posttrain.systems.preference import codeultrafeedback as cuf
from posttrain.systems.preference import ultrafeedback as uf
from tests.wiring.spies import traced

ASKS = [{"question": f"tell {i}"} for i in range(12)]
NAN = float("nan")


def lengths(prompt: Any, texts: list[str], aspect: str) -> list[float]:
    return [float(len(t)) for t in texts]


def pairs_of(trace: Any, phase: str) -> list[tuple[str, str]]:
    return [(g.rollouts[0].text, g.rollouts[1].text) for s in trace.steps if s.phase == phase for g in s.groups]


# ---- shared parts


def test_the_best_and_the_worst_and_what_becomes_of_ties() -> None:
    assert best_and_worst([3, 5, 1], "drop", 0) == (1, 2)
    assert best_and_worst([3, NAN, 1], "drop", 0) == (0, 2), "what could not be judged is neither"
    assert best_and_worst([2, 2, 2], "drop", 0) is None and best_and_worst([NAN, 2], "drawn", 0) is None
    drawn = {best_and_worst([5, 5, 1, 1], "drawn", i) for i in range(40)}
    assert drawn == {(0, 2), (0, 3), (1, 2), (1, 3)}, "of equals one at random"
    equal = {best_and_worst([2, 2, 2], "drawn", i) for i in range(60)}
    assert {(0, 1), (1, 0), (2, 1)} <= equal and None in equal, "the same answer as both sides is no pair"
    assert every_pair([1, 3, 3, NAN]) == [(1, 0), (2, 0)]


def test_a_pool_gives_different_models_where_it_has_as_many() -> None:
    for i in range(20):
        assert len(set(assigned(["a", "b", "c", "d", "e"], 4, i))) == 4
        assert sorted(assigned(["a", "b"], 4, i)) == ["a", "a", "b", "b"]
    assert len({tuple(assigned(["a", "b", "c"], 2, i)) for i in range(60)}) == 6
    assert pooled("") == ["self"] and pooled(" x , y") == ["x", "y"]
    with pytest.raises(pt.UserError, match="names one model twice"):
        pooled("x,x")


# ---- CodeUltraFeedback


def test_codeultrafeedback_judges_four_answers_together_by_the_preference_of_their_instruction() -> None:
    trace = traced("codeultrafeedback(epochs=1)", rows=ASKS, reward={"judge": lengths}, sampling={"max_tokens": 8})
    assert trace.parts == ["answers", "judged", "dpo"]
    calls = [c for c in trace.calls if c.phase == "judged"]
    assert len(calls) == trace.summary["judge_calls"] > 8 and all(len(c.args[1]) == 4 for c in calls)
    assert {c.args[2] for c in calls} == set(cuf.PREFERENCES)
    drawn = [d for d in trace.samples if d.phase == "answers"]
    told = "\n".join(p for d in drawn for p in d.prompts)
    assert all(any(s[:20] in told for s in some) for some in cuf.PRINCIPLES.values())
    # the answer with the highest points is chosen, the one with the lowest rejected
    shown = {c.args[0].last: sorted(c.args[1], key=len) for c in calls}
    for chosen, rejected in pairs_of(trace, "dpo"):
        some = next(texts for texts in shown.values() if chosen in texts and rejected in texts)
        assert (len(chosen), len(rejected)) == (len(some[-1]), len(some[0]))
    assert not any("system" in m["role"] for s in trace.steps for g in s.groups for m in g.prompt.content)


def test_codeultrafeedback_gives_1_to_5_points_by_the_preferences_rubric() -> None:
    asked = cuf.criterion_of("style")
    assert (asked.low, asked.high, asked.aspect, asked.rubric) == (1.0, 5.0, "style", cuf.RUBRICS["style"])


def test_ultrafeedback_tells_helpfulness_three_times_in_five_and_calibration_rarely() -> None:
    told = uf.principle(0)
    kinds = Counter(told(i, Prompt(f"p{i}", "tell"), j).kind for i in range(2000) for j in range(4))
    share = {kind: n / 8000 for kind, n in kinds.items()}
    # 3/5, 1/5, and of the last fifth a tenth; each within five standard deviations, sqrt(p (1 - p) / 8000) < 0.0055
    for kind, want in (("helpfulness", 0.6), ("truthfulness", 0.2), ("honesty", 0.18), ("calibration", 0.02)):
        assert abs(share[kind] - want) < 5 * (want * (1 - want) / 8000) ** 0.5, kind


def test_codeultrafeedback_without_principles_and_with_an_own_preference() -> None:
    rows = [r | {"preference": "style"} for r in ASKS]
    trace = traced("codeultrafeedback(epochs=1, principles=False, prompts=6)", rows=rows, reward={"judge": lengths},
                   num_generations=2)  # fmt: skip
    calls = [c for c in trace.calls if c.phase == "judged"]
    assert len(calls) == 6 and {c.args[2] for c in calls} == {"style"} and all(len(c.args[1]) == 2 for c in calls)
    assert all(p.startswith("tell") for d in trace.samples if d.phase == "answers" for p in d.prompts)


def test_codeultrafeedback_imitates_a_file_of_its_own_first(tmp_path: Path) -> None:
    file = tmp_path / "sft.jsonl"
    file.write_text("".join(json.dumps({"question": f"do {i}", "answer": "it is done so"}) + "\n" for i in range(4)))
    trace = traced(f"codeultrafeedback(epochs=1, sft={str(file)!r})", rows=ASKS, reward={"judge": lengths})
    assert trace.parts == ["sft", "answers", "judged", "dpo"]
    assert {r.text for s in trace.steps if s.phase == "sft" for r in s.rollouts} == {"it is done so"}
    size = trace.phases[0].loop.env.size
    assert len(trace.of(phase="sft")) == round(5 * size / 2) > 5, "5 passes, two rows in a step"
    assert trace.of(phase="dpo")[0].reference == trace.of(phase="sft")[-1].after


def test_codeultrafeedback_takes_a_pool_of_models(tmp_path: Path) -> None:
    from tests.wiring.spies import tiny_folder

    trace = traced(f"codeultrafeedback(epochs=1, models='{tiny_folder()},self')", rows=ASKS, reward={"judge": lengths})
    drawn = [d for d in trace.samples if d.phase == "answers"]
    assert {d.roles for d in drawn} == {("policy",), ()} and len({d.weights for d in drawn}) == 1


def test_what_is_missing_or_wrong_is_said() -> None:
    with pytest.raises(pt.UserError, match=r"codeultrafeedback learns from a judge.*judge\(url='http"):
        traced("codeultrafeedback", rows=ASKS)
    with pytest.raises(pt.UserError, match="did you mean 'drop'"):
        traced("codeultrafeedback(ties='drp')", rows=ASKS, reward={"judge": lengths})
    with pytest.raises(pt.UserError, match="preferred no answer to another"):
        traced("codeultrafeedback(ties='drop')", rows=ASKS, reward={"judge": lambda prompt, texts: [1.0] * len(texts)})
    tied = traced(
        "codeultrafeedback(epochs=0.1, beta=0.3)", rows=ASKS, reward={"judge": lambda prompt, texts: [1.0] * len(texts)}
    )
    assert tied.summary["pairs"] > 0 and tied.updates, "of equals two are drawn"
    assert {p.method.loss.params["beta"] for p in tied.phases} == {0.3}
    with pytest.raises(pt.UserError, match="did you mean 'style'"):
        traced("codeultrafeedback", rows=[r | {"preference": "stile"} for r in ASKS], reward={"judge": lengths})


# ---- UltraFeedback


def by_aspect(prompt: Any, text: str, aspect: str, reference: Any) -> float:
    """Points that differ by aspect; overall is the opposite of the rest."""
    return {"honesty": 5.0, "overall": -1.0}.get(aspect, 1.0) * len(text)


def test_ultrafeedback_asks_four_aspects_and_overall_and_pairs_all_answers_by_the_mean_of_the_aspects() -> None:
    rows = [r | {"answer": "gold"} for r in ASKS]
    trace = traced("ultrafeedback(steps=1, best_n=2, prompts=6)", rows=rows, reward={"judge": by_aspect})
    assert trace.parts == ["answers", "judged", "policy->start", "reward-model", "best-of-n", "ppo"]
    calls = [c for c in trace.calls if c.phase == "judged"]
    assert len(calls) == 6 * 4 * 5 == trace.summary["judge_calls"]
    assert {c.args[2] for c in calls} == {*uf.ASPECTS, "overall"}
    assert {c.args[2] for c in calls if c.args[3] == "gold"} == {"truthfulness"}, "only there is the truth shown"
    assert all("Note:" in c.args[0].last for c in calls if c.args[2] == "overall")
    assert not any("Note:" in c.args[0].last for c in calls if c.args[2] != "overall")
    # mean of (1, 1, 1, 5) lengths is 2 lengths: the longer of every two is chosen, whatever overall says
    pairs = pairs_of(trace, "reward-model")
    assert pairs and all(len(chosen) > len(rejected) for chosen, rejected in pairs)
    assert trace.summary["pairs"] > 6, "more than one pair to an instruction"
    assert set(trace.summary["best_of_n"]) == {"1", "2"}
    ppo = [s for s in trace.steps if s.phase == "ppo"]
    assert all("reward_model" in r.rewards for s in ppo for r in s.rollouts)
    assert trace.of(phase="ppo")[0].reference == trace.of(phase="ppo")[0].before


def test_ultrafeedback_by_overall_alone_asks_one_answer_at_a_time() -> None:
    trace = traced(
        "ultrafeedback(steps=0, best_n=0, prompts=6, scores='overall')", rows=ASKS, reward={"judge": by_aspect}
    )
    calls = [c for c in trace.calls if c.phase == "judged"]
    assert len(calls) == 24 and {c.args[2] for c in calls} == {"overall"}
    assert all(len(chosen) < len(rejected) for chosen, rejected in pairs_of(trace, "reward-model"))
    assert trace.parts[-1] == "reward-model"


def test_ultrafeedback_shows_the_answers_of_an_instruction_together() -> None:
    reward = {"judge": lengths}
    trace = traced("ultrafeedback(steps=0, best_n=0, prompts=4, scores='aspects')", rows=ASKS, reward=reward)
    calls = [c for c in trace.calls if c.phase == "judged"]
    assert len(calls) == 4 * 4 and all(len(c.args[1]) == 4 for c in calls)
    told = [p for d in trace.samples if d.phase == "answers" for p in d.prompts]
    assert len(told) == 16 and len({t for t in told}) > 8, "each answer is told a principle of its own"


def test_ultrafeedback_says_what_is_wrong() -> None:
    with pytest.raises(pt.UserError, match=r"ultrafeedback learns from a judge"):
        traced("ultrafeedback", rows=ASKS)
    with pytest.raises(pt.UserError, match="did you mean 'aspects'"):
        traced("ultrafeedback(scores='aspect')", rows=ASKS, reward={"judge": lengths})
    with pytest.raises(pt.UserError, match="two or more: --num-generations 4"):
        traced("ultrafeedback", rows=ASKS, reward={"judge": lengths}, num_generations=1)
