"""What the settings of a run ask a plan for: its task, what says how good answers are, who compares them.

A plan reads --task and --reward here and nowhere else, so that an object given in Python stands in for a name, and so that what
was read is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posttrain.core.answers import conversation
from posttrain.core.errors import UserError
from posttrain.core.plan import Context
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.mapped import with_system_message
from posttrain.environments.searching import Index
from posttrain.environments.task import default_task, pair_task, task
from posttrain.environments.worked import Worked
from posttrain.rewards.runtime.scorer import Prescored, texts_of
from posttrain.rewards.scorers.pairwise import Judge, by_score, one_by_one
from posttrain.rewards.scorers.spec import build_scorer, function_of, names_judge, timed
from posttrain.runs import saved as saved  # so that a reward may name a run
from posttrain.runs.build import asked_environment, columns, said_first
from posttrain.runs.fit import fit

LOOKED_AT = 20  # rows that are looked at for a written solution
WORDS = 5  # an answer of fewer is a result, not a way to it


def asked_task(context: Context) -> Any:
    """The task of the settings, or the one that was given; read once. Once there is a policy, without the rows that it has no room for."""
    context.read.add("task")
    c, policy = context.config, context.roles.get("policy")
    if ("task", c) not in context.made:
        given = context.given.get("env")
        context.made["task", c] = asked_environment(c) if given is None else said_first(given, c)
    if policy is None:
        return context.made["task", c]
    if ("fitted", c) not in context.made:
        context.made["fitted", c] = fit(context.made["task", c], policy, None, c.sampling)
    return context.made["fitted", c]


def asked_index(context: Context, documents: str, plan: str) -> Index:
    """The index of the documents that a plan searches; made once."""
    if not documents:
        raise UserError(
            f"{plan} searches documents, and none were named; give a folder or a JSONL file: --plan.documents FOLDER"
        )
    if ("index", documents) not in context.made:
        context.made["index", documents] = Index(documents)
    found: Index = context.made["index", documents]
    return found


def asked_rewards(context: Context) -> Any:
    """The reward of the settings, or the one that was given; the task's own grade where there is none."""
    context.read.add("reward")
    if "scorer" in context.given:
        return context.given["scorer"]
    if "judge" in context.given:
        raise UserError(
            "this plan scores answers one by one, and a judge of (prompt, a, b) compares two; give f(prompt, text)"
        )
    c, env = context.config, asked_task(context)
    if not c.reward and not env.graded:
        raise UserError(
            f"{env.name} has no gold answers, so it cannot grade itself; say what is good with --reward NAME, mine.py:function, "
            "runs/NAME or a folder of a reward model"
        )
    if ("reward", c.reward) not in context.made:
        context.made["reward", c.reward] = build_scorer(c.reward, env, c.reward_timeout, c.device)
    return context.made["reward", c.reward]


def asked_judge(context: Context, k: float = 1.0) -> Judge:
    """--reward FILE.py:FUNCTION of (prompt, a, b) is the judge itself; any other reward r judges by sigmoid(k (r_a - r_b))."""
    if "judge" in context.given:
        context.read.add("reward")
        return one_by_one(timed(context.given["judge"], context.config.reward_timeout))
    if names_judge(context.config.reward):
        context.read.add("reward")
        file, _, name = context.config.reward.rpartition(":")
        return one_by_one(function_of(file, name, context.config.reward_timeout))
    scorer = asked_rewards(context)
    return by_score(lambda prompts, texts: texts_of(scorer, prompts, texts), k)


def needs_judge(plan: str) -> Callable[[Context], None]:
    """For `Plan(ready=...)` of one that learns from comparisons alone: a task's own grade is no judge, so one must be given."""

    def ready(context: Context) -> None:
        if not context.config.reward and context.given.keys().isdisjoint({"scorer", "judge"}):
            raise UserError(
                f"{plan} learns from comparisons, and nobody here compares: give a judge of two answers, --reward mine.py:prefer with "
                "def prefer(prompt, a, b) -> the chance that a is better; or a reward that stands for one: --reward runs/NAME, "
                "a folder of a reward model, mine.py:function, numeric"
            )

    return ready


def asked_pairs(context: Context, spec: str = "") -> Any:
    """Preference pairs, read once: of a file that an option of a plan names (spec), or of --task, by default those that ship.

    A file with chosen and rejected, school_pairs, hh_rlhf. --task counts as read where its pairs are.
    """
    c = context.config
    if spec:
        if ("pairs", spec) not in context.made:
            env = pair_task(spec, data=c.data or None)
            context.made["pairs", spec] = with_system_message(env, c.system) if c.system else env
        return context.made["pairs", spec]
    context.read.add("task")
    if "env" in context.given:
        return context.given["env"]
    key = ("pairs", c.task, c.data, c.system, *columns(c).items())
    if key not in context.made:
        env = pair_task(default_task(c.task, "pairs"), data=c.data or None, **columns(c))
        context.made[key] = with_system_message(env, c.system) if c.system else env
    return context.made[key]


def asked_demonstrations(context: Context, size: int = 0, spec: str = "", option: str = "warmup") -> Worked:
    """Questions with a written solution to imitate: of --task, or of a file that an option names (spec).

    size: how many of them; 0: all. A bare gold answer is no solution, and imitating it would teach to leave the reasoning out:
    then --task is refused, and the plan may be run without that phase where `option` can be 0.
    """
    c = context.config
    if spec and ("task", spec) not in context.made:
        context.made["task", spec] = said_first(task(spec, think=c.think, data=c.data or None), c)
    env = context.made["task", spec] if spec else asked_task(context)
    whole = Worked(env, size or size_of(env, "train") or LOOKED_AT)
    bare = (
        None if spec else next((p for p in map(whole.prompt, range(min(whole.size, LOOKED_AT))) if not shown(p)), None)
    )
    if bare is not None:
        without = f", or begin without imitation: --plan.{option} 0" if option else ""
        raise UserError(
            f"{env.name}: the row {bare.id} has no written solution to imitate, only its answer {str(bare.answer)!r:.40}; give "
            f'rows whose answer is a worked solution ("... #### 42", or messages that end with the assistant){without}'
        )
    return whole


def shown(prompt: Prompt) -> bool:
    """Whether a prompt brings a text to imitate that is more than a bare result."""
    told = prompt.info.get("demonstration")
    if conversation(prompt) is not None or (isinstance(told, str) and told.strip() != str(prompt.answer).strip()):
        return True
    text = prompt.answer
    return isinstance(text, str) and (len(text.split()) >= WORDS or "</think>" in text)


def written(context: Context) -> Prescored:
    """The rewards of a phase that learns from written answers: they come with them."""
    return Prescored()
