"""RLPrompt: a small policy writes a short prompt for a frozen model and is paid for how well that model then answers.

Soft Q-learning on a frozen model with a trainable MLP before its head; every prompt is tried on all shots, and prompts are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.advantages.outcome import outcome
from posttrain.advantages.whiten import group_whiten
from posttrain.core.batch import Batch
from posttrain.core.credit import on_last
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment, Policy
from posttrain.core.registry import policy_loss, scorer, shaping
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.evals.accuracy import held_out
from posttrain.losses.aggregate import sequence_mean
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_task
from posttrain.policies.prompt_writer import PromptWriter
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rollouts.sample import sample
from posttrain.weights.reference import ema

# ---- what answers are worth
# What a prompt is worth: how surely a frozen model, given the prompt, names the right label of an input.

Reader = Callable[[Sequence[Prompt], Sequence[str]], Tensor]  # inputs, prompts for them -> label probabilities (B, K)


def gap(p_BK: Tensor, label_B: Tensor) -> Tensor:
    """P(right label) - max P(another): above 0 where the right one wins."""
    right_B = p_BK.gather(-1, label_B.unsqueeze(-1)).squeeze(-1)
    return right_B - p_BK.scatter(-1, label_B.unsqueeze(-1), -torch.inf).amax(-1)


def piecewise(gap_B: Tensor, wrong: float = 180.0, right: float = 200.0) -> Tensor:
    """RLPrompt's reward: R = right gap where gap > 0, else wrong gap; the step in slope pays for the last bit to right."""
    return torch.where(gap_B > 0, right, wrong) * gap_B


