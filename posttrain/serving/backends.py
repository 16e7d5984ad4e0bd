"""What generates the answers to requests: the native engine, all requests together, or plain sampling, one request at a time."""

from __future__ import annotations

import os
from typing import Any

import torch

from posttrain.inference.engine import Engine
from posttrain.inference.jobs import Job
from posttrain.inference.pages import Pages
from posttrain.models.decoder import Decoder
from posttrain.models.sampling import generate
from posttrain.policies.language import LanguagePolicy
from posttrain.serving.request import Progress, Request
from posttrain.serving.watched import Interrupted, Watched

LENGTH_STEP = 1024  # the engine's positions per slot are a multiple of this


class NativeBackend:
    """The jobs of all requests together in the slots of the native engine."""

    name = "native"

    def __init__(self, policy: LanguagePolicy, slots: int = 0) -> None:
        assert isinstance(policy.model, Decoder)
        self.policy, self.model = policy, policy.model
        self.slots = slots or (64 if policy.device.type == "cuda" else self._slots_that_fit())
        self.engine = Engine(self.model, max_slots=self.slots, prefix_cache=True)
        self.owner: dict[Job, tuple[Request, int]] = {}  # the request of each job, and the job's index in it

    @property
    def max_model_len(self) -> int:
        """The longest sequence, prompt included: what the model was trained for; on a CPU, where every slot's cache is allocated
        in full, at most what a quarter of the memory holds (on a GPU the cache is paged)."""
        trained = self.model.config.max_positions
        if self.policy.device.type == "cuda":
            return trained
        return min(trained, max(LENGTH_STEP, self._positions // self.slots))

    @property
    def _positions(self) -> int:
        """Of the cache, in a quarter of this machine's memory."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return memory // 4 // Pages.bytes_per_page(self.model, 1)

    def _slots_that_fit(self) -> int:
        """As many slots of the model's whole length as there is memory for, 8 to 32: more than that does not make a CPU faster."""
        return min(32, max(8, self._positions // self.model.config.max_positions))

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    def can_admit(self, request: Request, idle: bool) -> bool:
        """Whether it can start now; slots are made longer only while nothing runs."""
        s = self.engine.slots
        if s is not None and request.max_len < min(s.length, s.width):
            return True
        if idle:
            length = (
                -(-(request.max_len + 1) // LENGTH_STEP) * LENGTH_STEP
            )  # few different ones: each reallocates the cache
            self.engine.prepare(self.slots, length, length, self.policy.stop_ids)
        return idle

    def add(self, request: Request) -> None:
        self.owner |= {job: (request, i) for i, job in enumerate(request.jobs)}
        self.engine.waiting.extend(request.jobs)

    def abort(self, request: Request) -> None:
        """Waiting jobs are dropped; running ones end at the next snapshot, as if a stop string were complete."""
        for i, job in enumerate(request.jobs):
            job.find_stop = len
            if job in self.engine.waiting:
                self.engine.waiting.remove(job)
                del self.owner[job]
                request.update({i: Progress([], [], True)})

    def step(self) -> None:
        """One step of the engine; requests get the progress of their jobs."""
        if not self.engine.busy:
            return
        updates: dict[Request, dict[int, Progress]] = {}
        for job in self.engine.step():
            request, i = self.owner.pop(job)
            updates.setdefault(request, {})[i] = Progress(job.tokens.tolist(), job.logp.tolist(), True, job.stopped)
        for job, progress in self._streamed():
            request, i = self.owner[job]
            updates.setdefault(request, {})[i] = progress
        for request, some in updates.items():
            request.update(some)

    def _streamed(self) -> list[tuple[Job, Progress]]:
        """The progress of running jobs, of those whose request streams."""
        table, s = self.engine.table, self.engine.slots
        slots = [i for i in table.running() if self.owner[table.job(i)][0].stream]
        if not slots or s is None:
            return []
        at = torch.tensor(slots, device=s.device)
        counts = s.state.num_generated[at].tolist()
        tokens, logp = (x[at, : max(counts)].cpu() for x in (s.state.tokens, s.state.logp))
        rows = zip(slots, counts, tokens, logp, strict=True)
        return [(table.job(slot), Progress(t[:n].tolist(), p[:n].tolist())) for slot, n, t, p in rows]

    def clear(self) -> None:
        self.owner.clear()
        self.engine.waiting.clear()
        if self.engine.slots is not None:
            self.engine.slots.pages.clear_cache()
            self.engine.clear()


class PlainBackend:
    """One request after another, its tokens told as they come: for models that run through transformers."""

    name = "transformers"

    def __init__(self, policy: LanguagePolicy) -> None:
        self.policy: LanguagePolicy = policy
        self.model: Any = policy.model  # of transformers
        self.current: Request | None = None

    @property
    def max_model_len(self) -> int:
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 1 << 20)

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def can_admit(self, request: Request, idle: bool) -> bool:
        return idle

    def add(self, request: Request) -> None:
        self.current = request

    def abort(self, request: Request) -> None:
        request.update({i: Progress([], [], True) for i in range(len(request.jobs))})
        self.current = None

    def step(self) -> None:
        request, p = self.current, self.policy
        if request is None:
            return
        contexts, keys = [j.context for j in request.jobs], [[j.key] for j in request.jobs]
        watched = Watched(self.model, request.jobs, p.stop_ids, lambda tokens: self._tell(request, tokens))
        try:
            samples = generate(watched, contexts, keys, request.jobs[0].how, p.stop_ids)
        except Interrupted:
            return self.abort(request)
        progress = {}
        for i, (job, (s,)) in enumerate(zip(request.jobs, samples, strict=True)):
            n = job.find_stop(s.tokens) if job.find_stop else 0
            cut = slice(0, n or None)
            progress[i] = Progress(s.tokens[cut].tolist(), s.logp_T[cut].tolist(), True, s.stopped or n > 0)
        self.current = None
        request.update(progress)

    def _tell(self, request: Request, tokens: list[list[int]]) -> None:
        """Progress of a request that streams; the log-probabilities are known once it is done."""
        if request.cancelled:
            raise Interrupted
        if request.stream:
            request.update({i: Progress(list(ids), []) for i, ids in enumerate(tokens)})

    def clear(self) -> None:
        self.current = None
