"""Sequence-level distillation: the teacher answers every question once, and the student imitates its answers, or its likeliest tokens in them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.answers import demonstration
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.language.listed import Listed
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.self_training import questions_of
from posttrain.methods.settings import asked_task, written
from posttrain.methods.sft import sft
from posttrain.policies.vllm.server import Server
from posttrain.policies.vllm.told import ToldByServer
from posttrain.rollouts.logged import logged
from posttrain.systems.distillation.gkd import gkd
from posttrain.weights.teacher import LIKELIEST, is_address, load_teacher, named, told

_AT_ONCE = 16  # answers that are labelled in one pass
WHOSE = ("teacher", "data")

# ---- what is kept of a teacher's word: ids in 32 bits, log-probabilities in 16


def packed(id_TK: Tensor, logp_TK: Tensor) -> dict[str, Any]:
    """A row of an artifact: base64 of int32 and float16."""
    both = (id_TK.cpu().numpy().astype("<i4"), logp_TK.float().cpu().numpy().clip(-6e4, 0).astype("<f2"))
    texts = [base64.b64encode(x.tobytes()).decode() for x in both]
    return {"k": id_TK.shape[1], "topk_id": texts[0], "topk_logp": texts[1]}


def unpacked(row: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(T, K) ids in int32 and log-probabilities in float16."""
    kinds = zip((row["topk_id"], row["topk_logp"]), ("<i4", "<f2"), strict=True)
    one, two = (np.frombuffer(base64.b64decode(text), kind).reshape(-1, row["k"]).copy() for text, kind in kinds)
    return torch.from_numpy(one), torch.from_numpy(two)


@rollout(data="logs", provides=LIKELIEST)
def labelled(ask: RolloutRequest) -> list[Group]:
    """Labelled answers: those that come with the prompt, with a teacher's likeliest tokens at every place (`info["answers"]`)."""
    groups = logged(ask, logp=False)
    for g in groups:
        for r, row in zip(g.rollouts, g.prompt.info["answers"], strict=True):
            for name, x_TK in zip(("topk_id", "topk_logp"), unpacked(row), strict=True):
                r.set_stream(name, x_TK)
    return groups


# ---- the teacher's part


def answer(context: Context, spec: str, whose: str, n: int, questions: int, k: int) -> None:
    """Every question with its answers, and the teacher's k likeliest tokens in them; kept, so that the teacher is needed once."""
    c, policy = context.config, context.role("policy")
    prompts = questions_of(context, questions)
    tutor: Any = ToldByServer(Server(spec), policy, k) if is_address(spec) else load_teacher(spec, policy)
    if whose == "teacher":
        groups = tutor.sample(prompts, n, c.sampling, rng.key(c.seed, "teacher") & 0x7FFFFFFF)
    else:
        groups = [[policy.written(p, str(demonstration(p)))] for p in prompts]
    rows: list[dict[str, Any]] = [
        {"question": i, "answers": [_told(r) for r in some if len(r)]} for i, some in enumerate(groups)
    ]
    if k:
        _label(tutor, [r for some in groups for r in some if len(r)], [a for row in rows for a in row["answers"]], k)
    rows = [row for row in rows if row["answers"]]
    if not rows:
        raise UserError(f"{spec} gave no answer to any of {len(prompts)} questions")
    context.run.write_artifact("answers", rows)
    context.notes["answers"] = sum(len(row["answers"]) for row in rows)


def _told(r: Rollout) -> dict[str, Any]:
    return {"tokens": r.actions.tolist(), "mask": r.mask_T.tolist(), "text": r.text, "reward": 1.0}


def _label(tutor: Any, answers: list[Rollout], rows: list[dict[str, Any]], k: int) -> None:
    """Writes into each row what the teacher says of its answer."""
    for at in range(0, len(answers), _AT_ONCE):
        some = [r.row for r in answers[at : at + _AT_ONCE]]
        found = tutor.forward(some, LIKELIEST) if isinstance(tutor, ToldByServer) else told(tutor, some, k)
        for b, row in enumerate(some):
            rows[at + b] |= packed(*(found[name][b, : len(row)] for name in LIKELIEST))


