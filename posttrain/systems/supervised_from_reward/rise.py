"""RISE: a model learns to improve its own answers turn by turn, by regression on better answers to the states that its mistakes lead to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Cycle, Do, Make, Phase, Plan, plan, round_of
from posttrain.core.registry import advantage
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.evals.accuracy import EVAL_SEED, held_out
from posttrain.evals.majority import majority, vote_of
from posttrain.losses.aggregate import sequence_mean
from posttrain.losses.policy.reinforce import reinforce
from posttrain.methods.from_pairs import ENDLESS, epochs_of
from posttrain.methods.settings import asked_rewards, asked_scores, asked_task, written
from posttrain.methods.sft import sft
from posttrain.policies.chat_api import ChatAPI
from posttrain.policies.remote import RemoteModel
from posttrain.rollouts.logged import logged
from posttrain.runs.users import frozen

PAPER = "arXiv:2407.18219"
AGAIN = "The answer above may be wrong. Check it, and answer the question again."
BEST_OF, LOOKS, WINDOW, RIGHT = (
    16,
    5,
    2,
    1.0,
)  # answers to choose from; turns of an evaluation; answers in sight then; what is right

# ---- the states that answers lead to


@dataclass
class Trial:
    """A question, and what was answered so far."""

    prompt: Prompt
    said: list[str] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)


def asked(prompt: Prompt, said: Sequence[str], turn: object) -> Prompt:
    """The question with the answers so far, each followed by the message that it may be wrong."""
    retries = [m for text in said for m in ({"role": "assistant", "content": text}, {"role": "user", "content": AGAIN})]
    return replace(prompt, id=f"{prompt.id}/{turn}", content=(*prompt.content, *retries))


# ---- which answers are learned

# (reward of the new answer, rewards of the answers before it) -> whether it is learned; the first answer always is, but for success
KEEP: dict[str, Callable[[float, Sequence[float]], bool]] = {
    "all": lambda r, before: True,
    "better": lambda r, before: not before or r > before[-1],
    "best": lambda r, before: all(r >= x for x in before),
    "success": lambda r, before: r >= RIGHT,
}


def told(trial: Trial, r: Rollout) -> dict[str, Any]:
    """An answer at a state as a row: own token ids where they are known."""
    own = {"tokens": r.actions.tolist(), "mask": r.mask_T.tolist()} if len(r) else {}
    return {"said": list(trial.said), "answers": [own | {"text": r.text, "reward": float(r.total)}]}


def fresh(trial: Trial, r: Rollout) -> bool:
    """Whether an answer says something, and something new."""
    return bool(r.text.strip()) and r.text.strip() not in {text.strip() for text in trial.said}


Score = Callable[[list[Prompt], Any, int, int], list[list[Rollout]]]


def unrolled(trials: list[Trial], turns: int, n: int, keep: str, drawn: Score, teacher: Any = None) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of what is learned: at the first turn the policy's own answer, at each later one the best of n at the state that its answers led to.

    A trial goes on with the policy's own answer, and ends where that is right. drawn(prompts, who, n, turn) -> scored answers.
    """
    rows, live = list[dict[str, Any]](), list(enumerate(trials))
    for turn in range(turns):
        prompts = [asked(t.prompt, t.said, turn) for _, t in live]
        made = drawn(prompts, teacher if turn else None, n if turn else 1, turn)
        own = drawn(prompts, None, 1, turn) if teacher is not None and 0 < turn < turns - 1 else made
        going = []
        for (at, trial), some, mine in zip(live, made, own, strict=True):
            if some and fresh(trial, best := max(some, key=lambda r: r.total)) and KEEP[keep](best.total, trial.earned):
                rows.append(told(trial, best) | {"question": at, "turn": turn})
            if mine and mine[0].total < RIGHT:
                trial.said.append(mine[0].text)
                trial.earned.append(mine[0].total)
                going.append((at, trial))
        live = going
    return rows


# ---- how much each counts


@advantage(name="exp_reward", title="Exponential of the reward", paper=PAPER, base="outcome", system="rise", laws=("groups_are_separate",), reads=("reward_BT",))  # fmt: skip
def exp_reward(batch: Batch, tau: float = 0.4) -> Tensor:
    """Exponential of the reward (reward-weighted regression): every answer is imitated, a better one with more weight.

    A_t = exp(R / tau);  with tau = 0.4 a right answer (R = 1) counts 12.2 times a wrong one (R = 0)
    """
    return broadcast_to_tokens(torch.exp(torch.nan_to_num(batch.returns_B) / tau), batch)


