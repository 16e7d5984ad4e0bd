"""Settings that cannot work are refused before anything is loaded, with what to type instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from posttrain.core.answers import imitable
from posttrain.core.config import Config
from posttrain.core.critic import OLD, VALUES, has_critic, unused
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, NotYet, Phase, Plan
from posttrain.core.protocols import Environment, Policy
from posttrain.core.types import Prompt
from posttrain.environments.conversions import CARRIED, KINDS
from posttrain.environments.data import DataEnvironment
from posttrain.rollouts.step_labels import labelled
from posttrain.runs import tried
from posttrain.runs.rate import largest_rate
from posttrain.runs.unused import unread
from posttrain.weights.beside import asked_of

# what `assemble` puts into every batch, or into those whose rollouts say so
ASSEMBLED = {
    "mask_BT", "logp_BT", "old_logp_BT", "reward_BT", "group_B", "version_B", "token_BT", "length_B", "written_B",
    "answer_B", "node_BS", "state_BT", "task_B", "turn_BT", "preferred_P", "rating_BK",
}  # fmt: skip
MADE = {"adv_BT", "old_entropy_BT", *OLD, "thought_BT"}  # by the advantage, by the learner
# what a language model's forward pass gives
LANGUAGE = {
    "logp_BT", "entropy_BT", "logz_BT", "mixed_logp_BT", "dist_BTV", "hidden_BTD", "head_VD", "temperature_B", *VALUES, "score_B", "scores_BK",
}  # fmt: skip
GRADING = ("mrt",)  # rollouts that grade answers on the way, with the task's own grade
IMITATING = ("student-or-data",)  # rollouts that take written answers for a share of the steps
PAIRED = ("chosen_P", "rejected_P")
COMPARED = (
    (
        "ranked_LK",
        "ranked lists of answers",
        "--rollout lists --task lists.jsonl, or rank sampled ones (--select ranked)",
    ),
    ("label_B", "answers that were called good or bad", "--rollout labels --task labels.jsonl"),
)


def refuse(config: Config, method: Method, policy: Policy | None = None) -> None:
    """Raise a UserError for a combination that could only be silently wrong; once without and once with the policy."""
    tried.parameters(method)
    pairs(method)
    references(method)
    idle(method)
    streams(method, set(policy.provides) if policy is not None else LANGUAGE)
    groups(config, method)
    unused(config, method.reads, method.name)
    untrained(config, method)
    method.critic.asked(config)
    measured(config, method)
    floor(config)
    others(config, method)
    if config.tools:
        takes_turns(method)


def untrained(config: Config, method: Method) -> None:
    """A critic whose values are credit learns from a term: --terms takes the place of a method's own ones, that of values among them."""
    learned = {name for o in method.objectives for part in (o.loss, *o.terms) for name in part.card.reads}
    idle = [name for name in OLD if name in method.reads and name.removeprefix("old_") not in learned]
    if idle and not config.critic:
        own = " + ".join(t.name for t in method.terms)
        raise UserError(
            f"{method.name}'s credit comes from a critic ({idle[0].removeprefix('old_')}) that no loss or term would train (terms: {own or 'none'}), so its values would stay as they "
            f'begin; add the loss of values: --terms "{" + ".join(filter(None, ("value-loss", own)))}"'
        )


def takes_turns(method: Method) -> None:
    """Tools need a rollout in which the policy moves more than once."""
    part, kind = method.rollout, method.rollout.card.data
    if kind:
        raise UserError(
            f"{method.name} learns from answers that are there already, and nothing is called in them; leave --tools away"
        )
    if part.name != "sample" and "episodes" not in getattr(part.fn, "__globals__", {}):
        raise UserError(
            f"{method.name} makes its answers by {part.name}, which takes no turns, so nothing could be called; leave --tools away, or "
            "add --rollout sample"
        )


def refuse_of_phases(plan: Plan, config: Config) -> None:
    """The same for the phases of a plan, those whose steps are known before."""
    for phase in plan.phases():
        steps = {} if callable(phase.steps) else {"steps": phase.steps}
        asked = replace(config, **(steps | phase.changes))
        tried.parameters(phase.method)
        groups(asked, phase.method)
        floor(asked)
        if steps and has_critic(phase.method.reads):
            phase.method.critic.asked(asked)


