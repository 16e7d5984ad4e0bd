"""QwenLong-L1.5: RL over many kinds of tasks at once: as many prompts of each, credit in the spread of each task's rewards,
and blame only while the policy is not too undecided (AEPO). Give it a mixture: `--task "arithmetic + counting"`.

The plan `qwenlong-stages` is the whole recipe: documents that grow by stages, a reader with a memory (the rollout `memory`), and
both merged.

Departures: the paper samples 128 prompts per step at temperature 0.7 at a rate of 2e-6, here 16 at 1 and a rate by size. Its
band is its model's (its plot lies within 0.10 and 0.30, as the default here does): set it around the entropy that training
starts with, such as `--advantage "aepo(low=0.5, high=0.9)"`. Its data were binned by pass@k first; a judge grades what rules cannot
(`--reward`). One update per batch, 8 answers, no KL, the entropy of the whole vocabulary averaged by answer and a token mean
within each group, from which blamed answers are left out, are the paper's. Without a column `task` all rows are one task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_std
from posttrain.advantages.whiten import group_centre
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import Method, method
from posttrain.core.plan import Context, Copy, Make, Phase, Plan, plan
from posttrain.core.protocols import Environment, Policy
from posttrain.core.registry import Part, advantage, prompt_sampler
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.documents import documents
from posttrain.environments.mapped import each
from posttrain.evals.accuracy import accuracy
from posttrain.losses.aggregate import token_mean
from posttrain.methods.from_pairs import has_reward
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.prompts.uniform import epoch_order, uniform
from posttrain.rewards.scorers.spec import task_scorer
from posttrain.rollouts.memory import memory
from posttrain.weights.soup import sce

# ---- which prompts


@prompt_sampler(title="Task-balanced sampling", paper="arXiv:2512.12967", base="uniform", system="qwenlong-l15")
class task_balanced:
    """Task-balanced sampling (QwenLong-L1.5): as many prompts of each task in every step, however many there are of each.

    n // K of each of K tasks, the rest to those whose turn it is;  a task's prompts are shuffled anew each pass over them
    Tasks: the parts of a mixture (`--task "arithmetic + counting"`), or what `info[by]` says in a finite set. An endless set
    without parts is one task. There is no state: what comes is a function of (seed, step).
    """

    def __init__(self, by: str = "task") -> None:
        self.by = by
        self._known: tuple[Any, dict[str, list[int]]] | None = None

    def start(self, env: Environment, seed: int) -> None:
        self.env, self.seed = env, seed

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        """The n prompts of a step, task by task."""
        env, seed = self.env, self.seed
        parts: dict[str, Any] = getattr(env, "tasks", {})
        rows = {} if parts or not size_of(env, "train") else self.rows(env)
        names = list(parts or rows)
        if not names:
            plain = cast(Part, uniform).live()
            plain.start(env, seed)
            return list(plain.propose(n, step, policy))
        out = []
        for k, name in enumerate(names):
            first, end = share(step, n, k, len(names)), share(step + 1, n, k, len(names))
            for i in range(first, end):
                if parts:
                    size = size_of(parts[name], "train")
                    out.append(env.of(name, uniform.fn._index(i, size, seed)))  # type: ignore[attr-defined]
                else:
                    have = rows[name]
                    order = epoch_order(len(have), seed, i // len(have))
                    out.append(env.prompt(have[order[i % len(have)]], "train"))
        return out

    def rows(self, env: Environment) -> dict[str, list[int]]:
        """task -> where its prompts stand in the first pass over the set."""
        if self._known is None or self._known[0] is not env:
            found: dict[str, list[int]] = {}
            for i in range(size_of(env, "train")):
                found.setdefault(str(env.prompt(i, "train").info.get(self.by, "")), []).append(i)
            if "" in found and (len(found) > 1 or self.by != "task"):
                other = ", and others have" if len(found) > 1 else ""
                raise UserError(f"{env.name}: {len(found[''])} rows have no {self.by!r} to balance by{other}")
            self._known = (env, found)
        return self._known[1]

    def observe(self, groups: list[Group]) -> None:
        """Curricula look at what was learned; this one does not."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def share(steps: int, n: int, k: int, K: int) -> int:
    """How many prompts of task k the first `steps` steps have had: n // K each step, the n % K left over in turn."""
    extra = n % K
    turns = steps * extra  # left-over places given out so far, round robin over the tasks
    return steps * (n // K) + turns // K + (k < turns % K)


# ---- who gets the credit


@advantage(
    title="Task-specific advantage",
    paper="arXiv:2512.12967",
    base="lite_ppo",
    system="qwenlong-l15",
    laws=("shift_invariant", "scale_invariant", "sums_to_zero"),
    reads=("group_B", "reward_BT"),
)
def task_std(batch: Batch, eps: float = 1e-4) -> Tensor:
    """Task-specific advantage (QwenLong-L1.5): compare with siblings, measure in the spread of the task's rewards.

    A_i = (R_i - mean_group R) / (std_task R + eps);  std: unbiased, over the valid answers of the same task in the batch
    A task whose rewards are small learns as fast as one whose rewards are large. `Prompt.info["task"]` names the task;
    without names all are one task, which is Lite PPO's credit.
    """
    group_B, valid_B = batch["group_B"], batch.valid_B
    task_B = batch["task_B"] if "task_B" in batch else torch.zeros_like(group_B)
    credit_B = group_centre(batch.returns_B, group_B, valid_B)
    return broadcast_to_tokens(credit_B / (group_std(batch.returns_B, task_B, valid_B) + eps), batch)


def within_groups(batch: Batch, kept_B: Tensor) -> Tensor:
    """What a token of each kept answer weighs, so that a mean over all tokens is one within each group, then over groups: the loss is linear
    in credit. 0 for answers that are not kept."""
    length_B = batch.mask_BT.sum(-1)
    own_B = torch.where(kept_B, length_B, 0.0)
    same_BB = batch["group_B"].unsqueeze(0) == batch["group_B"].unsqueeze(1)
    of_group_B = (same_BB * own_B.unsqueeze(0)).sum(-1)
    groups = len(batch["group_B"][kept_B & (length_B > 0)].unique())
    weight_B = length_B.sum() / (of_group_B.clamp_min(1) * max(groups, 1))
    return torch.where(kept_B, weight_B, 0.0)


@advantage(
    title="AEPO",
    paper="arXiv:2512.12967",
    base="task_std",
    system="qwenlong-l15",
    reads=("group_B", "old_entropy_BT", "reward_BT"),
)
class aepo:
    """AEPO (QwenLong-L1.5): blame is left out while the policy is too undecided, and comes back once it is too sure.

    A_i < 0 -> left out from when H > high until H < low;  H: entropy of the next token, mean over an answer's tokens, then over answers
    Praise alone sharpens, blame spreads, so H is held near [low, high]. Credit is `task_std`'s, weighed so that a token mean is one
    within each group. low=0, high=inf never gates; high=0 always does. exact=False: H is the mean of -old_logp over all tokens, and
    tokens of all groups weigh the same.
    """

    def __init__(self, low: float = 0.1, high: float = 0.3, exact: bool = True) -> None:
        if not 0 <= low <= high:
            raise UserError(f"got low={low}, high={high}; the entropy is kept in a band, 0 <= low <= high")
        self.low, self.high, self.exact, self.gated = low, high, exact, False

    def __call__(self, batch: Batch) -> Tensor:
        adv_BT: Tensor = task_std(batch)
        H = self.entropy(batch)
        if self.high < H:
            self.gated = True
        elif self.low > H:
            self.gated = False
        blamed_B = (adv_BT * batch.mask_BT).sum(-1) < 0
        kept_B = batch.valid_B & ~blamed_B if self.gated else batch.valid_B
        if self.exact:
            return adv_BT * within_groups(batch, kept_B).unsqueeze(-1)
        return torch.where(adv_BT < 0, 0.0, adv_BT) if self.gated else adv_BT

    def entropy(self, batch: Batch) -> float:
        own_BT = batch.mask_BT > 0
        if not bool(own_BT.any()):
            return 0.0
        if not self.exact:
            return -float(batch["old_logp_BT"][own_BT].mean())
        sums_B, length_B = (batch["old_entropy_BT"] * own_BT).sum(-1), own_BT.sum(-1)
        return float((sums_B / length_B.clamp_min(1)).sum() / (length_B > 0).sum())

    def state_dict(self) -> dict[str, Any]:
        return {"gated": self.gated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gated = bool(state["gated"])


# ---- the method

qwenlong_l15 = method(
    grpo.but(
        name="qwenlong-l15", title="QwenLong-L1.5 (AEPO)", paper="arXiv:2512.12967", doc=__doc__,
        prompts=task_balanced, advantage=aepo, aggregate=token_mean, terms=(),
    )
)  # fmt: skip


# ---- the plan


def split(prompt: Prompt, words: int) -> Prompt:
    """A row with a column `document`, as a document in parts of so many words with its question below."""
    text = str(prompt.info["document"]).split()
    parts = [" ".join(text[i : i + words]) for i in range(0, len(text), words)]
    whole = {**prompt.content[-1], "content": "\n\n".join([*parts, prompt.last])}
    info = {"parts": tuple(parts), "question": prompt.last, **prompt.info}
    return replace(prompt, content=(*prompt.content[:-1], whole), info=info)


@plan(paper="arXiv:2512.12967", title="QwenLong-L1.5, in stages", uses=("task", "reward"))
def qwenlong_stages(
    steps: int = 20, parts: tuple[int, ...] = (2, 4, 8), memory_parts: int = 16, notes: int = 32, words: int = 200, hops: int = 1
) -> Plan:  # fmt: skip
    """QwenLong-L1.5, in stages: AEPO on longer and longer documents read at once, then on longer ones still, read part by part
    with a memory (MemAgent); the two are merged (SCE) and trained once more on the longest that are read at once.

    steps: of each phase. parts, memory_parts: the most parts that a document of each stage has. A row of --task has a column `document`
    beside question and answer, which is cut into parts of so many `words`; without --task documents of 4 drawn facts a part are made,
    with `hops` relations to follow. notes: tokens of the memory. --reward pays in place of the grade.

    Departures: the paper's stages have 20,000, 60,000 and 120,000 tokens; a stage here has as many parts as you say. Its
    difficulty-aware retrospective sampling between the stages is not here (QwenLong-L1's: prompts of earlier stages that earned little
    come again in the next one; in L1.5 the data are filtered by difficulty at the lengths of the stage to come). The base of the merge is the model that the run began with, and no entry is left out of it
    (SCE's selection keeps all); the paper names no share. The rest departs as `qwenlong-l15` does.
    """
    if not parts or steps < 1 or words < 1:
        raise UserError(f"got parts={parts}, steps={steps}, words={words}; there is at least one stage of one step")

    def drawn(context: Context) -> bool:
        return "env" not in context.given and not context.gave("task")

    def unread(context: Context) -> dict[str, str]:
        made, cut = {"words": "documents are made in parts without --task"}, {"hops": "--task brings its own documents"}
        return made if drawn(context) else cut

    def stage_of(context: Context, count: int) -> Any:
        c = context.config
        if drawn(context):
            context.read.add("task")
            return documents(count, hops=hops, think=c.think, seed=c.seed)
        whole = asked_task(context)
        if "document" not in whole.prompt(0).info:
            raise UserError(
                f"{whole.name}: its rows have no column `document`, which qwenlong-stages reads beside the question"
            )
        fits = each(whole, lambda p, way: q if len((q := split(p, words)).info["parts"]) <= count else None)
        if not size_of(fits, "train"):
            raise UserError(
                f"{whole.name}: no document has at most {count} parts of {words} words; use larger --plan.words"
            )
        return fits

    def rewards(context: Context) -> Any:
        return asked_rewards(context) if has_reward(context) else task_scorer(stage_of(context, memory_parts))

    def merged(context: Context) -> Any:
        policy = context.role("policy").clone()
        sce(context.role("base"), [policy, context.role("single")])
        return policy

    def stage(name: str, count: int, method: Method = qwenlong_l15) -> Phase:
        def after(context: Context) -> None:
            c, rollout = context.config, method.rollout if method.rollout.card.at_test else None
            known = stage_of(context, count)
            if size_of(known, "train") and not size_of(known, "test"):
                return  # no held-out document is as short
            found = accuracy(context.role("policy"), known, c.eval_problems, c.sampling, rollout=rollout)
            context.notes.setdefault("accuracy", {})[name] = found.accuracy

        return Phase(name, method, steps, lambda context: stage_of(context, count), rewards=rewards, after=after)

    phases = (
        Copy("policy", "base"),
        *(stage(f"read-{count}", count) for count in parts),
        Copy("policy", "single"),
        stage("memory", memory_parts, qwenlong_l15.but(rollout=memory.but(reading=(1, notes)))),
        Make("policy", merged),
        stage("merged", parts[-1]),
    )

    def ready(context: Context) -> None:
        for count in parts:
            stage_of(context, count)

    return Plan(phases, ready=ready, idle=unread)