def weighted(tau: float) -> Method:
    """The mean over answers of exp(R / tau) times the answer's mean token loss."""
    return sft.but(
        name="rise", title="RISE", paper=PAPER, doc=__doc__, rollout=logged.but(logp=False),
        advantage=exp_reward.but(tau=tau), loss=reinforce, aggregate=sequence_mean,
    )  # fmt: skip


# ---- how it is measured


def in_turns(trials: list[Trial], drawn: Score, grader: str = "") -> dict[str, float]:
    """Turn by turn, whatever was answered before and with the last answer in sight: reward at each turn, of the majority over turns, of the
    best turn; and of the majority over as many answers at once."""
    texts: list[list[Rollout]] = [[] for _ in trials]
    out = {}
    for turn in range(LOOKS):
        sight = [[r.text for r in some][1 - WINDOW :] if some else [] for some in texts]
        made = drawn(
            [asked(t.prompt, s, f"look-{turn}") for t, s in zip(trials, sight, strict=True)], None, 1, LOOKS + turn
        )
        for some, new in zip(texts, made, strict=True):
            some += new[:1]
        out[f"turn_{turn + 1}"] = _mean([new[0].total for new in made if new])
    side = drawn([replace(t.prompt, id=f"{t.prompt.id}/side") for t in trials], None, LOOKS, LOOKS)
    found = [(t.prompt, some) for t, some in zip(trials, texts, strict=True) if some]
    out["majority_of_turns"] = _mean([_voted(p, some, grader) for p, some in found])
    out["best_of_turns"] = _mean([max(r.total for r in some) for _, some in found])
    return out | {
        "majority_at_once": _mean([_voted(t.prompt, s, grader) for t, s in zip(trials, side, strict=True) if s])
    }


def _voted(prompt: Prompt, some: Sequence[Rollout], grader: str) -> float:
    return majority([vote_of(r.text, prompt, grader) for r in some], [r.total >= RIGHT for r in some])


def grader_of(context: Context) -> str:
    """The rule that reads answers: --reward, or what was chosen for the rows of a file."""
    named = str(context.config.reward).partition("(")[0].strip()
    return named or str(getattr(getattr(asked_task(context), "reward", None), "name", ""))


def _mean(xs: Sequence[float]) -> float:
    return fmean(xs) if xs else float("nan")


# ---- the plan


