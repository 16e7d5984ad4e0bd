"""LeTI: what is said of one's own answers, learned as text, improves what comes behind a good verdict."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.people import questions
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.environments.mapped import Mapped
from posttrain.evals.accuracy import accuracy
from posttrain.systems.supervised_from_reward.leti import conditioned

TASK, LEVEL, ASKED, ROUNDS, PROMPTS, PROBLEMS = "word_problems", 1, 66, 3, 16, 200
HOW: dict[str, Any] = {"max_tokens": 32}
SAY = """def say(prompt, text):
    from posttrain.core.answers import final, number

    said = number(final(text) or "")
    if said is None:
        return "there is no number in the answer."
    return "the answer is too large." if said > float(prompt.answer) else "the answer is too small."
"""

GUESS = """import zlib

SAYS = ("there is no number in the answer.", "the answer is too large.", "the answer is too small.")


def say(prompt, text):
    return SAYS[zlib.crc32(f"{prompt.id} {text}".encode()) % 3]
"""


def behind(policy: Policy, env: Environment) -> dict[str, float]:
    """Accuracy behind each verdict."""
    out = {}
    for name, good in (("good", True), ("bad", False)):
        asked = Mapped(env, lambda p, split, good=good: conditioned(p, good))  # type: ignore[misc]
        out[name] = accuracy(policy, asked, PROBLEMS, Sampling(**HOW)).accuracy
    return out


def by_leti(seed: int, feedback: str) -> Measured:
    """The registered plan: 60 questions, 8 answers to each in every round, a pass over them."""
    with Bench(seed) as bench:
        asked = [p for _, p in questions(TASK, LEVEL, seed, ASKED)]
        rows = bench.rows("asked", [{"question": p.last, "answer": str(p.answer)} for p in asked])
        file = bench.folder / f"say_{bench.folder.name.replace('-', '_')}.py"
        file.write_text(feedback)
        told = f"{file}:say" if feedback else "none"
        run = bench.run(
            "leti", method=f"leti(rounds={ROUNDS}, epochs=1, feedback={told!r}, corpus='none')", task=rows, num_generations=8,
            prompts=PROMPTS, sampling=HOW, eval_problems=0,
        )  # fmt: skip
        return bench.measured(run, TASK, PROBLEMS, behind, level=LEVEL, think=True, sampling=HOW)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        found = bench.measured(None, TASK, PROBLEMS, level=LEVEL, think=True, sampling=HOW)
        return Measured({**found, "good": found["accuracy"], "bad": found["accuracy"]}, found.spent, found.curves)


claim(
    Claim(
        id="leti",
        title="LeTI",
        paper="arXiv:2305.10314",
        family="supervised-from-reward",
        says="Learning verdict, feedback, problem and answer as text, of good and bad answers alike, makes answers behind a good verdict better; with "
        "feedback more so than with the verdict alone.",
        experiment="The embedded model on word problems: three rounds of 8 answers to 60 questions, one pass each, by the registered plan with feedback (too large, too "
        "small, no number), with one of these three drawn whatever the answer was, and with the verdict alone. Accuracy on 200 held-out problems behind <|good|> and behind <|bad|> (of the start: without either).",
        arms={
            "LeTI": partial(by_leti, feedback=SAY),
            "drawn feedback": partial(by_leti, feedback=GUESS),
            "verdict alone": partial(by_leti, feedback=""),
            "start": start,
        },
        checks=(
            Check("feedback is better than the verdict alone", "good", "LeTI", "verdict alone", margin=0.05),
            Check("it matters what the feedback says", "good", "LeTI", "drawn feedback"),
            Check("better than the start", "good", "LeTI", "start", margin=0.05),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=tuple(Shared(what, arms=("LeTI", "drawn feedback", "verdict alone")) for what in ("updates", "written")),
        tried="As it stands, seed 100: behind a good verdict 0.71 (LeTI), 0.47 (verdict alone), from about 0.45; behind a bad one 0.69 and 0.44, so the verdict itself steers little. SFT on the right "
        "answers among as many samples of the start, in as many updates, reached 0.98: the paper does not compare with that, and neither does this claim. The arm of drawn feedback and its check came after that trial: nothing said that the words matter and not their place.",
    ),
    __file__,
)
