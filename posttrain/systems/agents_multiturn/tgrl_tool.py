"""TGRL: a code interpreter, one answer tool for every domain, and a reward without a word about any domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from posttrain.advantages.dr_grpo import dr_grpo as centred
from posttrain.core.answers import boxed
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.fields import with_system
from posttrain.environments.mapped import each
from posttrain.environments.tooled import with_tools
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rollouts.sample import sample
from posttrain.select.zero_variance import zero_variance
from posttrain.tools.calculator import calculator
from posttrain.tools.python import python
from posttrain.tools.tool import Tool, ToolError, tool

PAPER = "arXiv:2510.11184"
TOOLS: dict[str, Callable[[], Tool]] = {"python": python, "calculator": lambda: calculator}

# ---- one way to answer, whatever the domain


def answer(text: str) -> str:
    """Give the final answer. This ends the conversation.

    text: the answer alone, inside \\boxed{...}
    """
    if not boxed(text):
        raise ToolError(r"the answer is not in a box; write it as \boxed{...}")
    return text


ANSWER = tool(answer, ends=True)
RULE = r"Call tools until you are sure, then call answer with \boxed{...}. Only that tool gives an answer: a text without a call ends without one."


def ruled(prompt: Prompt, split: str = "train") -> Prompt:
    """With the rule in its system message, after one that it has."""
    own = str(prompt.content[0]["content"]) if prompt.content[0]["role"] == "system" else ""
    return replace(prompt, content=with_system(prompt.content, "\n\n".join(filter(None, (own, RULE)))))


# ---- what an episode is worth


def outcome_of(rollout: Rollout) -> float:
    """1 where the answer tool was called with the right answer, -1 with a wrong one, 0 where it was not called."""
    right = rollout.info.setdefault("grade", float(rollout.turns[-1].reward or 0.0)) > 0.5
    return (1.0 if right else -1.0) if rollout.stop == "tool_end" else 0.0


def form_of(rollout: Rollout) -> float:
    """1 where every turn made calls that could be read and made as they were written, the last of them the answer in a box; else -1."""
    turns = rollout.info.get("tools", ())
    clean = all(t["calls"] and not t["faults"] and all(map(valid, t["calls"])) for t in turns)
    return 1.0 if turns and clean and rollout.stop == "tool_end" else -1.0


def valid(call: Mapping[str, Any]) -> bool:
    """A call as its format wants it; an answer that the tool took. A program may fail: that is no fault of the form."""
    return not call["repaired"] and not (call["name"] == ANSWER.name and str(call["result"]).startswith("error:"))


@scorer(title="Outcome and form (TGRL)", paper=PAPER)
class OutcomeAndForm(BaseScorer):
    """Outcome and form (TGRL): R = outcome + weight form, each -1, 0 or 1; nothing in it knows the domain of the task.

    outcome: what the answer tool was given is right (1), wrong (-1), or it was not called (0); form: every call was valid, and the
    answer came by its tool. What the task itself paid is kept in `info["grade"]`.
    """

    reported = ("outcome", "form")

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        out = []
        for r in answers_of(groups):
            parts = {"outcome": outcome_of(r), "form": form_of(r)}
            r.turns[-1].reward = None  # the grade is in the outcome
            failed = r.reward is None or r.failed
            out.append(Verdict(None if failed else parts["outcome"] + self.weight * parts["form"], parts))
        return out


# ---- the plan


def interpreter(name: str) -> Tool:
    """The tool of that name; the interpreter is refused, with what to do, where there is no sandbox."""
    if name not in TOOLS:
        raise UserError(f"got tool={name!r}; expected python (programs, in the sandbox) or calculator")
    return TOOLS[name]()


@plan(paper=PAPER, title="TGRL", uses=("task",))
def tgrl_tool(
    steps: int = 60, n: int = 8, tool: str = "python", max_turns: int = 6, form: float = 1.0, mixed: bool = True
) -> Plan:
    r"""TGRL: RL with a code interpreter on one domain, in a form that carries over to others: any task of single answers, two tools.

    <python>program</python> is run and its output read; <answer>\boxed{...}</answer> is the only way to end
    R = outcome + form;  outcome: 1 right, -1 wrong, 0 not given;  form: 1 where all calls are valid and the answer came by its tool, else -1
    A_i = R_i - mean, the clipped ratio, a mean over own tokens, no KL;  questions whose episodes all earned the same are left out (mixed)
    The task grades what is in the box. Train on mathematics, and look at other domains with `posttrain eval`. tool: python, or calculator
    where nothing may be run. form: the weight of the form; 0 leaves it out. Outputs of tools are read and not learned.

    Departures: there is no published code, and only the abstract and a review could be read: that there are an answer tool, an XML template and a
    reward of two parts is theirs; the values of the rewards, the optimiser, the filter and all numbers are taken from that review or are this
    package's, and no fidelity is claimed. The abstract says that the parts aim at tool efficiency and at abstraction; a price on calls is
    not here. A turn holds calls alone; a text without a call ends the episode without an answer.
    """
    if steps < 1 or n < 2 or max_turns < 2 or form < 0:
        raise UserError(
            f"got steps={steps}, n={n}, max_turns={max_turns}, form={form}; it takes 1 step, 2 episodes, 2 turns, and no weight below 0"
        )
    method = grpo.but(
        name="tgrl-tool", title="TGRL", paper=PAPER, doc=__doc__, rollout=sample.but(n=n), advantage=centred, aggregate=token_mean,
        terms=(), select=(zero_variance,) if mixed else (),
    )  # fmt: skip

    def env(context: Context) -> Environment:
        task = asked_task(context)
        if not task.graded:
            raise UserError(
                f"tgrl-tool is paid for right answers, and {task.name} has no gold answers; give rows with one"
            )
        return with_tools(each(task, ruled), [interpreter(tool), ANSWER], format="xml", max_turns=max_turns)

    def ready(context: Context) -> None:
        env(context)

    learn = Phase("tgrl", method, steps, env, rewards=lambda context: OutcomeAndForm(form), measured=True)
    return Plan((learn,), ready=ready)