@plan(paper=PAPER, title="RISE", uses=("task", "reward", "answers"))
def rise(
    rounds: int = 2, turns: int = 2, keep: str = "all", tau: float = 0.4, teacher: str = "", epochs: float = 1, pooled: bool = True
) -> Plan:  # fmt: skip
    """RISE: x, answer y1, "it may be wrong", answer y2, ...: at states that the policy's own mistakes lead to, the best of 16 answers is learned.

    max E[ sum_t exp(r(s_t, y_t) / tau) log pi(y_t | s_t) ];  s_t = x, y_1, "may be wrong", ..., y_{t-1}, "may be wrong"
    Each round the policy unrolls `turns` turns on every question of --task, ending where it is right; the target at turn 1 is what it said
    itself, at later turns the best of 16 (--num-generations) of its own, or of teacher: a folder, runs/NAME or a server (http://...).
    r: the task's own grade, or --reward; 1 is right. keep: all; better (than the answer before), best (no worse than any before), success
    (right ones). epochs: passes over a round's rows. pooled: the rows of all rounds so far, learned by the start model anew; False: a
    round's own rows, from the last round's weights. The summary has, before and after, the reward at turns 1 to 5, of the majority over them (the
    paper's m1@t5), of the best of them (p1@t5), and of the majority over 5 answers at once (m5@t1).

    Departures: what is unrolled between the first turn and the last is the policy's own answer, as the paper's text has it; the authors' code
    goes on with the best of n (the same for 2 turns, which is their number and the default). Whether each round refits the start model was
    not found in their code. They begin with a worked example in the context and, for Llama 2, with SFT; here neither. Their grader gives -1
    where no answer is found, here as --reward says; "may be wrong" is this package's wording, theirs says that it is incorrect. An answer that was
    already given in the trial, or is empty, is not learned (their --remove_duplication). tau 0.4, exp weights, the mean of token means, best of 16,
    the filters, two turns of data and 5 turns of evaluation that see the last answer are theirs; their rate is 1e-5.
    """
    if min(rounds, turns) < 1 or tau <= 0 or epochs <= 0:
        raise UserError(
            f"got rounds={rounds}, turns={turns}, tau={tau}, epochs={epochs}; 1 of the first two at least, the others above 0"
        )
    if keep not in KEEP:
        raise unknown("way to choose answers (keep)", keep, KEEP)

    teacher = teacher if turns > 1 else ""  # who answers at later turns

    def ready(context: Context) -> None:
        env = asked_task(context)
        if env.opens:
            raise UserError(
                f"rise asks again for one answer, and {env.name} has turns of its own; give a task of single answers"
            )
        asked_rewards(context)
        if teacher.startswith("http"):
            served(context)

    def served(context: Context) -> Any:
        if "teacher" not in context.made and teacher.startswith("http"):
            api = ChatAPI(teacher)
            api.choose_model()
            context.made["teacher"] = RemoteModel(api)
        elif "teacher" not in context.made:
            context.made["teacher"] = frozen(
                dataclasses.replace(context.config, user=teacher), context.run.folder.parent
            )
        return context.made["teacher"]

    def drawing(context: Context, seed: int) -> Score:
        def drawn(prompts: list[Prompt], who: Any, n: int, step: int) -> list[list[Rollout]]:
            policy = context.role("policy") if who is None else who
            made = policy.sample(prompts, n, context.config.sampling, seed, step) if prompts else []
            groups = [Group(p, some) for p, some in zip(prompts, made, strict=True)]
            if step:
                asked_rewards(context).score(groups)
            else:  # all questions: that nothing can be scored is a mistake in the reward
                asked_scores(context, groups)
            return [g.scored for g in groups]

        return drawn

    def questions(context: Context) -> list[Prompt]:
        env = asked_task(context)
        return [env.prompt(i) for i in range(size_of(env, "train") or ENDLESS)]

    def collect(context: Context) -> None:
        c, number = context.config, round_of(context)
        drawn = drawing(context, rng.key(c.seed, "rise", number) & 0x7FFFFFFF)
        trials = [Trial(p) for p in questions(context)]
        rows = unrolled(trials, turns, c.num_generations or BEST_OF, keep, drawn, served(context) if teacher else None)
        if not rows:
            raise UserError(
                f"round {number}: keep={keep!r} left nothing to learn of {len(trials)} questions; {'sample other answers: --seed' if keep == 'all' else '--plan.keep all'}"
            )
        context.run.write_artifact(f"rows-{number}", rows)
        found = [[row["answers"][0]["reward"] for row in rows if row["turn"] == t] for t in range(turns)]
        by_turn = [{"rows": len(some), "reward": _mean(some) if some else 0.0} for some in found]
        context.notes["collected"] = [*context.notes.get("collected", [])[: number - 1], by_turn]

    def rows_of(context: Context) -> Listed:
        known = len(context.notes["collected"])
        last, env = min(known, round_of(context)), asked_task(context)
        made = []
        for number in range(1 if pooled else last, last + 1):
            for i, row in enumerate(context.run.read_artifact(f"rows-{number}")):
                p = asked(env.prompt(row["question"]), row["said"], f"{number}-{i}")
                made.append(replace(p, info=p.info | {"answers": row["answers"]}))
        return Listed(env.name, tuple(made))

    def look(label: str) -> Do:
        def work(context: Context) -> None:
            env = asked_task(context)
            if teacher:
                served(context)  # a name that is none is told before anything is measured
            if context.config.eval_problems:
                trials = [Trial(p) for p in held_out(env, context.config.eval_problems, "test")]
                context.notes[label] = in_turns(trials, drawing(context, EVAL_SEED), grader_of(context))

        return Do(label.replace("_", "-"), work)

    learn = Phase("learn", weighted(tau), epochs_of(rows_of, epochs), rows_of, rewards=written)
    anew = (Make("policy", lambda context: context.role("base").clone(), "refit"),) if pooled and rounds > 1 else ()
    return Plan(
        (Copy("policy", "base"), look("turns_before"), Cycle((Do("collect", collect), *anew, learn), rounds), look("turns_after")),
        ready=ready,
    )  # fmt: skip
