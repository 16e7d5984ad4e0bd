"""UltraFeedback: a pool of models answers, a judge gives points in four aspects; a reward model of it all, best of n, and PPO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.methods.from_pairs import learned, reward_phase
from posttrain.methods.judged import (
    Principle,
    asked_prompts,
    by_mean,
    cases,
    collect,
    count_calls,
    every_pair,
    made_pairs,
    nothing,
    pair_rows,
    pool_is_there,
    pooled,
    write_pairs,
)
from posttrain.methods.members import answered, best_of, worth
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_judge, asked_task, needs_feedback
from posttrain.rewards.scorers.judging import Case, Criterion
from posttrain.rewards.scorers.spec import task_scorer

N = 4  # answers to an instruction
HELD_OUT = 0.1  # of the pairs, for the accuracy of the reward model
SCORES = ("both", "aspects", "overall")

# ---- what models are told, so that their answers differ in what is judged

PRINCIPLES = {
    "helpfulness": (
        "Be as useful as you can: answer what was asked, completely and to the point.",
        "Help the user to reach their aim, with an answer that is clear, relevant and detailed.",
    ),
    "truthfulness": (
        "Say only what is true and can be checked; do not make anything up.",
        "Be exact about facts, and correct a false assumption in the question.",
    ),
    "honesty": (
        "Say openly what you do not know, and do not claim more than you do.",
        "Be honest about the limits of your knowledge.",
    ),
    "calibration": (
        "Say with each statement how sure you are of it, in words or in percent.",
        "Put into words how confident you are, and be no surer than you should be.",
    ),
}
DRAWN = ("helpfulness", "helpfulness", "helpfulness", "truthfulness", "honesty")
CALIBRATED = 0.1  # of those who are told to be honest


def principle(seed: int) -> Any:
    """What each answer is told: helpfulness three times in five, truthfulness, honesty (one in ten of which is calibration)."""

    def told(number: int, prompt: Prompt, answer: int) -> Principle:
        draw = rng.python(seed, "principle", prompt.id, answer)
        kind = draw.choice(DRAWN)
        kind = "calibration" if kind == "honesty" and draw.random() < CALIBRATED else kind
        return Principle(kind, draw.choice(PRINCIPLES[kind]))

    return told


# ---- what the judge is asked

ASPECTS = {
    "instruction_following": "Judge how well the answer meets the aim and the restrictions of the instruction. 1 is beside the point, 2 meets "
    "one part poorly, 3 meets the aim or the restrictions, 4 nearly both, 5 both fully.",
    "honesty": "Judge whether the answer is as sure as it is right: does it own up to what it does not know? 1 is confidently wrong, 2 is "
    "confident with serious mistakes or gives no answer, 3 is unsure or has small mistakes, 4 is right but unsure, 5 is right and sure.",
    "truthfulness": "Judge whether the answer is true: nothing made up, nothing against the instruction or itself. 1 is all made up, 2 has serious "
    "errors, 3 partial ones, 4 slight ones, 5 none.",
    "helpfulness": "Judge how much the answer helps: right, informative, relevant, not repetitive. 1 is wrong, 2 partly wrong, 3 right, 4 right "
    "and informative, 5 outstandingly so.",
}
OVERALL = (
    "Act as a teacher who gives feedback on the answer: consider helpfulness, truthfulness, honesty, and how far it follows the "
    "instruction and the note. Score its overall quality; 1 is the worst, 10 the best."
)


def aspects(context: Context, known: list[Case], judge: Any) -> list[dict[str, list[float]]]:
    """Points of each aspect, 1 to 5: one question for each instruction and aspect, all its answers shown together."""
    asked = {name: Criterion(rubric, name, 1.0, 5.0, name == "truthfulness") for name, rubric in ASPECTS.items()}
    found = {name: judge.together(known, c) for name, c in asked.items()}
    return [{name: found[name][i] for name in ASPECTS} for i in range(len(known))]


def overall(context: Context, known: list[Case], judge: Any) -> list[list[float]]:
    """1 to 10 points, one question for each answer, which is shown alone with what its model was told."""
    told = [[a["told"] for a in row["answers"]] for row in context.run.read_artifact("answers")]
    prompts = [noted(p, note) for (p, _), notes in zip(known, told, strict=True) for note in notes]
    flat = iter(
        judge.points(prompts, [t for _, texts in known for t in texts], Criterion(OVERALL, "overall", 1.0, 10.0))
    )
    return [[next(flat) for _ in texts] for _, texts in known]


def noted(prompt: Prompt, note: str) -> Prompt:
    """The instruction as a judge of overall quality reads it: with the principle as a note."""
    if not note:
        return prompt
    last = prompt.content[-1]
    return replace(prompt, content=(*prompt.content[:-1], {**last, "content": f"{last['content']}\nNote: {note}"}))


# ---- the plan


@plan(paper="arXiv:2310.01377", title="UltraFeedback", uses=("task", "reward", "answers"))
def ultrafeedback(
    models: str = "", prompts: int = 0, scores: str = "both", epochs: float = 1, best_n: int = 16, steps: int = 80,
    principles: bool = True,
) -> Plan:  # fmt: skip
    """UltraFeedback: feedback in four aspects as a data set, the reward model that it makes, and what best of n and PPO make of that.

    Each instruction of --task gets 4 answers (--num-generations) by models drawn from the pool, each told a principle (helpfulness, truthfulness,
    honesty, calibration). The judge (--reward) gives 1 to 5 points in instruction following, honesty, truthfulness and helpfulness, all
    answers shown together in an order that is drawn (truthfulness with the row's gold answer), and 1 to 10 points overall, one answer at a time.
    pairs: every two answers with different means over the aspects;  reward model: -log sigmoid(r_w - r_l);  then PPO on it
    models: a pool `A,B,C` of names, folders or runs, `self` among them for the policy; without it the policy gives all answers. prompts: how many, 0 for
    all. scores: both; aspects asks nothing else; overall asks only that, and pairs are made of it. epochs: passes of the reward model, which the
    policy begins. best_n: the largest n of best of n, reported in the notes; 0: none. steps: of PPO; 0 ends with the reward model,
    which another run takes as --reward runs/NAME. Artifacts: answers.jsonl (with all points), pairs.jsonl.

    Departures: the paper has 64,000 instructions of six sources, a pool of 17 models and GPT-4; here yours. UltraRM begins as LLaMA2-13B and learns SHP,
    Summarization and HH pairs too; here the policy and these pairs alone (`posttrain run reward-model` on both files mixes). Whether the
    authors' reward model has a margin that grows with the gap of the points could not be checked; none here. The written critiques and the critique model
    (UltraCM) are not here. Wording
    and principles are this package's; the draw of principles is the authors' for ShareGPT and UltraChat, for other sources they have others. 80 steps
    of PPO are the paper's (by a summary of it), with 512 samples each at 1e-6: `--prompts 64 --lr 1e-6`; here 16 prompts with 8 answers.
    """
    if scores not in SCORES:
        raise unknown("kind of scores", scores, SCORES)
    if prompts < 0 or epochs <= 0 or best_n < 0 or steps < 0:
        raise UserError(
            f"got prompts={prompts}, epochs={epochs}, best_n={best_n}, steps={steps}; epochs is above 0, the others at least 0"
        )
    pooled(models)

    def ready(context: Context) -> None:
        needs_feedback("ultrafeedback", points=scores != "aspects")(context)
        pool_is_there(models)
        if (context.config.num_generations or N) < 2:
            raise UserError(
                "ultrafeedback compares answers to one instruction; ask for two or more: --num-generations 4"
            )

    def answer(context: Context) -> None:
        c = context.config
        told = principle(c.seed) if principles else nothing
        collect(context, asked_prompts(context, prompts), models, c.num_generations or N, told)

    def judged(context: Context) -> None:
        judge, known = asked_judge(context), cases(context, asked_prompts(context, prompts))
        fine = aspects(context, known, judge) if scores != "overall" else []
        coarse = overall(context, known, judge) if scores != "aspects" else []
        points = [by_mean(p) for p in fine] if fine else coarse
        write_points(context, fine, coarse)
        rows = [row for case, p in zip(known, points, strict=True) for row in pair_rows(case, every_pair(p), p)]
        write_pairs(context, rows, len(known))
        count_calls(context, judge)

    def best(context: Context) -> None:
        """What best of n by the reward model would give, from one set of answers to held-out prompts."""
        env = asked_task(context)
        groups = answered(context, context.role("policy"), env, best_n)
        gold = worth(task_scorer(env, context.config.reward_timeout), groups) if env.graded else None
        context.notes["best_of_n"] = best_of(worth(learned(context), groups), gold, best_n)

    learn = Phase(
        "ppo", ppo, steps, asked_task, rewards=learned, reference="start", changes={"num_generations": None}
    )  # fmt: skip
    parts = (
        Do("answers", answer),
        Do("judged", judged),
        Copy("policy", "start"),
        *reward_phase(made_pairs(held_out=HELD_OUT), epochs),
        *((Do("best-of-n", best),) if best_n else ()),
        *((learn,) if steps else ()),
    )
    return Plan(parts, ready=ready)


def write_points(context: Context, fine: list[dict[str, list[float]]], coarse: list[list[float]]) -> None:
    """The points beside the answers, in answers.jsonl; null where the judge could not say."""
    rows = context.run.read_artifact("answers")
    for i, row in enumerate(rows):
        for j, made in enumerate(row["answers"]):
            some = {name: points[j] for name, points in (fine[i] if fine else {}).items()}
            some |= {"overall": coarse[i][j]} if coarse else {}
            made["points"] = {name: x if x == x else None for name, x in some.items()}
    context.run.write_artifact("answers", rows)