class Nothing(dict[str, Any]):
    """What is not there before anything is loaded: the run, notes, roles. Whoever asks for it is asked again when its turn comes."""

    def __missing__(self, key: str) -> Any:
        raise NotYet(f"there is no {key} before the plan begins")

    def __getattr__(self, name: str) -> Any:
        raise NotYet(f"there is no {name} before the plan begins")


def refuse_of_data(plan: Plan, context: Context) -> None:
    """What phases learn from, who pays and for how long, as far as that needs no role: wrong columns are told before loading, and what
    was given and is read by none of them, where nothing else could read it."""
    early = replace(context, run=Nothing(), roles=Nothing(), notes=Nothing(), read=set())
    whole = all(isinstance(part, Copy) or (isinstance(part, Phase) and not part.after) for part in plan.parts)
    for phase in plan.phases():
        for build in (phase.env, phase.rewards, phase.steps):
            try:
                build(early) if callable(build) else None
            except NotYet:
                whole = False  # it may read more when its turn comes
    if whole and (forgotten := unread(plan, early, context.asked or ())):
        raise UserError(f"{plan.name} does not read --{forgotten[0]} with these options; leave it away")
    env = context.made.get(("task", context.config))
    if env is not None and any(phase.role == "policy" and not phase.measured for phase in plan.phases()):
        held_out(context.config, env, bool(context.config.reward) or "scorer" in context.given)


def suits(method: Method, env: Environment) -> None:
    """A method that learns from written answers needs an environment whose prompts carry them."""
    first = next((p for p in _some(env) if imitable(p)), None) or env.prompt(0, "train")
    kind = method.rollout.card.data
    if kind in KINDS and not CARRIED[kind] <= set(first.info):
        what = {"pairs": "preference pairs", "lists": "ranked lists", "labels": "good and bad answers"}[kind]
        raise UserError(
            f"{method.name} learns from {what}, and the prompts of {env.name} carry none; give rows with {KINDS[kind]}: "
            f"task=[{{...}}], or --task {kind}.jsonl"
        )
    if kind == "lists":
        long_enough(method, env)
    if method.rollout.card.data == "demonstrations" and not imitable(first):
        raise UserError(
            f"{method.name} learns from written answers, and the first prompt of {env.name} has none; give rows with an answer, or "
            "conversations that end with the assistant"
        )
    if kind == "demonstrations" and method.rollout.name != kind:
        tried.rows(method, filter(imitable, _some(env)))
    if method.rollout.name in IMITATING and method.rollout.defaults()["share"] < 1 and not imitable(first):
        raise UserError(
            f"{method.name} learns from written answers for a share of its steps, and the first prompt of {env.name} has none; give rows with "
            f'an answer, or learn from sampled ones alone: --rollout "{method.rollout.name}(share=1.0)"'
        )
    if method.rollout.name in GRADING and not env.graded:
        raise UserError(
            f"{method.name} grades answers on the way, whatever --reward pays, and {env.name} has no gold answers; give rows with one"
        )
    if method.rollout.card.data == "steps" and not any(labelled(p) for p in (*_some(env), first)):
        raise UserError(
            f"{method.name} learns from answers whose steps are labelled, and the prompts of {env.name} have none; give rows with "
            "completions (the steps) and labels (1 right, 0 wrong), or let \"pure(prm='train')\" make them"
        )


def long_enough(method: Method, env: Environment) -> None:
    """Lists with fewer answers than the method reads are told before the first step, not at the one that meets them."""
    least = max(method.rollout.defaults().get("least", 2), 2)
    lists = [p.info.get("ranked") or () for p in getattr(env, "train", ())]
    short = sum(len(ranked) < least for ranked in lists)
    if short:
        raise UserError(
            f"{method.name} learns from lists of at least {least} answers, and {short:,} of {len(lists):,} lists of {env.name} have fewer; "
            "leave those rows out, or learn from them with pro or rrhf"
        )


def others(config: Config, method: Method) -> None:
    """Answers to other questions of the same batch need a batch of several."""
    if method.rollout.defaults().get("mismatched") and config.prompts == 1:
        raise UserError(
            f"{method.name} reads each answer beside one to another question of the batch, and --prompts 1 has none; use --prompts 2 or more"
        )


