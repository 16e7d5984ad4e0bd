"""ToolRL: GRPO on logged tool calls, with a reward for the form and one for how much of each call is right."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import reward, shaping
from posttrain.core.selfcheck import problems
from posttrain.core.thinking import thought_of
from posttrain.core.types import Prompt
from posttrain.environments.fields import with_system
from posttrain.environments.gold_calls import CLOSE, OPEN, GoldCall, calling, gold_calls, lines_of, tools_of
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_task
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

PAPER = "arXiv:2504.13958"
TOP = 3.0  # of the correctness, which goes from -TOP to TOP
RESPONSE = "<response>"
SCHEDULES = ("", "smooth", "stages", "released")

# ---- what a turn is worth


@reward(title="ToolRL: form", paper=PAPER, system="toolrl")
def toolrl_form(prompt: Prompt, text: str) -> float:
    """ToolRL's form: 1 where the tags that the gold turn has stand in order, on lines of their own, each once; else 0.

    <think>..</think>, then <tool_call> with its calls where calls are wanted, then <response>..</response> where a text is.
    """
    wants_calls, wants_text = wanted(prompt)
    pattern = r"<think>.*?</think>"
    pattern += rf"\n{OPEN}\n.*?\n{CLOSE}" if wants_calls else ""
    pattern += r"\n<response>.*?</response>" if wants_text else ""
    said = text.strip()
    tags = (OPEN, CLOSE) * wants_calls + (RESPONSE, "</response>") * wants_text
    return float(re.fullmatch(pattern, said, re.DOTALL) is not None and all(said.count(tag) == 1 for tag in tags))


@reward(title="ToolRL: correctness", paper=PAPER, system="toolrl")
def toolrl_correct(prompt: Prompt, text: str, matching: str = "best", grain: str = "fine") -> float:
    """ToolRL's correctness: how much of the gold calls was said: their names, the names of their arguments, the values.

    R = 6 s / s_max - 3;  s = J(names) + sum over matched calls of J(argument names) + number of equal values;
    s_max = 1 + sum over gold calls of (1 + number of arguments);  J = |both| / |either|, of multisets
    Calls of the same tool are matched one to one: the "best" way, or "greedy", gold by gold, as the released code. A turn whose calls
    cannot be read gets -3; one that should not call gets 0. grain="coarse": 3 where all is right, else -3.
    """
    if matching not in ("best", "greedy") or grain not in ("fine", "coarse"):
        raise UserError(f"got matching={matching!r}, grain={grain!r}; expected 'best' or 'greedy', 'fine' or 'coarse'")
    gold = gold_calls(prompt)
    if not gold:
        return 0.0
    try:
        said = lines_of(text[thought_of(text).answer :])
    except (ValueError, RecursionError):
        return -TOP
    share = call_score(gold, said, matching)
    return TOP if share == 1.0 else -TOP if grain == "coarse" else 2 * TOP * share - TOP


@reward(title="ToolRL: length", paper=PAPER, system="toolrl")
def toolrl_length(prompt: Prompt, text: str, longest: int = 512) -> float:
    """ToolRL's length: words of the thought in `longest`, at most 1; 0 without a thought. The paper finds that it hurts."""
    found = thought_of(text)
    return min(len(text[found.start : found.end].split()) / longest, 1.0) if found.closed else 0.0


@reward(title="The calls that were logged", system="toolrl")
def calls_right(prompt: Prompt, text: str) -> float:
    """The calls that were logged: 1 where a turn calls just what the gold turn does, in any order; nothing, where it does not."""
    said = text[thought_of(text).answer :]
    return float(toolrl_correct(prompt, text) == TOP if gold_calls(prompt) else OPEN not in said and bool(said.strip()))


def call_score(gold: Sequence[GoldCall], said: Sequence[GoldCall], matching: str = "best") -> float:
    """s / s_max: the share of the gold calls that was said, 1 where it is all of them and nothing more."""
    top = 1.0 + sum(1.0 + len(g.arguments) for g in gold)
    names = overlap([g.name for g in gold], [c.name for c in said])
    worth = [[pair_score(g, c) for c in said] for g in gold]
    return (names + (matched if matching == "best" else greedy)(worth)) / top


def pair_score(gold: GoldCall, said: GoldCall) -> float:
    """Names of arguments as a share, and one for each value that is equal; 0 for another tool."""
    if gold.name != said.name:
        return 0.0
    equal = sum(k in said.arguments and same_value(said.arguments[k], v) for k, v in gold.arguments.items())
    return overlap(list(gold.arguments), list(said.arguments)) + equal


