"""Episodes: the policy acts and the environment replies, turn by turn, many episodes at a time.

While an environment works on its reply, turns of other episodes are sampled. When more than a share of the episodes (`Limits.overlap`) wait
for replies, or nothing is left to sample, those that have waited longest go on, in the order in which their turns ended; a reply that is not
there by then is waited for by all. So what is sampled beside what depends on the number of turns and of tokens alone, never on the clock,
and a run is a function of its seed. With `Limits.free` an episode goes on as soon as its reply is there: faster where replies take very
different times, and not reproducible, because the last bits of a sum depend on what is computed beside it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from posttrain.core import rng
from posttrain.core.adopt import adopt_episode
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Policy, RolloutRequest, Step
from posttrain.core.ranks import ranks
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import STOPS, End, Group, Message, Prompt, Rollout
from posttrain.rollouts.reply import Talk
from posttrain.rollouts.turn_sampler import Samplers


@dataclass
class Playing:
    """An episode in progress: which role moves, the turns of every role, the next observation."""

    prompt: Prompt
    index: int
    talk: Talk
    role: str
    seen: Observation
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)  # who made each turn, of all roles, in order of time
    stop: str = ""
    info: dict[str, object] = field(default_factory=dict)
    owed: dict[str, float] = field(default_factory=dict)  # earned by roles that have not moved
    reply: asyncio.Task[Step] | None = None  # being made by the environment

    def pending(self) -> list[Turn]:
        """The mover's turns so far, and the one to be made."""
        mine = self.turns.get(self.role, [])
        return [*mine, Turn.empty(self.seen, continues=bool(mine))]


def episodes(ask: RolloutRequest, n: int = 8, max_turns: int = 0) -> list[Group]:
    """n episodes of each prompt, each a rollout of every role that moved in it; max_turns: 0 as the environment's limits say."""
    with opened(ask, [(p, i, None) for p in ask.prompts for i in range(n)]) as playing:
        for x, seen in zip(playing, ranks().from_lead([x.seen for x in playing]), strict=True):
            x.seen = seen
        play = Play(ask, playing, max_turns or ask.env.limits.turns)
        try:
            in_a_loop(play.run())
        finally:
            play.samplers.close()
    broken = [x for x in playing if x.stop == "broken"]
    if broken and len(broken) == len(playing) and ask.step == 0:
        raise UserError(f"the environment failed in every episode: {broken[0].info['error']}")
    made = [rollouts_of(x) for x in playing]
    return [Group(p, [r for some in made[k * n : (k + 1) * n] for r in some]) for k, p in enumerate(ask.prompts)]


def in_a_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run it in an event loop of its own; in a thread where one runs here already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    failed: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