def held_out(config: Config, env: Environment, scored: bool) -> None:
    """Where answers to held-out prompts will be measured, some must be there; scored: by a reward, where the task cannot."""
    if config.eval_problems and (scored or env.graded or env.opens):
        try:
            env.prompt(0, "test")
        except UserError as error:
            raise UserError(f"{error}, or train without a look at any: --eval-problems 0") from None


def floor(config: Config) -> None:
    """A schedule cannot fall to more than its peak, as far as that is known before the model is there."""
    if config.lr is None and config.min_lr > (most := largest_rate(config)):
        raise UserError(
            f"min_lr is {config.min_lr:g}, more than the learning rate of {config.model}, which is {most:.3g} at most where none is given; "
            "say it too, with --lr, or use a smaller --min-lr"
        )


def _some(env: Environment) -> Iterable[Prompt]:
    """The training prompts of rows: those without an answer are left out later where others have one."""
    return env.splits.get("train", ()) if isinstance(env, DataEnvironment) else ()


def measured(config: Config, method: Method) -> None:
    """A reference that is renewed by held-out scores needs some."""
    if getattr(method.reference.fn, "needs_eval", False) and not config.eval_every and config.steps:
        raise UserError(
            f"{method.name} renews its reference and its optimiser when held-out scores stall, and this run measures none on the "
            "way; add --eval-every 10, or keep the start as the reference with --reference fixed"
        )


def pairs(method: Method) -> None:
    missing = [name for name in PAIRED if name in method.reads and name not in method.provides]
    if missing:
        raise UserError(
            f"{method.loss.name} compares answers in pairs, but nothing here says which of two is better; "
            "learn from written pairs (--rollout pairs --task pairs.jsonl) or rank sampled ones (--select best_worst)"
        )
    for stream, what, how in COMPARED:
        if stream in method.reads and stream not in method.provides:
            raise UserError(f"{method.loss.name} learns from {what}, and nothing here gives any; {how}")


def references(method: Method) -> None:
    """What a reference itself must be given, such as a teacher."""
    for o in method.objectives:
        check = getattr(o.reference.fn, "check", None)
        if check is not None:
            check(method.reads, **o.reference.params)


def idle(method: Method) -> None:
    """A choice of a stage that changes nothing: rounds of new prompts where no group is dropped, a reference that nothing reads."""
    if method.rounds > 1 and not method.select:
        raise UserError(
            f"{method.name} has rounds={method.rounds}, which ask new prompts in place of groups that a selection left out, and it selects "
            "none; leave --rounds away, or add --select zero-variance"
        )
    for at, o in enumerate(method.objectives):
        kept, beside = asked_of(o.reference, o.reads if at else method.reads, method.rollout)
        if not kept and not beside and str(o.reference) != "fixed":
            raise UserError(
                f"nothing in {method.name} reads a reference, so {o.reference} would change nothing; leave --reference away, or add a term that "
                "reads one: --terms kl"
            )


def streams(method: Method, given: set[str]) -> None:
    known = ASSEMBLED | MADE | method.provides | given | {f"ref_{name}" for name in given}
    for part in (part for group in method.parts().values() for part in group):
        missing = [name for name in part.card.reads if name not in known and not name.startswith("reward:")]
        if missing:
            raise UserError(
                f"{part.name} reads {', '.join(missing)}, which no part of {method.name} provides; "
                f"posttrain show {part.name} says what it needs"
            )


def groups(config: Config, method: Method) -> None:
    """An advantage that compares siblings needs several, and different ones."""
    if method.rollout.card.data or not ({"group_B", "node_BS"} & set(method.advantage.card.reads)):
        return
    n = config.num_generations or method.rollout.defaults().get("n")
    if n == 1:
        raise UserError(
            f"{method.advantage.name} compares the answers to a prompt with one another, and there is 1 per prompt; "
            "use --num-generations 8, or an advantage without a group (--advantage outcome)"
        )
    if config.sampling.temperature == 0:
        raise UserError(
            f"at temperature 0 all answers to a prompt are the same, so {method.advantage.name} has nothing to compare; "
            "use --sampling.temperature 1"
        )