def same_value(a: object, b: object) -> bool:
    """Equal as JSON: 1 is 1.0, and true is not 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Multisets: how many are in both, in how many are in either; 1 of two empty ones."""
    both = (Counter(a) & Counter(b)).total()
    return both / (len(a) + len(b) - both) if a or b else 1.0


def greedy(worth: Sequence[Sequence[float]]) -> float:
    """Row by row, the best column that is left."""
    used: set[int] = set()
    total = 0.0
    for row in worth:
        left = [(x, -j) for j, x in enumerate(row) if j not in used and x > 0]
        if left:
            best, place = max(left)
            used.add(-place)
            total += best
    return total


def matched(worth: Sequence[Sequence[float]]) -> float:
    """The largest sum over one-to-one matchings of rows and columns, by paths that raise it (Hungarian method)."""
    n = max(len(worth), len(worth[0]) if worth else 0)
    cost = [[-(row[j] if j < len(row) else 0.0) for j in range(n)] for row in (*worth, *([[]] * (n - len(worth))))]
    u, v, owner = [0.0] * (n + 1), [0.0] * (n + 1), [n] * (n + 1)  # prices of rows and columns, the row of each column
    for i in range(n):
        owner[n], at = i, n
        least, came, seen = [float("inf")] * n, [n] * n, [False] * (n + 1)
        while owner[at] != n:
            seen[at], row = True, owner[at]
            for j in (j for j in range(n) if not seen[j]):
                if (rest := cost[row][j] - u[row] - v[j]) < least[j]:
                    least[j], came[j] = rest, at
            step, nearest = min((least[j], j) for j in range(n) if not seen[j])
            for j in range(n + 1):
                if seen[j]:
                    u[owner[j]], v[j] = u[owner[j]] + step, v[j] - step
                elif j < n:
                    least[j] -= step
            at = nearest
        while at != n:
            owner[at], at = owner[came[at]], came[at]
    return -sum(cost[owner[j]][j] for j in range(n))


def wanted(prompt: Prompt) -> tuple[bool, bool]:
    """Whether a turn should call, and whether it should say something; a gold text with tags says both itself."""
    calls, answer = bool(gold_calls(prompt)), str(prompt.answer or "")
    tagged = "<think>" in answer or OPEN in answer or RESPONSE in answer
    return calls, RESPONSE in answer if tagged else not calls


def validate() -> list[str]:
    """The gold calls in another order pass; a wrong value, a missing call and a broken line do not."""
    rows = [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}]
    prompt = Prompt.text("calls", "1+2, and the time?", json.dumps(rows))
    lines = [json.dumps(c) for c in rows]
    good = f"<think>\nboth\n</think>\n{OPEN}\n{lines[1]}\n{lines[0]}\n{CLOSE}"
    wrong = [good.replace("2}", "3}"), f"{OPEN}\n{lines[0]}\n{CLOSE}", good.replace("}}", "}")]
    found = problems(toolrl_correct, [(prompt, good, bad) for bad in wrong], full=TOP)
    return found + problems(
        toolrl_form, [(prompt, good, good.replace("\n" + CLOSE, CLOSE)), (prompt, good, good + "!")]
    )


# ---- what weighs more as training goes on


@shaping(name="toolrl", title="ToolRL: scale", paper=PAPER, reads=("reward_BT",))
def dynamic_scale(batch: Batch, schedule: str = "", over: int = 150) -> Tensor:
    """ToolRL's scale: the form counts for less and correctness for more as training goes on.

    R = a form + (c / 3) correctness + the rest;  smooth: a = 2 - p, c = 2 + p, p = step / over up to 1;  stages: a = 1, c = 1 for 30 steps,
    then a = 1/2, c = 3;  "": a = 1, c = 3 always.  released: smooth, and a turn without the form loses max(2 - 2p, 1), as the code has it.
    """
    if schedule not in SCHEDULES or over < 1:
        raise UserError(f"got schedule={schedule!r}, over={over}; expected one of {SCHEDULES}, and over 1 step or more")
    if not schedule:
        return batch["reward_BT"]
    step_B = batch["version_B"].to(batch.mask_BT)
    if schedule != "stages":
        p_B = (step_B / over).clamp(max=1.0)
        a_B, c_B, low_B = 2 - p_B, 2 + p_B, (2 - 2 * p_B).clamp(min=1.0) * (schedule == "released")
    else:
        late_B = step_B >= 30
        a_B, c_B, low_B = torch.where(late_B, 0.5, 1.0), torch.where(late_B, 3.0, 1.0), torch.zeros_like(step_B)
    form_B, right_B = component(batch, "form"), component(batch, "correct")
    rest_B = batch.returns_B - form_B - right_B
    return on_last(a_B * form_B - low_B * (1 - form_B) + c_B / TOP * right_B + rest_B, batch)


