"""What the settings of a run ask a plan for: its task, what says how good answers are, who compares them.

A plan reads --task and --reward here and nowhere else, so that an object given in Python stands in for a name, and so that what
was read is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posttrain.core.answers import conversation, imitable
from posttrain.core.errors import UserError
from posttrain.core.plan import Context
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.mapped import with_system_message
from posttrain.environments.searching import Index
from posttrain.environments.task import default_task, pair_task, task
from posttrain.environments.worked import Worked
from posttrain.rewards.runtime.score import say_once
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.judging import FunctionJudge, Judging, ScoreJudge
from posttrain.rewards.scorers.spec import Build, build_scorer, judge_of, timed
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


def named_task(context: Context, spec: str) -> Any:
    """The task that an option of a plan names, said first what the settings say; read once."""
    c = context.config
    if ("task", spec) not in context.made:
        context.made["task", spec] = said_first(task(spec, think=c.think, data=c.data or None), c)
    return context.made["task", spec]


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
    if c.reward in ("", "task") and not env.graded:
        raise UserError(
            f"{env.name} has no gold answers, so it cannot grade itself; say what is good with --reward NAME, mine.py:function, "
            "runs/NAME or a folder of a reward model"
        )
    if ("reward", c.reward) not in context.made:
        context.made["reward", c.reward] = build_scorer(c.reward, env, c.reward_timeout, c.device)
    return context.made["reward", c.reward]


def asked_scores(context: Context, groups: list[Group], scorer: Any = None) -> None:
    """Score answers that a plan collects, by --reward or by the scorer. What fails is masked, and why is told once; that everything
    failed is a mistake in what scores, and not in the answers."""
    report = (scorer or asked_rewards(context)).score(groups)
    if report.n and report.masked == report.n:
        raise UserError(
            f"{context.phase}: not one of {report.n} answers could be scored, so there is nothing to learn from: {report.why or 'no number was given'}"
        )
    if report.why:
        say_once(f"what cannot be scored is masked: {report.why}")


def asked_judge(context: Context, k: float = 1.0) -> Judging:
    """The judge of the settings, or the one that was given; made once, so that its questions are counted in one place.

    --reward FILE.py:FUNCTION of (prompt, a, b) or (prompt, texts), judge(url=...), model_judge(folder=...) is the judge itself; any
    other reward r gives its numbers as points, and judges two answers by sigmoid(k (r_a - r_b)).
    """
    c = context.config
    if ("judge", c.reward, k) not in context.made:
        context.made["judge", c.reward, k] = _judge(context, k)
    context.read.add("reward")
    found: Judging = context.made["judge", c.reward, k]
    return found


def _judge(context: Context, k: float) -> Judging:
    c, given = context.config, context.given
    if "judge" in given:
        return given["judge"] if isinstance(given["judge"], Judging) else FunctionJudge(timed(given["judge"], c.reward_timeout))  # fmt: skip
    if c.reward and "scorer" not in given:
        return judge_of(c.reward, Build(asked_task(context), c.reward_timeout, c.device), k)
    scorer = asked_rewards(context)
    return scorer if isinstance(scorer, Judging) else ScoreJudge(scorer, k)


def needs_judge(plan: str, k: float = 1.0) -> Callable[[Context], None]:
    """For `Plan(ready=...)` of one that learns from comparisons alone: a task's own grade is no judge, so one must be given. It is made
    here already, so that a mistake in its name or its parameters is told before anything is loaded."""

    def ready(context: Context) -> None:
        if not context.config.reward and context.given.keys().isdisjoint({"scorer", "judge"}):
            raise UserError(
                f"{plan} learns from comparisons, and nobody here compares: give a judge of two answers, --reward mine.py:prefer with "
                "def prefer(prompt, a, b) -> the chance that a is better; or a reward that stands for one: --reward runs/NAME, "
                "a folder of a reward model, mine.py:function, numeric"
            )
        refuse_k(plan, asked_judge(context, k), k != 1.0)

    return ready


def refuse_k(plan: str, judge: Judging, given: bool) -> None:
    """How sharply a reward judges two answers is a question of rewards alone."""
    if given and not isinstance(judge, ScoreJudge):
        raise UserError(
            f"{plan} does not read --plan.k: it says how sharply a reward tells two answers apart, and --reward is a judge that compares them "
            "itself; leave it away"
        )


def needs_feedback(plan: str, points: bool = False) -> Callable[[Context], None]:
    """The same for one that learns from what a judge says of its answers, in points or rankings; points: of each by itself."""

    def ready(context: Context) -> None:
        if not context.config.reward and context.given.keys().isdisjoint({"scorer", "judge"}):
            raise UserError(
                f"{plan} learns from a judge, and none was given: a served model, --reward \"judge(url='http://127.0.0.1:8000/v1')\"; a model "
                "in a folder, --reward \"model_judge(folder='FOLDER')\"; a function of yours, --reward mine.py:judge with "
                "def judge(prompt, texts) -> points of all answers to a prompt, or of (prompt, text) or (prompt, a, b); a reward model, "
                "--reward runs/NAME"
            )
        asked_task(context)
        judges(context, points)

    return ready


def judges(context: Context, points: bool = False) -> None:
    """The judge is made, and refused where it compares answers alone and points of each are wanted."""
    if (judge := asked_judge(context)).compares and points:
        judge.points((), ())  # says so


def asked_pairs(context: Context, spec: str = "", kind: str = "pairs") -> Any:
    """Preferences, read once: of a file that an option of a plan names (spec), or of --task, by default those that ship.

    A file with chosen and rejected, school_pairs, hh_rlhf; kind: "lists" or "labels" in place of pairs. --task counts as read where
    its preferences are.
    """
    c = context.config
    if spec:
        if (kind, spec) not in context.made:
            env = pair_task(spec, data=c.data or None, kind=kind)
            context.made[kind, spec] = with_system_message(env, c.system) if c.system else env
        return context.made[kind, spec]
    context.read.add("task")
    if "env" in context.given:
        return context.given["env"]
    key = (kind, c.task, c.data, c.system, *columns(c).items())
    if key not in context.made:
        named = c.task if context.gave("task") else default_task(c.task, kind)
        env = pair_task(named, data=c.data or None, kind=kind, **columns(c))
        context.made[key] = with_system_message(env, c.system) if c.system else env
    return context.made[key]


def asked_demonstrations(context: Context, size: int = 0, spec: str = "", option: str = "warmup") -> Worked:
    """Questions with a written solution to imitate: of --task, or of a file that an option names (spec).

    size: how many of them; 0: all. A bare gold answer is no solution, and imitating it would teach to leave the reasoning out:
    then --task is refused, and the plan may be run without that phase where `option` can be 0.
    """
    env = named_task(context, spec) if spec else asked_task(context)
    whole = Worked(env, size or size_of(env, "train") or LOOKED_AT)
    looked_at = [whole.prompt(i) for i in range(min(whole.size, LOOKED_AT))]
    if spec and (silent := next((p for p in looked_at if not imitable(p)), None)):
        raise UserError(
            f"{env.name}: the row {silent.id} has no answer to imitate; give rows with a question and an answer, or messages that end with "
            "the assistant"
        )
    bare = None if spec else next((p for p in looked_at if not shown(p)), None)
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