@scorer(title="Prompted classifier", paper="arXiv:2205.12548")
class Prompted(BaseScorer):
    """Prompted classifier: each rollout is a prompt, the Prompt it answers an input with its label (`answer`, one of `labels`).

    R = piecewise(gap);  components: `gap`, and `right` (1 where the frozen model is right under this prompt).
    """

    def __init__(self, read: Reader, labels: Sequence[str], wrong: float = 180.0, right: float = 200.0) -> None:
        if len(set(labels)) < 2:
            raise UserError(f"a classifier has at least two labels, got {', '.join(labels) or 'none'}")
        self.read, self.labels, self.slopes = read, list(labels), (wrong, right)

    def gaps(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """The gap of each input under each prompt."""
        label_B = torch.tensor([self.labels.index(str(p.answer)) for p in prompts])
        return gap(self.read(prompts, texts), label_B)

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        gap_B = self.gaps([r.prompt for r in rollouts], [r.text for r in rollouts])
        worth = piecewise(gap_B, *self.slopes).tolist()
        return [Verdict(y, {"gap": x, "right": float(x > 0)}) for x, y in zip(gap_B.tolist(), worth, strict=True)]


@scorer(title="Prompted classifier, on all shots", paper="arXiv:2205.12548")
class OnShots(Prompted):
    """Prompted classifier, on all shots: each rollout is a prompt for the same inputs, whatever Prompt it answers.

    R = mean over the shots of piecewise(gap);  components: the mean `gap`, and `right`, the share of shots that are read right.
    """

    def __init__(self, read: Reader, labels: Sequence[str], shots: Sequence[Prompt]) -> None:
        super().__init__(read, labels)
        self.shots = list(shots)

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        known: dict[str, Tensor] = {z: self.gaps(self.shots, [z] * len(self.shots)) for z in {r.text for r in rollouts}}
        paid = {z: float(piecewise(gap_S, *self.slopes).mean()) for z, gap_S in known.items()}
        told = {z: {"gap": float(x.mean()), "right": float((x > 0).float().mean())} for z, x in known.items()}
        return [Verdict(paid[r.text], told[r.text]) for r in rollouts]


def label_reader(frozen: Policy, labels: Sequence[str]) -> Reader:
    """A frozen language model as a classifier: the prompt is put behind the input, labels are compared as answers."""

    @torch.no_grad()
    def read(prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        asked = [with_prompt(p, text) for p, text in zip(prompts, texts, strict=True)]
        rows = [frozen.written(p, label) for p in asked for label in labels]
        logp_BT = frozen.forward(rows)["logp_BT"].cpu()
        return logp_BT.sum(-1).view(len(asked), len(labels)).softmax(-1)

    return read


def with_prompt(question: Prompt, text: str) -> Prompt:
    """The question with a written prompt behind it; nothing where the prompt is empty."""
    if not text.strip():
        return question
    last = {**question.content[-1], "content": f"{question.last} {text.strip()}"}
    return replace(question, content=(*question.content[:-1], last))


# ---- what changes the rewards


@shaping(title="Input-specific z-score", paper="arXiv:2205.12548", system="rlprompt", reads=("group_B", "reward_BT"))
def zscore(batch: Batch, scale: float = 1.0, eps: float = 1e-4) -> Tensor:
    """Input-specific z-score (RLPrompt): rewards in standard deviations of those of the same input, so none outshouts others.

    R = scale (R - mean_group R) / (std_group R + eps);  a group is what was tried for one input, equals get 0
    scale is the inverse temperature of methods whose optimum is softmax(R), as soft Q-learning's is.
    """
    return on_last(scale * group_whiten(batch.returns_B, batch["group_B"], batch.valid_B, eps), batch)


# ---- what is minimised


@policy_loss(
    title="Soft Q-learning",
    paper="arXiv:2106.07704",
    system="rlprompt",
    reads=("old_logp_BT", "old_value_BT", "reward_BT", "value_BT"),
)
def soft_q(batch: Batch, gamma: float = 1.0) -> Tensor:
    """Soft Q-learning (SQL, path consistency): logits are worths Q, and a path must earn what they promise.

    V = log sum_a exp Q;  A = Q - V = logp;  L_t = the mean of four squares, halved; x' is the target's, without gradient:
      one step    Q_t - r_t - gamma V'_{t+1},  Q'_t - r_t - gamma V_{t+1}
      whole path  G_t - V'_t,  G'_t - V_t;  G_t = sum_{l >= t} gamma^{l - t} (r_l - A_l)
    V is 0 after the last action. value_BT must be V of the very logits (`policies/prompt_writer.py`), not a critic's; the
    target is the policy as the step began (old_logp, old_value). No credit is read.
    """
    return path_consistency(batch, (batch["old_logp_BT"], batch["old_value_BT"]), gamma)


@policy_loss(
    title="Soft Q-learning, slow target",
    paper="arXiv:2205.12548",
    base="soft_q",
    system="rlprompt",
    reads=("ref_logp_BT", "ref_value_BT", "reward_BT", "value_BT"),
)
def soft_q_slow(batch: Batch, gamma: float = 1.0) -> Tensor:
    """Soft Q-learning, slow target (RLPrompt): as `soft_q`, the target the reference policy, a slow average of the learner's weights.

    L as soft_q with x' of the reference;  reference: theta' <- 0.999 theta' + 0.001 theta after each step (`ema`)
    """
    return path_consistency(batch, (batch["ref_logp_BT"], batch["ref_value_BT"]), gamma)


def path_consistency(batch: Batch, target: tuple[Tensor, Tensor], gamma: float) -> Tensor:
    """The four squares of soft Q-learning, with the log-probabilities and values of a target."""
    own_BT = batch.mask_BT > 0
    live, target = (batch.logp_BT, batch["value_BT"]), (target[0].detach(), target[1].detach())
    reward_BT = torch.nan_to_num(batch["reward_BT"])
    here = [follow(own_BT, reward_BT, A_BT, V_BT, gamma) for A_BT, V_BT in (live, target)]
    (path_BT, next_BT), (path_target_BT, next_target_BT) = here
    gaps = (
        live[0] + live[1] - next_target_BT,
        target[0] + target[1] - next_BT,
        path_BT - target[1],
        path_target_BT - live[1],
    )
    return torch.where(own_BT, sum(gap_BT**2 for gap_BT in gaps) / 8, 0.0)


def follow(own_BT: Tensor, reward_BT: Tensor, A_BT: Tensor, V_BT: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """From each action on: what the path earns less what it promised (G), and the next state's promise (r + gamma V).

    What falls on tokens that the policy did not choose belongs to its action before them.
    """
    zero_B = torch.zeros_like(A_BT[:, 0])
    gained_B, path_B, value_B = zero_B, zero_B, zero_B
    paths, promises = [], []
    for t in reversed(range(own_BT.shape[1])):
        own_B, gained_B = own_BT[:, t], gained_B + reward_BT[:, t]
        promises.append(gained_B + gamma * value_B)
        path_B = torch.where(own_B, gained_B - A_BT[:, t] + gamma * path_B, path_B)
        paths.append(path_B)
        value_B = torch.where(own_B, V_BT[:, t], value_B)
        gained_B = torch.where(own_B, 0.0, gained_B)
    return torch.stack(paths[::-1], 1), torch.stack(promises[::-1], 1)


# ---- the plan

MOST_LABELS, TRIES, LOOKED_AT = 20, 16, 2000


def writing(n: int = 16, scale: float = 5.0) -> Method:
    """n prompts a step, z-scores of their rewards, soft Q-learning towards a slow average of the writer."""
    return grpo.but(
        name="rlprompt", title="RLPrompt", paper="arXiv:2205.12548", doc=__doc__,
        rollout=sample.but(n=n), shaping=zscore.but(scale=scale), advantage=outcome, loss=soft_q_slow,
        aggregate=sequence_mean, terms=(), reference=ema.but(decay=0.999),  # type: ignore[attr-defined]
    )  # fmt: skip


class Shots(Environment):
    """The first `shots` inputs of each label of a task, a few-shot classification problem; its one Prompt asks for a prompt."""

    size = 1

    def __init__(self, env: Environment, shots: int) -> None:
        self.name = env.name
        rows = [env.prompt(i, "train") for i in range(min(LOOKED_AT, size_of(env, "train") or LOOKED_AT))]
        by_label: dict[str, list[Prompt]] = {}
        for p in rows:
            by_label.setdefault(str(p.answer), []).append(p)
        self.labels = sorted(by_label)
        if not 2 <= len(self.labels) <= MOST_LABELS:
            raise UserError(
                f"{env.name} has {len(self.labels)} different answers among {len(rows)} questions; rlprompt writes prompts for a "
                f"choice of 2 to {MOST_LABELS}: --task counting, or a file with few labels"
            )
        self.inputs = [p for label in self.labels for p in by_label[label][:shots]]

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return Prompt.text("writer", "Write a prompt.")


@torch.no_grad()
def written(writer: PromptWriter, length: int, seed: int) -> list[str]:
    """Different prompts that the writer likes: its likeliest and some draws."""
    asked = [Prompt.text("writer", "Write a prompt.")]
    greedy = writer.sample(asked, 1, Sampling(max_tokens=length, temperature=0.0), seed, -1)
    drawn = writer.sample(asked, TRIES, Sampling(max_tokens=length), seed, -1)
    return list(dict.fromkeys(r.text for some in (*greedy, *drawn) for r in some))


@plan(paper="arXiv:2205.12548", title="RLPrompt", uses=("task",))
def rlprompt(
    steps: int = 12000,
    length: int = 5,
    n: int = 16,
    shots: int = 16,
    lr: float = 5e-5,
    scale: float = 5.0,
    hidden: int = 2048,
) -> Plan:
    """RLPrompt: search the best prompt of `length` tokens for a frozen model on a task with few labels.

    max E_z[z-score of R(z)] + H(z) / scale;  R(z) = mean over shots of 200 gap if right else 180 gap;  gap = P(label) - max P(other)
    Each step n prompts are drawn from the 256 likeliest tokens at each place, and each is tried on all shots (`shots` of each label),
    placed behind the input. The writer is a copy of the frozen model with an MLP of width `hidden` before its head, all else frozen.
    Of the prompts it likes in the end the one with the largest mean gap on the shots is kept; the summary has it, with the accuracy on
    held-out inputs with and without it.

    Departures: the paper's writer is distilGPT-2 beside another frozen model that reads the prompt, here a copy of that model. It chooses
    the prompt by validation shots, here by the training shots. The rate is the authors' 5e-5 without their warm-up. 5 tokens, 16 prompts
    a step, 16 shots a label, top 256, z-scores times 5, slopes 180 and 200, an average of 0.001 a step as the target and 12,000 steps
    are theirs.
    """
    if min(steps, length, shots, hidden) < 1 or n < 2:
        raise UserError(f"got steps={steps}, length={length}, n={n}, shots={shots}; 2 prompts a step at least, 1 else")

    def env(context: Context) -> Shots:
        context.config = replace(context.config, think=False)  # a label is said at once
        return Shots(asked_task(context), shots)

    def rewards(context: Context) -> OnShots:
        known = env(context)
        return OnShots(label_reader(context.role("policy"), known.labels), known.labels, known.inputs)

    def report(context: Context) -> None:
        """The prompt that reads the shots best, and what it does on held-out inputs."""
        scorer = rewards(context)
        tried = written(context.role("writer"), length, context.config.seed)
        worth = {z: float(scorer.gaps(scorer.shots, [z] * len(scorer.shots)).mean()) for z in tried}
        best = max(worth, key=lambda z: worth[z])
        test = held_out(asked_task(context), context.config.eval_problems, "test")
        known = [p for p in test if str(p.answer) in scorer.labels]
        for name, z in (("accuracy_without_prompt", ""), ("accuracy_with_prompt", best)) if known else ():
            context.notes[name] = float((scorer.gaps(known, [z] * len(known)) > 0).float().mean())
        context.notes |= {"prompt": best, "prompts_tried": len(tried), "held_out_inputs": len(known)}

    def make(context: Context) -> PromptWriter:
        return PromptWriter.of(context.role("policy"), hidden, context.config.seed)

    def ready(context: Context) -> None:
        env(context)

    changes = {"sampling": Sampling(max_tokens=length, top_k=256), "lr": lr, "prompts": 1}
    learn = Phase("write", writing(n, scale), steps, env, "writer", make, rewards, changes)
    return Plan((learn, Do("choose", report)), ready=ready)