# ---- what is asked

INSTRUCTION = """You may call tools. Answer in this form, each part on lines of its own:
<think>
what is asked, which tools serve it, which values they need
</think>
<tool_call>
{"name": "tool", "parameters": {"name": "value"}}
</tool_call>
Write one call per line. Where no tool serves, or the results already answer, write <response>your answer</response> in place of the calls."""


def instructed(prompt: Prompt, split: str = "train") -> Prompt:
    """With the form that is asked for and the row's tools as its system message; a row with one of its own and no tools has said it."""
    tools = tools_of(prompt)
    info = {("tool_list" if k == "tools" else k): v for k, v in prompt.info.items()}
    own = prompt.content[0]["content"] if prompt.content[0]["role"] == "system" else ""
    if own and not tools:
        return replace(prompt, info=info)
    listed = "\n".join(json.dumps(tool) for tool in tools)
    said = "\n\n".join(filter(None, (str(own), INSTRUCTION, listed and f"Tools:\n{listed}")))
    return replace(prompt, content=with_system(prompt.content, said), info=info)


# ---- the plan


def on_calls(n: int = 4, schedule: str = "", kl: float = 0.0) -> Method:
    """GRPO without a KL term, four updates per batch."""
    scaled = (dynamic_scale.but(schedule=schedule),) if schedule else ()
    return grpo.but(
        name="toolrl", title="ToolRL", paper=PAPER, doc=__doc__, rollout=sample.but(n=n), terms=(), minibatches=4,
        shaping=(*scaled, *((kl_in_reward.but(coef=kl),) if kl else ())),
    )  # fmt: skip


@plan(paper=PAPER, title="ToolRL", uses=("task",))
def toolrl(
    steps: int = 60, n: int = 4, matching: str = "best", grain: str = "fine", schedule: str = "", length: bool = False,
    kl: float = 0.0,
) -> Plan:  # fmt: skip
    """ToolRL: GRPO on logged turns that call tools; nothing is run, the calls are compared with the gold ones.

    R = form + correctness, in [-3, 4];  form 0 or 1;  correctness = 6 s / s_max - 3, s: the share of names, argument names and
    values that are right;  A_i = (R_i - mean) / std;  the clipped ratio, no KL
    Rows: question or messages, tools, and answer: a list of calls {"name", "arguments"}, or a text where none is wanted. Both
    rewards are logged. schedule: "smooth" moves the weight from form (2 to 1) to correctness (2 to 3) over 150 steps, "stages" at step 30.
    length adds the words of the thought in 512. grain="coarse" is all or nothing. kl: the price of KL in the reward.

    Departures: the paper takes 15 passes of 512 rows in minibatches of 128 at 1e-6, answers up to 1,024 tokens; here `--plan.steps`,
    `--prompts`, four minibatches as there, `--lr` and `--sampling.max-tokens`. The paper states the best matching and no KL: those are the
    defaults; its code matches gold by gold (`--plan.matching greedy`), takes a mean over all tokens of a batch (here over each answer), and
    has KL 0.001 in the reward (`--plan.kl 0.001`). Of the smooth schedule the stated range is built; the code also takes up to 2 off for a
    wrong form (`--plan.schedule released`).
    The system message that asks for the form is this package's; rows with a system message and no tools column keep theirs. Calls
    inside a thought are not read, and true is not 1. 4 answers per row, clip 0.2 and the rewards are the paper's.
    """
    if steps < 1 or n < 2 or kl < 0:
        raise UserError(f"got steps={steps}, n={n}, kl={kl}; it takes 1 step, 2 answers, and no price below 0")
    toolrl_correct(Prompt.text("", ""), "", matching, grain)  # says which there are
    if schedule not in SCHEDULES:
        raise UserError(f"got schedule={schedule!r}; expected one of {SCHEDULES}")
    method = on_calls(n, schedule, kl)

    def env(context: Context) -> Environment:
        return calling(asked_task(context), instructed, calls_right, "toolrl")

    def rewards(context: Context) -> RewardSum:
        right = toolrl_correct.but(matching=matching, grain=grain)
        more = [("length", toolrl_length, 1.0)] if length else []
        return RewardSum([("form", toolrl_form, 1.0), ("correct", right, 1.0), *more], context.config.reward_timeout)

    def ready(context: Context) -> None:
        env(context)

    return Plan((Phase("toolrl", method, steps, env, rewards=rewards, measured=True),), ready=ready)
