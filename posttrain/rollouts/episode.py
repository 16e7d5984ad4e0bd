"""Episodes: the policy acts and the environment responds, turn by turn, many episodes at a time.

All episodes take a turn together, so what is sampled when depends on turn counts alone and a run is a function of its seed;
all episodes wait for a slow tool.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.core import rng
from posttrain.core.adopt import adopt_episode
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Episode, Policy, RolloutRequest, Step
from posttrain.core.ranks import ranks
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import STOPS, End, Group, Message, Prompt, Rollout

MAX_TURNS = 64


@dataclass
class Playing:
    """An episode in progress: which role moves, the turns of every role, the next observation."""

    prompt: Prompt
    index: int
    episode: Episode
    role: str
    seen: Observation
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    count: int = 0  # turns so far, of all roles
    stop: str = ""
    info: dict[str, object] = field(default_factory=dict)
    owed: dict[str, float] = field(default_factory=dict)  # earned by roles that have not moved

    def pending(self) -> list[Turn]:
        """The mover's turns so far, and the one to be made."""
        mine = self.turns.get(self.role, [])
        return [*mine, Turn.empty(self.seen, continues=bool(mine))]


def episodes(ask: RolloutRequest, n: int = 8, max_turns: int = MAX_TURNS) -> list[Group]:
    """n episodes of each prompt, each a rollout of every role that moved in it."""
    playing = [begin(ask, p, i) for p in ask.prompts for i in range(n)]
    for x, seen in zip(playing, ranks().from_lead([x.seen for x in playing]), strict=True):
        x.seen = seen
    while going := [x for x in playing if not x.stop and fits(ask, x)]:
        for role in dict.fromkeys(x.role for x in going):
            move(ask, policy_of(ask, role), [x for x in going if x.role == role])
        asyncio.run(answer(ask, going, max_turns))
    broken = [x for x in playing if x.stop == "broken"]
    if broken and len(broken) == len(playing) and ask.step == 0:
        raise UserError(f"the environment failed in every episode: {broken[0].info['error']}")
    made = [rollouts_of(x) for x in playing]
    return [Group(p, [r for some in made[k * n : (k + 1) * n] for r in some]) for k, p in enumerate(ask.prompts)]


def fits(ask: RolloutRequest, x: Playing) -> bool:
    """Whether the mover's context has room for a turn; an episode that outgrows the window ends there, truncated."""
    window = int(getattr(policy_of(ask, x.role), "window", 0))
    length = sum(len(t.observation.tokens) + len(t) for t in x.pending())
    if not window or length < window:  # a turn is cut off where the window ends
        return True
    if not x.turns:
        raise UserError(
            f"the prompt {x.prompt.id!r} has {length:,} tokens, and the model's window {window:,} positions; shorten it, or use a "
            "model with a longer window"
        )
    x.stop = "max_context"
    end(x)
    return False


def begin(ask: RolloutRequest, prompt: Prompt, index: int) -> Playing:
    key = rng.key(ask.seed, ask.step, prompt.id, index, "episode")
    role = ask.env.first_role(prompt)
    try:
        opened = ask.env.open(prompt, key)
        if opened is None:
            raise UserError(f"{ask.env.name}.open gave no episode for the prompt {prompt.id!r}")
        episode = adopt_episode(opened, ask.env.name)
        seen = episode.start()
    except UserError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"{ask.env.name} could not begin an episode of the prompt {prompt.id!r}: {told}") from error
    if not isinstance(seen, Observation | None):
        raise UserError(f"{type(opened).__name__}.start gave {type(seen).__name__}, expected an Observation or None")
    return Playing(prompt, index, episode, role, policy_of(ask, role).observe(prompt) if seen is None else seen)


def policy_of(ask: RolloutRequest, role: str) -> Policy:
    """The policy that plays a role; where there is only one, it plays all."""
    if role in ask.policies:
        return ask.policies[role]
    if len(ask.policies) > 1:
        raise UserError(f"no policy plays the role {role!r}; there are: {', '.join(ask.policies)}")
    return ask.policy


def move(ask: RolloutRequest, policy: Policy, movers: list[Playing]) -> None:
    """One turn in every episode where this role moves; the first turn draws what a single answer would."""
    keys = [[rng.key(ask.seed, ask.step, x.prompt.id, x.index, *([x.count] if x.count else []))] for x in movers]
    version = ask.step if ask.version is None else ask.version
    for x, (turn,) in zip(movers, policy.act([x.pending() for x in movers], keys, ask.sampling, version), strict=True):
        x.turns.setdefault(x.role, []).append(turn)
        x.count += 1


