"""CodeUltraFeedback: answers of a pool of models, each instruction judged by one of five preferences of programmers, then DPO."""

from __future__ import annotations

from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import demonstrations, epochs_of, imitation
from posttrain.methods.judged import (
    Principle,
    asked_prompts,
    best_and_worst,
    cases,
    collect,
    count_calls,
    made_pairs,
    nothing,
    pair_rows,
    pool_is_there,
    pooled,
    write_pairs,
)
from posttrain.methods.settings import asked_judge, needs_feedback, written
from posttrain.rewards.scorers.judging import Criterion

N = 4  # answers to an instruction
SFT_EPOCHS = 5  # the authors'
TIES = ("drawn", "drop")

# ---- what is preferred: what a model is told before it answers, and what it is judged by

PRINCIPLES = {
    "instruction-following": (
        "Do exactly what the instructions say; leave them only where that cannot be avoided.",
        "Keep to every detail of what is asked, and add nothing that was not asked for.",
        "Meet each requirement of the user as it stands, in the form that was asked for.",
    ),
    "readability": (
        "Write code that is easy to read: telling names and short comments where they help.",
        "Let a reader follow the code at once, with brief and clear comments on what it is for.",
        "Make the code plain, and explain in a few comments what is not.",
    ),
    "complexity": (
        "Write code that is as fast and as sparing with memory as the problem allows.",
        "Choose the algorithm with the least work for large inputs, without giving up correctness.",
        "Keep time and memory low; avoid repeated work.",
    ),
    "style": (
        "Write code in the conventions of its language: idioms, formatting, names.",
        "Follow the style guide of the language and use its own means instead of detours.",
        "Write it as an experienced programmer of this language would.",
    ),
    "explanation": (
        "Explain how the code works, and why it was done in this way, so that a learner understands.",
        "Go with the reader through the code, from the idea to the details, and name the choices made.",
        "Give a clear explanation beside the code: what it does, how, and why.",
    ),
}
RUBRICS = {
    "instruction-following": "Judge how exactly the answer follows the instructions: is each requirement met, and is every deviation necessary? "
    "1 ignores them, 2 follows few, 3 follows most, 4 follows nearly all, 5 follows all of them.",
    "readability": "Judge how readable the code is: are names, comments and documentation clear, brief and to the point? 1 is hard to follow, "
    "2 offers little help, 3 is reasonably clear, 4 is clear and concise, 5 could not be read more easily.",
    "complexity": "Judge how efficient the code is in time and memory for large inputs, as long as it is right. 1 is wasteful, 2 has large "
    "needless costs, 3 is acceptable, 4 is nearly as good as possible, 5 is as good as possible.",
    "style": "Judge whether the code keeps to the conventions and idioms of its language: formatting, names, structure. 1 breaks them "
    "throughout, 2 often, 3 sometimes, 4 hardly ever, 5 never.",
    "explanation": "Judge how well the answer explains the code: is it clear, deep enough, and about this code? 1 does not explain, 2 explains "
    "little, 3 the main points, 4 nearly everything, 5 purpose, logic and choices, for any reader.",
}
PREFERENCES = tuple(PRINCIPLES)


def preference_of(number: int, prompt: Prompt) -> str:
    """The preference of an instruction: its column `preference` where it has one, else the five in turn."""
    named = prompt.info.get("preference")
    if named is not None and named not in PREFERENCES:
        raise unknown(f"preference of the row {prompt.id}", str(named), PREFERENCES)
    return str(named) if named else PREFERENCES[number % len(PREFERENCES)]


def criterion_of(preference: str) -> Criterion:
    return Criterion(RUBRICS[preference], preference, 1.0, 5.0)


def principle(seed: int) -> Any:
    """What each answer is told: one of the sentences of its instruction's preference, drawn."""

    def told(number: int, prompt: Prompt, answer: int) -> Principle:
        kind = preference_of(number, prompt)
        return Principle(kind, rng.python(seed, "principle", prompt.id, answer).choice(PRINCIPLES[kind]))

    return told


