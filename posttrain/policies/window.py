"""How many positions a model has, and whether what is to be read and written fits: nothing is sampled or trained beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Prompt
from posttrain.policies.tool_use import are_schemas


def positions(model: Any) -> int:
    """The longest sequence that a model was made for; 0 where it does not say."""
    config: Any = getattr(model, "config", None)
    own = getattr(config, "max_positions", None)
    if own is not None:
        return int(own)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    stretched = rope.get("factor", 1.0) if found and rope.get("original_max_position_embeddings") == found else 1.0
    return int((found or 0) * stretched)


def vocabulary(model: Any) -> int:
    """How many token ids a model has an embedding for; 0 where it does not say."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(getattr(config, "vocab_size", 0) or 0)


def check_ids(seen: Sequence[Observation], size: int) -> None:
    """Refuse observations with ids that no embedding has: an environment made them for another model."""
    if not size:
        return
    for one in seen:
        if len(one.tokens) and not 0 <= int(one.tokens.min()) <= int(one.tokens.max()) < size:
            bad = one.tokens[(one.tokens < 0) | (one.tokens >= size)][0]
            raise UserError(
                f"an observation holds the token id {int(bad)}, and this model has ids 0 to {size - 1}; an environment that gives "
                "ids of its own must make them with this model's tokenizer, or answer with messages"
            )


def check_rows(rows: Sequence[Turn], window: int) -> None:
    """Refuse to train on rows that are longer than the model has positions."""
    longest = max((len(r.observation.tokens) + len(r) for r in rows), default=0)
    if longest > window > 0:
        raise UserError(
            f"a row of {longest:,} tokens is longer than this model's window of {window:,} positions; leave such rows out, or "
            "use a model with a longer window"
        )


def room_for(pending: Sequence[Turn], window: int) -> list[int]:
    """How many tokens can be sampled after each context before the window is full."""
    return [window - len(row.observation.tokens) - len(row) for row in pending]


def no_room(length: int, window: int) -> UserError:
    return UserError(
        f"a prompt of {length:,} tokens leaves no room for an answer in this model's window of {window:,} positions; shorten it, "
        "or use a model with a longer window"
    )


def token_count(policy: Any, prompt: Prompt, text: str | None = None, limit: int = 0) -> int:
    """Tokens of a prompt, with an answer and its end if one is given. Where the bytes alone say that it is at most `limit`, their
    number, which costs nothing: no token is shorter than a byte."""
    if (most := at_most(policy, prompt, text)) <= limit:
        return most
    answer = 0 if text is None else len(policy.tokenizer(text, add_special_tokens=False)["input_ids"]) + 1
    return len(policy.encode(prompt)) + answer


def at_most(policy: Any, prompt: Prompt, text: str | None = None) -> int:
    """A number of tokens that a prompt, with an answer if one is given, does not exceed; from the bytes alone."""
    tools = _tools(policy, prompt) if are_schemas(prompt.info.get("tools")) else 0
    return _bytes(prompt, text) + len(prompt.content) * _frame(policy) + tools


def _tools(policy: Any, prompt: Prompt) -> int:
    """Tokens that the tools of a prompt take, be it in the template's words or in ours; worked out once for a list of tools."""
    tools, known = prompt.info["tools"], getattr(policy.tokenizer, "_posttrain_tools", None)
    if known is None or known[0] is not tools:
        asked = {"tools": tools, "tool_format": prompt.info.get("tool_format", "auto")}
        known = (tools, len(policy.encode(Prompt.text("tools", "a", **asked))))
        policy.tokenizer._posttrain_tools = known
    return int(known[1])


def _bytes(prompt: Prompt, text: str | None) -> int:
    contents = [m.get("content") for m in prompt.content]
    parts = [p.get("text", "") for c in contents if isinstance(c, (list, tuple)) for p in c if isinstance(p, dict)]
    texts = [c for c in contents if isinstance(c, str)] + parts + ([text] if text else [])
    texts += [str(prompt.info["prefill"])] if prompt.info.get("prefill") else []
    extra = [str(v) for m in prompt.content for k, v in m.items() if k not in ("role", "content")]
    return sum(len(t.encode()) + 1 for t in (*texts, *extra))


def _frame(policy: Any) -> int:
    """Tokens that the chat template adds around one message, with room to spare; worked out once."""
    known = getattr(policy.tokenizer, "_posttrain_frame", None)
    if known is None:
        bare = Prompt.text("frame", "a")
        known = len(policy.encode(bare)) + 8 if getattr(policy.tokenizer, "chat_template", None) else 8
        policy.tokenizer._posttrain_frame = known
    return int(known)
