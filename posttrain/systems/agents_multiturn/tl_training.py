"""TL-Training: imitation of tool calls that leaves failed calls out and weighs the tokens that decide the tool, then PPO on graded errors."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment, RolloutRequest
from posttrain.core.registry import reward, rollout, supervised_loss
from posttrain.core.selfcheck import problems
from posttrain.core.thinking import thought_of
from posttrain.core.types import Group, Message, Prompt
from posttrain.environments.base import SPLITS, size_of
from posttrain.environments.data import DataEnvironment
from posttrain.environments.gold_calls import GoldCall, as_call, gold_calls, tools_of
from posttrain.losses.aggregate import sequence_mean
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_task, written
from posttrain.methods.sft import sft
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

PAPER = "arXiv:2412.15495"
# what a tool says where the call before it was wrong; letters and digits alone are compared
ERRORS = (
    "is not defined", "positional argument", "unexpected keyword", "'related_searches'", "ConnectionError", '"error":', "not supported",
    "Invalid API call", "Response error", "Object of type SerpResults is not JSON serializable", "400 Client Error", "'error'",
    "slice indices must be integers or None or have an __index__ method", "connection error",
)  # fmt: skip
ASKS = "Call one of these functions, as in: name(argument='value'). What it returns follows as: Output: ..."
_LONGEST = 20_000  # characters of a call that is read

# ---- a dialogue as one sample per turn of the assistant


def failed(said: str) -> bool:
    """Whether a tool's result tells of an error."""
    plain = re.sub(r"[\W_]", "", said).lower()
    return any(re.sub(r"[\W_]", "", error).lower() in plain for error in ERRORS)


def samples(prompt: Prompt, mask: bool = True) -> list[Prompt]:
    """A prompt for every turn of the assistant whose call a tool answered, and for the last turn: what came before it, and the turn as the
    demonstration. mask: turns that a tool answered with an error are left out; they stay in what later turns see."""
    tools = {t["name"]: parameters(t) for t in tools_of(prompt)}
    if not tools:
        raise ValueError("it lists no tools; give a column tools")
    said = [m for m in (*prompt.content, *last_turn(prompt)) if m["role"] != "system"]
    seen: list[Message] = [{"role": "system", "content": described(tools_of(prompt))}]
    out = []
    for k, m in enumerate(said):
        if m["role"] != "assistant":
            shown = f"Output: {m['content']}" if m["role"] == "tool" else m["content"]
            seen.append({"role": "user", "content": shown})
            continue
        calls = [as_call(c) for c in m.get("tool_calls") or ()]
        if len(calls) > 1:
            raise ValueError(f"turn {k} makes {len(calls)} calls at once; tl-training grades one call per turn")
        text = as_text(calls[0]) if calls else str(m["content"])
        after = said[k + 1] if k + 1 < len(said) else None
        answered = after is None or (after["role"] == "tool" and not (mask and failed(str(after["content"]))))
        if answered and k:
            info = {"demonstration": text, "tool_parameters": tools}
            gold = json.dumps([{"name": calls[0].name, "arguments": calls[0].arguments}]) if calls else text
            out.append(Prompt(f"{prompt.id}-{k}", tuple(seen), gold, info))
        seen.append({"role": "assistant", "content": text})
    return out


def last_turn(prompt: Prompt) -> list[Message]:
    """The turn that a prompt wants: its last message, its gold calls, or its answer as a text; none where it has none."""
    told = prompt.info.get("imitated")
    if isinstance(told, dict):
        return [told]
    calls = [{"name": c.name, "arguments": c.arguments} for c in gold_calls(prompt)]
    if not calls and prompt.answer is None:
        return []
    return [{"role": "assistant", "content": "" if calls else str(prompt.answer), "tool_calls": calls}]


def parameters(tool: Mapping[str, Any]) -> list[str]:
    """The names of a tool's parameters: of a JSON schema, or of a plain object."""
    told = tool.get("parameters") or {}
    inner = told.get("properties", told) if isinstance(told, Mapping) else {}
    return list(inner)


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """The tools as signatures of functions."""
    lines = [f"{t['name']}({', '.join(parameters(t))})  # {t.get('description', '')}".rstrip(" #") for t in tools]
    return "\n".join([ASKS, *lines])