# ---- the plan


@plan(paper="arXiv:2403.09032", title="CodeUltraFeedback", uses=("task", "reward", "answers"))
def codeultrafeedback(
    models: str = "", prompts: int = 0, sft: str = "", epochs: float = 3, beta: float = 0.1, ties: str = "drawn",
    principles: bool = True,
) -> Plan:  # fmt: skip
    """CodeUltraFeedback: preferences of programmers from a judge, written down as pairs, and DPO on them.

    Each instruction of --task has one preference of five (instruction-following, readability, complexity, style, explanation; its own column
    `preference`, or in turn). 4 answers (--num-generations) by models drawn from the pool, each told a principle of that preference; the
    judge (--reward) reads the four together, in an order that is drawn, and gives 1 to 5 points each by the preference's rubric.
    chosen = highest, rejected = lowest points, of equals one at random; artifacts: answers.jsonl, pairs.jsonl
    models: a pool `A,B,C` of names, folders or runs, `self` among them for the policy; without it the policy gives all answers. prompts:
    how many, 0 for all. sft: a file of other instructions with answers, imitated first for 5 passes. epochs: passes of DPO. ties: drop
    leaves out instructions whose answers all got the same. principles: whether models are told one.

    Departures: the paper takes 10,000 instructions of Magicoder-Evol-Instruct, four of 14 models, and GPT-3.5 as judge; here yours. Its SFT data are the
    rest of Magicoder, so give a file that has no instruction of --task (`--plan.sft`); without one that phase is left out. It trains QLoRA of
    rank 64 (`--lora 64 --bits 4`) at 2e-4 for SFT and 5e-5 for DPO; here the rate is one for the size (`--lr`) in both. Principles, rubrics and the
    wording of the judge are this package's; its written reasons are not kept. A pair of twice the same text is left out; the authors' code can pick one
    answer as both sides. Four answers together, 1 to 5 points, lowest as rejected, random ties, beta 0.1, 3 and 5 epochs are the authors' code
    (their 1 to 10 with a reference is the benchmark CODAL, one answer at a time: `--reward "judge(url=..., low=1, high=10, reference=True)"` measures so).
    """
    if ties not in TIES:
        raise unknown("way with ties", ties, TIES)
    if prompts < 0 or epochs <= 0:
        raise UserError(f"got prompts={prompts}, epochs={epochs}; prompts is at least 0, epochs above 0")
    pooled(models)
    worked = demonstrations(spec=sft, option="")

    def ready(context: Context) -> None:
        needs_feedback("codeultrafeedback")(context)
        pool_is_there(models)
        if (context.config.num_generations or N) < 2:
            raise UserError(
                "codeultrafeedback compares answers to one instruction; ask for two or more: --num-generations 4"
            )
        if sft:
            worked(context)

    def answer(context: Context) -> None:
        c = context.config
        told = principle(c.seed) if principles else nothing
        collect(context, asked_prompts(context, prompts), models, c.num_generations or N, told)

    def judged(context: Context) -> None:
        judge, known = asked_judge(context), cases(context, asked_prompts(context, prompts))
        kinds = [preference_of(i, p) for i, (p, _) in enumerate(known)]
        rows: list[dict[str, Any]] = []
        for kind in PREFERENCES:
            mine = [case for case, k in zip(known, kinds, strict=True) if k == kind]
            for case, points in zip(mine, judge.together(mine, criterion_of(kind)), strict=True):
                pair = best_and_worst(points, ties, context.config.seed, case[0].id)
                rows += pair_rows(case, [pair] if pair else [], points, preference=kind)
        write_pairs(context, rows, len(known))
        count_calls(context, judge)

    env = made_pairs()
    parts = (
        *(imitation(SFT_EPOCHS, worked) if sft else ()),
        Do("answers", answer),
        Do("judged", judged),
        Phase("dpo", dpo.but(loss=dpo_loss.but(beta=beta)), epochs_of(env, epochs), env, rewards=written),
    )
    return Plan(parts, ready=ready)