def collected(context: Context) -> Listed:
    """The questions with the answers that were collected."""
    env = asked_task(context)

    def asked(row: dict[str, Any]) -> Prompt:
        p: Prompt = env.prompt(row["question"])
        return replace(p, info=p.info | {"answers": row["answers"]})

    return Listed("answers of the teacher", tuple(map(asked, context.run.read_artifact("answers"))))


# ---- the plan


def imitating(k: int, beta: float) -> Method:
    """SFT on the answers; with k, GKD from the teacher's likeliest tokens in them, which come with the answers."""
    if not k:
        return sft.but(rollout=logged.but(logp=False))
    return gkd.but(rollout=labelled, loss=f"topk-divergence(beta={beta})", reference="fixed")


@plan(paper="arXiv:1606.07947", title="Sequence-level distillation", uses=("task",))
def distil(
    teacher: str = "", epochs: float = 3, questions: int = 0, answers: str = "teacher", n: int = 1, k: int = 0, beta: float = 0.0
) -> Plan:  # fmt: skip
    """Sequence-level distillation: the teacher answers every question, and the student imitates its answers.

    L = -log pi(y), y of the teacher;  with k: D_beta between k + 1 events, the teacher's k likeliest tokens and all others
    teacher: a folder, a hub id, runs/NAME, or with answers='data' the address of a vLLM server. answers: of whom; 'data' labels those that come
    with the rows, for k. questions: the first so many (0: all; 500 where the task never ends). n: answers to each. The teacher is asked once and not
    needed again: its words are kept as ids in 32 and log-probabilities in 16 bits.

    Departures: the paper decodes the teacher with a beam (of 5, not checked against its text) and imitates the best, near the mode of its distribution; here it answers
    greedily (the plan sets `--sampling.temperature 0`, another may be given), since nothing here searches. Its interpolation with the gold answer
    (best of the beam by similarity) is not here. 3 epochs are this package's. Word-level distillation over the whole vocabulary is `gkd` with
    `--rollout "student_or_data(share=0.0)" --loss "gkd(beta=0.0)"`; k keeps k tokens of it, as published data sets of logits do.
    """
    if answers not in WHOSE:
        raise unknown("kind of answers", answers, WHOSE)
    if epochs <= 0 or questions < 0 or n < 1 or k < 0 or not 0 <= beta <= 1:
        raise UserError(
            f"got epochs={epochs}, questions={questions}, n={n}, k={k}, beta={beta}; epochs is above 0, n at least 1, beta a share, the others 0 or more"
        )
    if answers == "data" and not k:
        raise UserError(
            "with answers='data' the teacher only labels answers, so say how many tokens: --plan.k 64; plain imitation is sft"
        )

    def ready(context: Context) -> None:
        named(teacher)
        if is_address(teacher) and answers == "teacher":
            raise UserError(
                f"{teacher} is a server, which labels answers here but gives none: --plan.answers data --plan.k 20, or name a folder; answers "
                "that it gave elsewhere are imitated by sft"
            )
        if n > 1 and context.config.sampling.temperature == 0:
            raise UserError(
                "at temperature 0 a teacher's answers to a question are all the same; add --sampling.temperature 1"
            )
        env = asked_task(context)
        if answers == "data" and demonstration(env.prompt(0)) is None:
            raise UserError(f"the first row of {env.name} has no answer that a teacher could label; give rows with one")

    each = n if answers == "teacher" else 1
    return Plan(
        (
            Do("teacher", lambda context: answer(context, teacher, answers, each, questions, k)),
            Phase("distil", imitating(k, beta), epochs_of(collected, epochs), collected, rewards=written),
        ),
        ready=ready,
        settings=(("sampling.temperature", 0.0),) if answers == "teacher" and n == 1 else (),
    )