def by_turn(env: Environment, mask: bool) -> DataEnvironment:
    """The samples of every dialogue of a task, each split apart; a sentence where a row cannot be read or none calls a tool."""
    splits: dict[str, tuple[Prompt, ...]] = {}
    for split in SPLITS:
        rows = [env.prompt(i, split) for i in range(size_of(env, split))]
        made: list[Prompt] = []
        for row in rows:
            try:
                made += samples(row, mask)
            except ValueError as error:
                raise UserError(f"tl-training: the row {row.id} cannot be read: {error}") from None
        splits[split] = tuple(made)
    if not any(gold_calls(p) for p in splits["train"]):
        raise UserError(
            f"tl-training learns from logged calls, and no turn of {env.name} makes one that a tool answered; give a file of messages "
            "with tool_calls and tools, or of question, tools and answer: a list with one call"
        )
    return DataEnvironment(f"{env.name}-turns", splits, right_call)


# ---- what a call is worth


def as_text(call: GoldCall) -> str:
    """name(key='value', other=3)"""
    return f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"


def read_call(text: str) -> GoldCall | None:
    """The call that a turn is, a Python call with values by name; None for anything else. Nothing is run."""
    said = text[thought_of(text).answer :].strip()
    try:
        node = ast.parse(said, mode="eval").body if len(said) <= _LONGEST else None
        if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
            return None
        given = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        return GoldCall(ast.unparse(node.func), given) if len(given) == len(node.keywords) else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


@reward(title="Graded tool error", paper=PAPER, system="tl-training")
def graded_call(prompt: Prompt, text: str, quoted: bool = False) -> float:
    """Graded tool error (TL-Training): a call is worth more the nearer it is to the gold one.

    1 exact;  -0.25 other values;  -0.5 an argument too few or too many;  -0.8 an argument that the tool does not have;  -1 too few and too
    many;  -1.3 one that the tool does not have and another fault;  -1.8 all three;  -1.5 another tool;  -2 a tool that is not listed, no call
    quoted: arguments are compared only where their value is a text, as the released code's are.
    """
    said, (gold,), tools = read_call(text), gold_calls(prompt), prompt.info["tool_parameters"]
    if said is None or said.name not in tools:
        return -2.0
    if said.name != gold.name:
        return -1.5
    got, want = (_texts(c.arguments) if quoted else c.arguments for c in (said, gold))
    known = set(tools[gold.name])
    unknown, extra = bool(known) and not set(got) <= known, any(k in known and k not in want for k in got)
    missing = not set(want) <= set(got)
    if unknown:
        return -1.8 if extra and missing else -1.3 if extra or missing else -0.8
    if extra or missing:
        return -1.0 if extra and missing else -0.5
    return 1.0 if got == want else -0.25


@reward(title="The call that was logged", system="tl-training")
def right_call(prompt: Prompt, text: str) -> float:
    """The call that was logged: 1 where a turn is the gold call; where a text is wanted, 1 for that text."""
    return float(graded_call(prompt, text) == 1.0) if gold_calls(prompt) else float(text.strip() == prompt.answer)


def _texts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in arguments.items() if isinstance(v, str)}


def validate() -> list[str]:
    """The gold call passes in any order of its arguments; another value, another tool and no call do not."""
    info = {"tool_parameters": {"add": ["a", "b", "c"], "now": []}}
    prompt = Prompt("call", (), '[{"name": "add", "arguments": {"a": 1, "b": "x"}}]', info)
    good = "add(b='x', a=1)"
    return problems(graded_call, [(prompt, good, bad) for bad in ("add(a=2, b='x')", "now()", "add(1, 'x')", "sum")])


# ---- tokens that decide the tool


def key_places(own: Sequence[int], others: Iterable[Sequence[int]]) -> list[int]:
    """The first token of a call, and each token at which it leaves another tool's name that begins the same."""
    return sorted({0, *(next((i for i, (a, b) in enumerate(zip(own, o, strict=False)) if a != b), 0) for o in others)})


def key_weights(length: int, places: Sequence[int], most: float = 9.0) -> Tensor:
    """w = min(others / keys, most) at the key tokens where they are fewer than the others, 1 elsewhere; their mean is 1.

    L = sum_t w_t l_t / sum_t w_t, as a mean over the tokens of w_t / mean(w) times l_t
    """
    weight_T, keys = torch.ones(length), len(places)
    if keys and keys < length - keys:
        weight_T[list(places)] = min((length - keys) / keys, most)
    return weight_T / weight_T.mean()


@rollout(name="key_tokens", title="Key tokens (TL-Training)", paper=PAPER, system="tl-training", data="demonstrations")
def weighed(ask: RolloutRequest, most: float = 9.0) -> list[Group]:
    """Key tokens (TL-Training): the logged turn, with the tokens weighed that tell its tool from the others that are listed."""
    groups = []
    for p in ask.prompts:
        made = ask.policy.written(p, p.info["demonstration"])
        calls, weight_T = gold_calls(p), torch.ones(len(made))
        if calls:
            own, rest = made.actions.tolist(), [n for n in p.info["tool_parameters"] if n != calls[0].name]
            weight_T = key_weights(
                len(made), key_places(own, [ask.policy.written(p, f"{n}()").actions.tolist() for n in rest]), most
            )
        made.set_stream("reward", weight_T)
        made.reward = 0.0
        groups.append(Group(p, [made]))
    return groups