async def answer(ask: RolloutRequest, going: Sequence[Playing], max_turns: int) -> None:
    """Step all environments concurrently; a failure ends its episode, which is masked and counted."""
    steps = ranks().from_lead(
        await asyncio.gather(*(_step(x) for x in going))
    )  # a tool may answer each process otherwise
    for x, step in zip(going, steps, strict=True):
        turn = x.turns[x.role][-1]
        turn.reward = step.reward
        pay(ask, x, step.rewards)
        x.info |= step.info
        if step.messages is None:
            x.stop = step.stop
        elif not turn.stopped:
            x.stop = "length"
        elif x.count >= max_turns:
            x.stop = "max_turns"
        else:
            x.role, x.seen = step.role, observed(ask, x, step)
        if x.stop:
            end(x)


def pay(ask: RolloutRequest, x: Playing, rewards: Mapping[str, float]) -> None:
    """What roles earned, on the last turn of each; one that has not moved yet is paid at its first."""
    for role, worth in (x.owed | {r: x.owed.get(r, 0.0) + w for r, w in rewards.items()}).items():
        if role in x.turns:
            last = x.turns[role][-1]
            last.reward = (last.reward or 0.0) + worth
            x.owed.pop(role, None)
        elif len(ask.policies) > 1 and role not in ask.policies:
            raise unknown("role", role, ask.policies)
        else:
            x.owed[role] = worth


def end(x: Playing) -> None:
    """Let the episode go; it has been played, so a failure here is only noted."""
    try:
        x.episode.close()
    except Exception as error:
        x.info["close_failed"] = f"{type(error).__name__}: {error}"


async def _step(x: Playing) -> Step:
    try:
        said = x.episode.step(x.turns[x.role][-1])
        step = await said if inspect.isawaitable(said) else said
        return checked(step)
    except UserError:
        raise
    except Exception as error:  # the episode is masked and counted
        return Step(None, stop="broken", info={"error": f"{type(error).__name__}: {error}"})


def checked(step: Any) -> Step:
    """The step with plain numbers; one that says what cannot be is a failure of the environment."""
    if not isinstance(step, Step):
        raise TypeError(f"step() gave {type(step).__name__}, expected a Step")
    seen = step.messages
    if isinstance(seen, str | Mapping) or (not isinstance(seen, Observation | None) and not _messages(seen)):
        raise TypeError(
            f'a Step has messages [{{"role": ..., "content": ...}}], an Observation or None, got {seen!r:.80}'
        )
    if seen is None and step.stop not in STOPS:
        raise UserError(f"an episode ended with {step.stop!r}; expected one of {', '.join(STOPS)}")
    if not isinstance(step.info, Mapping) or not isinstance(step.rewards, Mapping):
        raise TypeError(f"rewards and info of a Step are dicts, got {step.rewards!r:.40} and {step.info!r:.40}")
    rewards = {role: number(worth) for role, worth in step.rewards.items()}
    return replace(step, reward=None if step.reward is None else number(step.reward), rewards=rewards)


def _messages(seen: Any) -> bool:
    return isinstance(seen, Sequence) and len(seen) > 0 and all(isinstance(m, dict) and "content" in m for m in seen)


def number(worth: Any) -> float:
    """A reward as a plain number; one that is not finite says nothing about the turn."""
    found = math.nan if isinstance(worth, str) else float(worth)
    if not math.isfinite(found):
        raise TypeError(f"a reward is a finite number, got {worth!r:.80}")
    return found


def observed(ask: RolloutRequest, x: Playing, step: Step) -> Observation:
    """What the next mover sees: an observation as it is, or messages as that role's policy reads them."""
    if isinstance(step.messages, Observation):
        return step.messages
    messages: list[Message] = list(step.messages or ())
    policy, mine = policy_of(ask, step.role), x.turns.get(step.role, [])
    return policy.extend(mine, messages) if mine else policy.observe(Prompt(x.prompt.id, tuple(messages)))


def rollouts_of(x: Playing) -> list[Rollout]:
    """A rollout of every role; what the episode paid is on its turns, so the outcome itself is 0 unless a reward says more."""
    how = STOPS[x.stop]
    worth = None if how is End.ENV_ERROR else 0.0
    return [
        Rollout(x.prompt, turns, how, x.stop, index=x.index, role=role, reward=worth, info=dict(x.info))
        for role, turns in x.turns.items()
    ]
