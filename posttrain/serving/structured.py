"""Answers of a given form: JSON that a schema accepts, or a call of a tool, by masks over the tokens that may come next.

The masks are those of llguidance (`pip install "posttrain[structured]"`), which parses along as tokens are drawn.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posttrain.serving.limits import ApiError

if TYPE_CHECKING:
    from posttrain.policies.language import LanguagePolicy

INSTALL = 'pip install "posttrain[structured]"'
WHITESPACE = (
    r"( |\n {0,24})?"  # between the parts of JSON: enough to indent, not enough for a poor model to be lost in it
)
WORDS = 32  # tokens per word of a mask


class Grammars:
    """Makes constraints for one policy; the tokenizer is prepared once, when the first is made."""

    def __init__(self, policy: LanguagePolicy, vocab_size: int) -> None:
        self.policy, self.vocab_size = policy, vocab_size
        self._tokenizer: Any = None
        self._lock = threading.Lock()

    def of_schema(self, schema: dict[str, Any], param: str = "response_format") -> Grammar:
        """JSON that a schema accepts, and nothing else."""
        return self.of_text("", schema, "", param)

    def of_text(self, before: str, schema: dict[str, Any], after: str, param: str) -> Grammar:
        """The same between two fixed texts."""
        inner = json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})
        parts = " ".join(
            json.dumps(text) if text is not None else "body" for text in (before, None, after) if text != ""
        )
        return self._compiled(
            library(param).LLMatcher.grammar_from_lark(f"start: {parts}\nbody: %json {inner}\n"), param
        )

    def _compiled(self, grammar: str, param: str) -> Grammar:
        matcher = library(param).LLMatcher(
            self.tokenizer(param), grammar, log_level=0
        )  # a wrong grammar raises nothing
        if matcher.is_error():
            told = " ".join(str(matcher.get_error()).split()).split(" 1 | start: ")[
                0
            ]  # without the text of the grammar,
            told = told.rpartition("failed to compile JSON schema: ")[2][:200]  # and where in it
            raise ApiError(400, f"no answer can be held to this schema: {told}", param, "unsupported_schema")
        return Grammar(matcher, self.policy.stop_ids)

    def tokenizer(self, param: str) -> Any:
        with self._lock:
            if self._tokenizer is None:
                library(param)
                from llguidance.hf import from_tokenizer

                try:
                    made = from_tokenizer(self.policy.tokenizer, self.vocab_size, self.policy.stop_ids)
                except Exception as error:  # a tokenizer that is not one of the tokenizers library
                    told = f"this model's tokenizer cannot be used for structured answers: {str(error)[:200]}"
                    raise ApiError(400, told, param) from None
                self._tokenizer = made
            return self._tokenizer


class Grammar:
    """A grammar ready for use; `constraint()` gives a fresh one for each answer."""

    def __init__(self, matcher: Any, stop_ids: list[int]) -> None:
        self.matcher, self.stop_ids = matcher, stop_ids

    def constraint(self) -> GrammarConstraint:
        return GrammarConstraint(self.matcher.deep_copy(), self.stop_ids)


class GrammarConstraint:
    """Where one answer stands in its grammar. An answer that the library gives up on (its limits on time) is ended, with `error`."""

    def __init__(self, matcher: Any, stop_ids: list[int]) -> None:
        self.matcher, self.stop_ids = matcher, stop_ids
        self.accepted, self.error = 0, ""

    def accept(self, token: int) -> None:
        self.accepted += 1
        if self.error or token in self.stop_ids:
            return
        try:
            self.error = "" if self.matcher.consume_token(token) else str(self.matcher.get_error())
        except BaseException as error:  # a panic of the library is no Exception; it must not end the model's thread
            self.error = f"{type(error).__name__}: {error}"

    def fill(self, row: NDArray[np.int32]) -> None:
        if not self.error:
            try:
                bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.int32)
                self.error = str(self.matcher.get_error())
                row[: len(bits)] = 0 if self.error else bits[: len(row)]
            except BaseException as error:
                self.error = f"{type(error).__name__}: {error}"
        if self.error or not row.any():
            self.error = self.error or "no token may come next"
            for token in self.stop_ids:
                row.view(np.uint32)[token // WORDS] |= np.uint32(1 << token % WORDS)


def library(param: str) -> Any:
    """llguidance; a clear answer where it is not installed."""
    try:
        import llguidance
    except ImportError:
        told = f"this server has no library for structured answers, which this request needs; install it: {INSTALL}"
        raise ApiError(400, told, param, "unsupported_parameter") from None
    return llguidance