class Play:
    """Episodes until all have ended."""

    def __init__(self, ask: RolloutRequest, playing: Sequence[Playing], max_turns: int) -> None:
        self.ask, self.playing, self.max_turns, self.limits = ask, playing, max_turns, ask.env.limits
        self.samplers = Samplers(ask, len(playing))
        self.waiting: list[int] = []  # places of episodes whose turn has ended, in that order
        self.free = self.limits.free and ranks().world == 1

    async def run(self) -> None:
        for place, x in enumerate(self.playing):
            self.move(place, x)
        try:
            while self.samplers.busy or self.waiting:
                if self.samplers.busy:
                    self.sample()
                    await asyncio.sleep(0)  # replies go on between two steps
                await self.go_on()
        finally:  # where something failed: nobody waits for the others
            left = [x.reply for x in self.playing if x.reply]
            for reply in left:
                reply.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def sample(self) -> None:
        """Sample for a while; environments get the turns that have ended."""
        for (place, _), turn in self.samplers.step():
            x = self.playing[place]
            x.turns.setdefault(x.role, []).append(turn)
            x.moves.append(x.role)
            x.reply = asyncio.ensure_future(x.talk.reply(turn, len(x.moves)))
            self.waiting.append(place)

    async def go_on(self) -> None:
        """Take the replies of the episodes whose time has come, and let them move."""
        ready = await self.replied() if self.free else self.waiting[: self.due()]
        if not ready:
            return
        # a tool may answer each process otherwise, so all take what the first one got
        steps = ranks().from_lead([await reply for place in ready if (reply := self.playing[place].reply)])
        if self.ask.replies is not None:
            self.ask.replies.flush()
        self.waiting = [place for place in self.waiting if place not in set(ready)]
        for place, step in zip(ready, steps, strict=True):
            x = self.playing[place]
            x.reply = None
            take(self.ask, x, step, self.max_turns)
            self.move(place, x)

    def due(self) -> int:
        """How many of those that wait go on now. A few at a time cost little more than one, so it is an eighth of all at least."""
        waiting, live = len(self.waiting), sum(not x.stop for x in self.playing)
        if not self.samplers.busy:
            return waiting
        more = waiting - int(self.limits.overlap * live)
        return max(more, -(-live // 8)) if more > 0 else 0

    async def replied(self) -> list[int]:
        """Those whose reply is there; where nothing is left to sample, the first ones."""
        replies = [reply for place in self.waiting if (reply := self.playing[place].reply)]
        if replies and not self.samplers.busy:
            await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)
        return [place for place, reply in zip(self.waiting, replies, strict=True) if reply.done()]

    def move(self, place: int, x: Playing) -> None:
        """Ask for the next turn; the first one draws what a single answer would."""
        if not x.stop and fits(self.ask, x):
            key = rng.key(self.ask.seed, self.ask.step, x.prompt.id, x.index, *([len(x.moves)] if len(x.moves) else []))
            self.samplers.ask(policy_of(self.ask, x.role), (place, x.role), x.pending(), key)
        else:
            self.samplers.end([(place, role) for role in x.turns])


@contextmanager
def opened(ask: RolloutRequest, wanted: Iterable[tuple[Prompt, int, int | None]]) -> Iterator[list[Playing]]:
    """Episodes of prompts, each with its index and the key that its environment draws from; whatever happens, each is closed."""
    playing: list[Playing] = []
    times: Counter[str] = Counter()
    try:
        for prompt, index, key in wanted:
            x = begin(ask, prompt, index, key)
            playing.append(x)
            before = times[x.talk.name]
            times[x.talk.name] += 1
            if before:  # a prompt that comes twice says the same twice; what is replied to it need not be the same
                x.talk.name += f"\0again {before}"
        yield playing
    finally:
        for x in playing:
            if not x.stop:
                end(x)


def begin(ask: RolloutRequest, prompt: Prompt, index: int, key: int | None = None) -> Playing:
    """Open an episode; its environment draws from a key of its own, or from the one that is given."""
    key = rng.key(ask.seed, ask.step, prompt.id, index, "episode") if key is None else key
    role = ask.env.first_role(prompt)
    try:
        made = ask.env.open(prompt, key)
        if made is None:
            raise UserError(f"{ask.env.name}.open gave no episode for the prompt {prompt.id!r}")
        episode = adopt_episode(made, ask.env.name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise could_not_begin(ask, prompt, error) from error
    try:
        seen = episode.start()
        if not isinstance(seen, Observation | None):
            raise UserError(f"{type(made).__name__}.start gave {type(seen).__name__}, expected an Observation or None")
        first = policy_of(ask, role).observe(prompt) if seen is None else seen
    except BaseException as error:
        with suppress(Exception):
            episode.close()
        if isinstance(error, UserError | KeyboardInterrupt):
            raise
        raise could_not_begin(ask, prompt, error) from error
    return Playing(prompt, index, Talk(ask, episode, f"{prompt.id}\0{index}"), role, first)


def could_not_begin(ask: RolloutRequest, prompt: Prompt, error: BaseException) -> UserError:
    told = f"{type(error).__name__}: {error}"
    return UserError(f"{ask.env.name} could not begin an episode of the prompt {prompt.id!r}: {told}")


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


def policy_of(ask: RolloutRequest, role: str) -> Policy:
    """The policy that plays a role; where there is only one, it plays all."""
    if role in ask.policies:
        return ask.policies[role]
    if len(ask.policies) > 1:
        raise UserError(f"no policy plays the role {role!r}; there are: {', '.join(ask.policies)}")
    return ask.policy


def take(ask: RolloutRequest, x: Playing, step: Step, max_turns: int) -> None:
    """What a reply does to an episode: rewards, the next observation, the end."""
    turn = x.turns[x.role][-1]
    turn.reward = step.reward
    pay(ask, x, step.rewards)
    x.info |= step.info
    if step.messages is None:
        x.stop = step.stop
    elif not turn.stopped:
        x.stop = "length"
    elif len(x.moves) >= max_turns:
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
        x.talk.episode.close()
    except (Exception, SystemExit) as error:
        x.info["close_failed"] = f"{type(error).__name__}: {error}"


def observed(ask: RolloutRequest, x: Playing, step: Step) -> Observation:
    """What the next mover sees: an observation as it is, or messages as that role's policy reads them."""
    if isinstance(step.messages, Observation):
        return step.messages
    messages: list[Message] = list(step.messages or ())
    policy, mine = policy_of(ask, step.role), x.turns.get(step.role, [])
    return policy.extend(mine, messages) if mine else policy.observe(Prompt(x.prompt.id, tuple(messages)))


def rollouts_of(x: Playing) -> list[Rollout]:
    """A rollout of every role, with what its turns were paid (the outcome adds 0); of several, `info["order"]` has when each of its turns was."""
    how = STOPS[x.stop]
    worth = None if how is End.ENV_ERROR else 0.0
    order = {
        role: {"order": [k for k, who in enumerate(x.moves) if who == role]} for role in x.turns if len(x.turns) > 1
    }
    return [
        Rollout(x.prompt, turns, how, x.stop, index=x.index, role=role, reward=worth, info=x.info | order.get(role, {}))
        for role, turns in x.turns.items()
    ]
