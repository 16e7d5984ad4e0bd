"""The sampling half of a language policy: answers from the weights as they are, one engine call for many of them.

Where several processes work on one run, the contexts are cut into pieces that do not depend on how many there are, each process samples its
share, and all get all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posttrain.core.acting import Actor
from posttrain.core.protocols import Finished
from posttrain.core.ranks import Ranks, dealt, ranks
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn, join
from posttrain.core.types import Prompt, Rollout
from posttrain.inference.attention import heads_fit
from posttrain.inference.engine import Engine
from posttrain.inference.jobs import nobody
from posttrain.inference.stop_strings import cut, finder
from posttrain.models.decoder import Decoder
from posttrain.models.four_bit import FourBit
from posttrain.models.layout import stacked
from posttrain.models.rows import Whole
from posttrain.models.sampling import Sample, generate
from posttrain.policies.continued import among, grown
from posttrain.policies.engine_turns import EngineTurns
from posttrain.policies.window import check_ids, no_room, room_for, vocabulary

Contexts = Sequence[Sequence[Turn]]
Keys = Sequence[Sequence[int]]


class Samples(Actor, nn.Module):
    """`sample` and `act` of a language model."""

    model: nn.Module

    if TYPE_CHECKING:  # what the other half has

        def decode(self, tokens: Tensor) -> str: ...
        def decode_all(self, many: Sequence[Tensor]) -> list[str]: ...
        def lead(self, prompt: Prompt) -> str: ...
        @property
        def device(self) -> torch.device: ...
        @property
        def window(self) -> int: ...
        @property
        def stop_ids(self) -> list[int]: ...

    whole: Whole | None = None  # a copy that samples, where the weights are in rows over several processes
    outside: Any = None  # an engine that is not ours (policies/vllm), where --engine names one
    _native: Any = None
    _finished: Callable[[int, int, Tensor], None] | None = None  # of a context and an answer

    tells_finished = True  # `sample` can tell of each answer as it ends

    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0,
        finished: Finished | None = None,
    ) -> list[list[Rollout]]:  # fmt: skip
        """n answers of one turn to each prompt; `finished` is called with each as it ends."""
        if finished is not None:
            leads, tell = [self.lead(p) for p in prompts], finished
            self._finished = lambda g, i, tokens: tell(prompts[g], i, lambda: leads[g] + self.decode(tokens))
        try:
            return super().sample(prompts, n, how, seed, step)
        finally:
            self._finished = None

    def act(self, pending: Contexts, keys: Keys, how: Sampling, version: int = 0, chunk: int = 512) -> list[list[Turn]]:
        """For each context, one way to go on per key; a context is read once for all of them. Where the window has less room than
        an answer may take, the answer is cut off there."""
        here = ranks()
        if here.world > 1 or here.shards > 1:
            _ = self.acting  # rows are gathered by all processes, also by one that has nothing to sample
            return divided(here, len(pending), lambda part: self._act(pending[part], keys[part], how, version, chunk))
        return self._act(pending, keys, how, version, chunk)

    def _act(self, pending: Contexts, keys: Keys, how: Sampling, version: int, chunk: int = 512) -> list[list[Turn]]:
        rows = [join(turns) for turns in pending]
        check_ids([t.observation for turns in pending for t in turns], vocabulary(self.model))
        room = room_for(rows, self.longest) if self.longest else []
        if room and min(room) < how.max_tokens:
            return self._within(pending, keys, how, room, version)
        was, out = self.training, []
        self.eval()
        engine = None if any(r.observation.streams for r in rows) else self._engine()
        per_call = max(1, len(rows) if engine else chunk // max(max(map(len, keys), default=1), 1))
        for start in range(0, len(rows), per_call):
            part = slice(start, start + per_call)
            heard = self._finished
            if heard is not None and start:
                heard = partial(among, heard, range(start, len(rows)))
            made = self._generate(engine, rows[part], keys[part], how, heard)
            begun = [turns[-1] for turns in pending[part]]
            whole = [
                torch.cat([t.actions, s.tokens]) if len(t) else s.tokens
                for t, ss in zip(begun, made, strict=True)
                for s in ss
            ]
            texts = iter(zip(whole, self.decode_all(whole), strict=True))
            out += [[grown(t, s, *next(texts), version) for s in ss] for t, ss in zip(begun, made, strict=True)]
        self.train(was)
        return out

    def _within(self, pending: Contexts, keys: Keys, how: Sampling, room: list[int], version: int) -> list[list[Turn]]:
        """The same where some contexts have less room than an answer may take: those are sampled apart, each up to the window.
        Draws belong to keys, so nothing else changes."""
        if min(room) < 1:
            raise no_room(self.longest - min(room), self.longest)
        made, heard = dict[int, list[Turn]](), self._finished
        for left in sorted({min(x, how.max_tokens) for x in room}):
            mine = [i for i, x in enumerate(room) if min(x, how.max_tokens) == left]
            self._finished = partial(among, heard, mine) if heard else None
            some = self._act(
                [pending[i] for i in mine], [keys[i] for i in mine], replace(how, max_tokens=left), version
            )
            made |= zip(mine, some, strict=True)
        self._finished = heard
        return [made[i] for i in range(len(pending))]

    def _generate(
        self, engine: Any, rows: Sequence[Turn], keys: Sequence[Sequence[int]], how: Sampling, finished: Any = None
    ) -> list[list[Sample]]:
        contexts = [torch.cat([r.observation.tokens, r.actions]) if len(r) else r.observation.tokens for r in rows]
        stops = how.stops
        if engine is not None:
            engine.finished = finished or nobody
            ours = stops and engine is not self.outside
            ends = {"find_stop": finder(self.decode, stops)} if ours else {}
            made: list[list[Sample]] = engine.generate(contexts, keys, how, self.stop_ids, **ends)
            return made if ours or not stops else self._cut(made, stops)
        seen = stacked([r.observation for r in rows], self.device)
        told = None if stops else finished  # whoever is told early would be told too much
        made = generate(self.acting, contexts, keys, how, self.stop_ids, seen, told)
        return self._cut(made, stops) if stops else made

    def _cut(self, made: list[list[Sample]], stops: Sequence[str]) -> list[list[Sample]]:
        return [[cut(s, self.decode, stops) for s in some] for some in made]

    @property
    def acting(self) -> Any:
        """The model that samples: the one that is trained, or a whole copy of it where that one is in rows over several processes."""
        return self.model if self.whole is None else self.whole.model()

    @property
    def longest(self) -> int:
        """Positions that can be sampled: the model's, or fewer where an engine outside was started with fewer; 0: nobody says."""
        told = [n for n in (self.window, getattr(self.outside, "window", 0)) if n]
        return min(told, default=0)

    def _engine(self, turns: bool = False) -> Any:
        """The native engine where it pays: our decoder on a GPU, for conversations, or with packed weights, which it unpacks once a call
        and not at every token. Made once; it reads the live weights. None while conversations are in progress in it. One outside takes
        its place, but for conversations, which are asked turn by turn then."""
        if self.outside is not None:
            return None if turns else self.outside
        model = self.acting
        on_gpu = self.device.type == "cuda"
        pays = heads_fit(model.config.head_dim) if on_gpu and isinstance(model, Decoder) else not on_gpu
        if not isinstance(model, Decoder) or not pays:
            return None
        if not on_gpu and not turns and not any(isinstance(m, FourBit) for m in model.modules()):
            return None
        if self._native is None or self._native.model is not model:
            self._native = Engine(model)
        return None if self._native.lent else self._native

    def turns(self, how: Sampling, version: int, count: int) -> EngineTurns | None:
        """Turns of up to `count` conversations at a time, whose contexts are read once; None where this model is not sampled by the engine,
        where several processes share the work, or where `act` is not this one."""
        here = ranks()
        own = type(self).act is not Samples.act or "act" in vars(self)
        engine = None if own or here.world > 1 or here.shards > 1 else self._engine(turns=True)
        return None if engine is None else EngineTurns(self, engine, how, version, count)


def divided(here: Ranks, count: int, act: Callable[[slice], list[list[Turn]]]) -> list[list[Turn]]:
    """The contexts in pieces whose number is a setting, dealt out to the processes; all of them get the turns of all."""
    step = -(-count // here.shards) or 1
    pieces = [slice(i, min(i + step, count)) for i in range(0, count, step)]
    mine = dealt([float(p.stop - p.start) for p in pieces], here.world)[here.rank]
    made = here.gather([(i, act(pieces[i])) for i in mine])
    done = dict(pair for some in made for pair in some)
    return [turns for i in range(len(pieces)) for turns in done[i]]