@supervised_loss(name="weighed_tokens", title="Weighed tokens (TL-Training)", paper=PAPER, base="sft", system="tl-training",
                 reads=("reward_BT",))  # fmt: skip
def weighed_tokens(batch: Batch) -> Tensor:
    """Weighed tokens (TL-Training): maximum likelihood in which each token counts as much as its weight, which is its reward here.

    L = -w log pi
    """
    return -torch.where(batch.mask_BT > 0, batch["reward_BT"], 0.0) * batch.logp_BT


# ---- the plan


def turns(mask: bool, calls: bool = False) -> Callable[[Context], DataEnvironment]:
    """The task by turns; calls: only those that call, for RL."""

    def env(context: Context) -> DataEnvironment:
        made = by_turn(asked_task(context), mask)
        kept = {s: tuple(p for p in ps if not calls or gold_calls(p)) for s, ps in made.splits.items()}
        return replace(made, splits=kept)

    return env


@plan(paper=PAPER, title="TL-Training", uses=("task",))
def tl_training(
    sft_passes: float = 1.0, ppo_passes: float = 3.0, mask: bool = True, most: float = 9.0, kl: float = 0.4, graded: bool = True,
    quoted: bool = False,
) -> Plan:  # fmt: skip
    """TL-Training: SFT on logged calls without those that failed and with weight on the tokens that decide the tool, then PPO on errors.

    SFT: L = sum w l / sum w;  w = min(others / keys, most) at the first token of the tool's name and wherever it leaves another tool's name
    PPO: R = 1 for the gold call, -0.25 to -2 by what is wrong;  r_t = R at the end - kl KL;  GAE gamma 1, lambda 0.95, clip 0.2
    Rows: messages with tool_calls, results (role tool) and tools; or question, tools and answer, a list with one call. Every turn of the
    assistant is a sample; turns whose result tells of an error are seen and not learned (mask). A call is written name(key='value').
    sft_passes, ppo_passes: over the samples, 0 for none. graded=False: 1 for the gold call, else -2.

    Departures: the paper trains CodeLLaMA-2-7B at 1e-6 (SFT), 2e-7 and 1e-7 (PPO, critic) on 1,217 rows; here one rate chosen from the size
    (`--lr`), the critic's half of it. Its script decodes greedily in PPO, which leaves nothing to compare; here answers are sampled. It says 0.3
    for the KL and its trainer has 0.4. Its reward reads only arguments written key='value' (`--plan.quoted True`); here all. Its count of other
    tokens leaves out the last token of each value. Results are told as a user's "Output: ...". Advantages are not whitened, as there.
    """
    if min(sft_passes, ppo_passes) < 0 or sft_passes + ppo_passes == 0 or most < 1 or kl < 0:
        raise UserError(
            f"got sft_passes={sft_passes}, ppo_passes={ppo_passes}, most={most}, kl={kl}; one of the passes is above 0, most at least 1, kl 0 or more"
        )
    imitate = sft.but(
        name="tl-sft",
        rollout=weighed.but(most=most),
        loss=weighed_tokens,
        aggregate=sequence_mean,
        doc=__doc__,
        paper=PAPER,
    )
    learn = ppo.but(
        name="tl-ppo", doc=__doc__, paper=PAPER, rollout=sample.but(n=1), shaping=kl_in_reward.but(coef=kl), epochs=1, minibatches=1,
        advantage="gae(whiten=False)", critic=CriticSettings(pace=0.5),
    )  # fmt: skip

    def rewards(context: Context) -> RewardSum:
        worth = graded_call.but(quoted=quoted)
        paid = worth if graded else lambda prompt, text: 1.0 if worth(prompt, text) == 1.0 else -2.0
        return RewardSum([("call", paid, 1.0)], context.config.reward_timeout)

    every, calls = turns(mask), turns(mask, calls=True)
    first = Phase("sft", imitate, epochs_of(every, sft_passes), every, rewards=written, measured=True)
    second = Phase("ppo", learn, epochs_of(calls, ppo_passes), calls, rewards=rewards, measured=True)
    parts = (*((first,) if sft_passes else ()), *((second,) if ppo_passes else ()))

    def ready(context: Context) -> None:
        every(context)

    return Plan(parts, ready=ready)
