"""A language model as the judge, behind any OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.registry import scorer
from posttrain.policies.chat_api import ChatAPI, NoReply, base_url
from posttrain.rewards.runtime.outcome import MOST
from posttrain.rewards.runtime.timeout_pool import Failure
from posttrain.rewards.scorers.judge_cache import JudgeCache, default_folder, key_of
from posttrain.rewards.scorers.judging import RUBRIC, Criterion
from posttrain.rewards.scorers.word_judge import MODES, WordJudge

WARM = 1.0  # the temperature at which something is asked for again, whatever it was before


@scorer(title="Judge by URL", paper="arXiv:2306.05685")
class Judge(WordJudge):
    """Judge by URL: a model behind an OpenAI-compatible API grades each answer, or says which of two siblings is better.

    judge(url='http://127.0.0.1:8000/v1', rubric='Is it polite?')   points from low to high, as a reward from 0 to 1
    judge(url=..., mode='pairs')                                    the share of its siblings that an answer beats
    Pairs are asked in both orders and averaged. An answer without a readable verdict is asked for `again` times, then masked and
    counted. Judgements are kept on disk by content (cache='FOLDER'; 'none': in memory). key_env names the variable that holds
    the API key; reference=True shows the gold answer; name='polite' names its number where there are several judges. At most
    `concurrency` requests at once and `rate` per second (0: no limit). Plans that judge ask it in their own words (rubric, points).
    """

    def __init__(
        self, url: str = "", model: str = "", rubric: str = RUBRIC, mode: str = "points", low: float = 0.0,
        high: float = 10.0, reference: bool = False, temperature: float = 0.0, max_tokens: int = 256, key_env: str = "",
        concurrency: int = 8, rate: float = 0.0, retries: int = 4, timeout: float = 120.0, cache: str = "",
        name: str = "judge", again: int = 0,
    ) -> None:  # fmt: skip
        if mode not in MODES:
            raise unknown("mode of a judge", mode, MODES)
        if not url:
            raise UserError(
                "a judge needs an address: judge(url='http://127.0.0.1:8000/v1', rubric='...'); a model in a folder judges as "
                "model_judge(folder='FOLDER')"
            )
        if not low < high or high - low > MOST:
            raise UserError(f"a judge's low is {low:g} and its high {high:g}; low must be less, by at most {MOST:g}")
        self.api = ChatAPI(base_url(url), model, key_env, concurrency, rate, retries, timeout)
        self.mode, self.criterion, self.again = mode, Criterion(rubric, "", low, high, reference), max(again, 0)
        self.how = {"temperature": temperature, "max_tokens": max_tokens}
        self.cache = JudgeCache(None if cache == "none" else Path(cache) if cache else default_folder())
        self.called, self.reported = name, (name,)
        self.cached = 0
        self._counted: dict[str, float] = {}

    def said(self, questions: Sequence[str], system: str, attempt: int = 0) -> list[str | Failure]:
        """The judge's words for each question: from the cache, else asked once however often it comes."""
        if not self.api.model:
            self.api.choose_model()
        bodies = [self.body(q, system, attempt) for q in questions]
        keys = [key_of(self.api.url, b, attempt) for b in bodies]
        known = self.cache.get(list(dict.fromkeys(keys)))
        new = {k: b for k, b in zip(keys, bodies, strict=True) if k not in known}
        self.cached += len(keys) - len(new)
        replies = dict(zip(new, self.api.ask(list(new.values())), strict=True))
        fresh = {k: r.text for k, r in replies.items() if not isinstance(r, NoReply)}
        self.cache.put(fresh)
        lost = {k: Failure("raised", r.why) for k, r in replies.items() if isinstance(r, NoReply)}
        told: dict[str, str | Failure] = {**known, **fresh, **lost}
        return [told[k] for k in keys]

    def body(self, question: str, system: str, attempt: int = 0) -> dict[str, Any]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return {"model": self.api.model, "messages": messages, **self.how, **({"temperature": WARM} if attempt else {})}

    def counts(self) -> dict[str, float]:
        """Since it was last asked: questions, requests sent, judgements from the cache, requests given up, tokens of both kinds."""
        now = {
            "requests": float(self.api.requests), "cached": float(self.cached), "gave_up": float(self.api.failed),
            "prompt_tokens": float(self.api.prompt_tokens), "tokens": float(self.api.tokens),
        }  # fmt: skip
        since = {k: v - self._counted.get(k, 0.0) for k, v in now.items()}
        self._counted = now
        return super().counts() | since
