"""HuatuoGPT: imitate a model's fluent answers and doctors' own, then learn from a judge who knows what the doctor said."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.environments.language.listed import Listed
from posttrain.methods.from_pairs import demonstrations, epochs_of, imitation, learned, reward_phase
from posttrain.methods.judged import (
    asked_prompts,
    cases,
    collect,
    count_calls,
    every_pair,
    made_pairs,
    pair_rows,
    write_pairs,
)
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_judge, asked_task, needs_feedback
from posttrain.rewards.scorers.judging import Criterion
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

N = 4  # answers to a question
HELD_OUT = 0.1  # of the pairs, for the accuracy of the reward model
RUBRIC = (
    "Judge the answer to a patient: is it informative, coherent, in line with what people prefer, and true? What it says must agree with "
    "the reference, the answer that a doctor gave; a detailed and friendly answer that does not is worse than a short one that does."
)
WITHOUT = "Judge the answer to a patient: is it informative, coherent, in line with what people prefer, and true?"


def against_mixed_feedback(beta: float = 0.02) -> Method:
    return ppo.but(
        name="huatuogpt", title="HuatuoGPT", paper="arXiv:2305.15075", doc=__doc__, shaping=kl_in_reward.but(coef=beta)
    )  # fmt: skip


@plan(paper="arXiv:2305.15075", title="HuatuoGPT", uses=("task", "reward", "answers"))
def huatuogpt(
    distilled: str = "", warmup: float = 3, prompts: int = 0, reference: bool = True, passes: float = 1, epochs: float = 1,
    beta: float = 0.02,
) -> Plan:  # fmt: skip
    """HuatuoGPT: reinforcement learning from mixed feedback: of a judge, and of the doctor whose answer the judge is shown.

    SFT on both sources;  4 answers (--num-generations) to each question, judged one by one, 0 to 10 points, beside the doctor's answer
    pairs: every two with different points;  reward model: -log sigmoid(r_w - r_l);  PPO on r - beta log(pi / pi_sft)
    --task: questions with the doctor's answers; distilled: a file of questions with a model's answers, the other source of SFT; --reward: the
    judge. warmup: passes of SFT over both together (0: the model is tuned already). prompts: questions that are answered and judged, 0 for all.
    reference: whether the judge sees the doctor's answer. passes, epochs: of the reward model and of PPO. Artifacts: answers.jsonl, pairs.jsonl.

    Departures: the RL code was never released; the number of answers, the scale, the judge's wording, beta, the passes and the constants of PPO are this package's. The paper
    has 130,000 distilled and 95,000 doctors' items, and ChatGPT as judge; here yours. Doctors' answers that a model first polishes, and
    conversations of a model that plays the patient, must come with your files. SFT, the judge with the doctor's answer, pairs, a reward model and PPO
    with a KL price, in this order, are the paper's.
    """
    if warmup < 0 or prompts < 0 or passes <= 0 or epochs <= 0:
        raise UserError(
            f"got warmup={warmup}, prompts={prompts}, passes={passes}, epochs={epochs}; passes and epochs are above 0, the others at least 0"
        )
    doctors, others = demonstrations(option="warmup"), demonstrations(spec=distilled, option="warmup")
    asked = Criterion(RUBRIC if reference else WITHOUT, "mixed", 0.0, 10.0, reference)

    def both(context: Context) -> Listed:
        """Rows of both sources, with ids of their own."""
        rows = []
        for env in (doctors(context), *((others(context),) if distilled else ())):
            rows += [env.prompt(i) for i in range(env.size)]
        return Listed("two sources", tuple(rows))

    def ready(context: Context) -> None:
        needs_feedback("huatuogpt", points=True)(context)
        env = asked_task(context)
        if reference and env.prompt(0).answer is None:
            raise UserError(
                f"huatuogpt shows the judge the doctor's answer, and {env.name} has none; give rows with an answer, or judge without "
                "it: --plan.reference False"
            )
        if warmup and not distilled:
            raise UserError(
                "huatuogpt imitates two sources: --task, the doctors' answers, and a model's: --plan.distilled FILE; a model that is "
                "tuned already begins without: --plan.warmup 0"
            )
        if warmup:
            both(context)

    def answer(context: Context) -> None:
        collect(context, asked_prompts(context, prompts), "", context.config.num_generations or N)

    def judged(context: Context) -> None:
        judge, known = asked_judge(context), cases(context, asked_prompts(context, prompts))
        flat = iter(judge.points([p for p, ts in known for _ in ts], [t for _, ts in known for t in ts], asked))
        rows = []
        for case in known:
            points = [next(flat) for _ in case[1]]
            rows += pair_rows(case, every_pair(points), points)
        write_pairs(context, rows, len(known))
        count_calls(context, judge)

    learn = Phase(
        "ppo", against_mixed_feedback(beta), epochs_of(asked_task, epochs), asked_task, rewards=learned, reference="sft",
        changes={"num_generations": None},
    )  # fmt: skip
    parts = (
        *imitation(warmup, both),
        Copy("policy", "sft"),
        Do("answers", answer),
        Do("judged", judged),
        *reward_phase(made_pairs(held_out=HELD_OUT), passes),
        learn,
    )
    return Plan(parts, ready=ready)
