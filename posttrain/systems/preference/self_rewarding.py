"""Self-rewarding language models: the policy grades its own answers in words, and each round's DPO trains answerer and judge in one."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.sampling import Sampling
from posttrain.environments.language.listed import Listed
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import demonstrations, epochs_of, has_reward, imitation
from posttrain.methods.judged import asked_prompts, best_and_worst, count_calls, made_pairs, pair_rows, write_pairs
from posttrain.methods.settings import asked_judge, asked_task, judges, written
from posttrain.rewards.scorers.judging import Case, Criterion
from posttrain.rewards.scorers.policy_judge import PolicyJudge

N = 4  # answers to a prompt
JUDGED = 3  # times that each answer is graded
SPOKEN = Sampling(temperature=0.7, top_p=0.9, max_tokens=256)
RUBRIC = (
    "Grade the answer by points that add up. One point if it has to do with the question and says something about it, even if it is incomplete. "
    "A second if it covers a good part of the question without settling it. A third if it gives the basics of an answer in a useful way. A fourth if "
    "it is clearly written as an assistant would, addresses the question directly and fully, and could be improved only a little. A fifth if it is "
    "made for this question, without anything beside the point, and shows expert knowledge. Give your reasons in at most 100 words before the "
    "score, which is the sum of the points."
)
ADDITIVE = Criterion(RUBRIC, "additive", 0.0, 5.0)


class OwnJudge(PolicyJudge):
    """The policy as the judge of its answers: the mean of several gradings that it writes, over those that can be read."""

    def __init__(self, policy: Any, seed: int) -> None:
        super().__init__(policy, how=SPOKEN, seed=seed)

    def graded(self, prompts: Any, texts: Any, criterion: Criterion | None = None) -> list[Any]:
        tries = []
        for i in range(JUDGED):
            self.seed = rng.key(self.seed, "grading", i) & 0x7FFFFFFF
            tries.append(super().graded(prompts, texts, criterion))
        read = [[x for x in row if isinstance(x, float)] for row in zip(*tries, strict=True)]
        return [fmean(some) if some else failed for some, failed in zip(read, tries[0], strict=True)]


@plan(paper="arXiv:2401.10020", title="Self-rewarding language models", uses=("task", "reward", "answers"))
def self_rewarding(
    rounds: int = 2, prompts: int = 500, sft: str = "", warmup: float = 3, epochs: float = 1, beta: float = 0.1
) -> Plan:  # fmt: skip
    """Self-rewarding language models: rounds of DPO on the policy's own answers, which the policy of that round graded itself.

    4 answers (--num-generations) to each of `prompts` new prompts of --task; each is graded 3 times in words by points that add up to 5, and the gradings are averaged;
    chosen = highest, rejected = lowest mean; a prompt whose answers all got the same goes. Each round's file is artifacts/pairs-N.jsonl.
    sft: a file of instructions with answers that is imitated first, gradings among them (a question in the judge's words, and the grading as its
    answer), for `warmup` passes; without it the model must follow instructions and grade already. epochs: of DPO in each round. --reward: another judge in the policy's place.

    Departures: the paper's policy writes new prompts itself from examples; here they are those of --task. The wording of the five points is this package's, and the score is asked for
    as JSON. It begins with a Llama-2-70B tuned on Open Assistant and on gradings derived from its rankings; give such a model, or such a file (`--plan.sft`). Its rounds
    have 3,964 and 6,942 pairs, here 500 prompts. The reference of each round is the policy as the round began, which could not be checked. 4 answers, 3 gradings, temperature 0.7 and top-p 0.9 for both
    (`--sampling.temperature 0.7 --sampling.top-p 0.9` for the answers, which are drawn at 1 here), best against worst, beta 0.1 and two rounds of DPO are the paper's.
    """
    if rounds < 1 or prompts < 1 or warmup < 0 or epochs <= 0:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, warmup={warmup}, epochs={epochs}; it takes 1 round and 1 prompt at least, epochs above 0"
        )
    worked = demonstrations(spec=sft, option="")

    def ready(context: Context) -> None:
        asked_task(context)
        if has_reward(context):
            judges(context, points=True)
        if (context.config.num_generations or N) < 2:
            raise UserError("self-rewarding compares answers to one prompt; ask for two or more: --num-generations 4")
        if sft:
            worked(context)

    def collect(context: Context) -> None:
        c, i, policy = context.config, round_of(context), context.role("policy")
        asked = asked_prompts(context, prompts, (i - 1) * prompts)
        seed = rng.key(c.seed, "self-rewarding", i) & 0x7FFFFFFF
        judge = asked_judge(context) if has_reward(context) else OwnJudge(policy, seed)
        made = policy.sample(asked, c.num_generations or N, c.sampling, seed)
        known: list[Case] = [(p, [r.text for r in some]) for p, some in zip(asked, made, strict=True)]
        flat = iter(judge.points([p for p, ts in known for _ in ts], [t for _, ts in known for t in ts], ADDITIVE))
        rows: list[dict[str, Any]] = []
        graded = 0
        for case in known:
            points = [next(flat) for _ in case[1]]
            graded += sum(x == x for x in points)
            pair = best_and_worst(points, "drop", seed, case[0].id)
            rows += [r | {"id": f"{r['id']}-{i}"} for r in pair_rows(case, [pair] if pair else [], points)]
        if not graded:
            raise UserError(
                f"round {i}: not one grading could be read; the model must be able to grade answers in words, taught by --plan.sft FILE, or be "
                "graded by another: --reward \"judge(url='http://127.0.0.1:8000/v1')\""
            )
        context.notes.setdefault("readable_gradings", {})[f"round {i}"] = graded / sum(len(ts) for _, ts in known)
        count_calls(context, judge)
        write_pairs(context, rows, len(known), f"pairs-{i}")

    def collected(context: Context) -> Listed:
        return made_pairs(f"pairs-{round_of(context)}")(context)

    learn = Phase(
        "dpo", dpo.but(loss=dpo_loss.but(beta=beta)), epochs_of(collected, epochs), collected, rewards=written
    )
    parts = (*(imitation(warmup, worked) if sft else ()), Cycle((Do("collect", collect), learn), times=rounds))
    return Plan(parts, ready=ready)
