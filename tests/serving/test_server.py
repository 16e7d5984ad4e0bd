"""The server: the answers of direct sampling, whole or in chunks, alone or among others; errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.inference.stop_strings import RunningText, StopStrings
from posttrain.models.sampling import generate
from posttrain.serving.detokenize import Detokenizer, stable_text
from posttrain.serving.openai import parse_request
from posttrain.serving.server import Server
from tests.serving.serving import SAM, SUM, call, chat, events, said, slow

# ---- answers


def test_greedy_equals_direct_sampling(server: Server, policy: Any) -> None:
    want = policy.sample([Prompt.text("x", SUM)], 1, Sampling(40, temperature=0.0))[0][0]
    answer = chat(server, temperature=0, max_tokens=40, logprobs=True, return_token_ids=True)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": want.text} and choice["finish_reason"] == "stop"
    assert choice["token_ids"] == want.actions.tolist() and answer["prompt_token_ids"] == want.context.tolist()
    entries = choice["logprobs"]["content"]
    torch.testing.assert_close(torch.tensor([e["logprob"] for e in entries]), want.logp_T, atol=1e-4, rtol=0)
    assert "".join(e["token"] for e in entries) == want.text + "<|end|>"


def test_seeded_draws_are_those_of_their_keys(server: Server, policy: Any) -> None:
    """n answers are the draws of keys (serve, seed, prompt 0, i), hence equal on every call and unequal to each other."""
    how = {"temperature": 2.0, "max_tokens": 24, "seed": 5, "n": 3}
    keys = [[rng.key("serve", "seed", 5, 0, i) for i in range(3)]]
    context = policy.encode(Prompt.text("x", SAM))
    want = generate(policy.model, [context], keys, Sampling(24, 2.0), policy.stop_ids)[0]
    first = chat(server, SAM, **how)
    assert said(first) == [policy.decode(s.tokens) for s in want] == said(chat(server, SAM, **how))
    assert [c["index"] for c in first["choices"]] == [0, 1, 2] and len(set(said(first))) == 3
    assert said(chat(server, SAM, **how | {"seed": 6})) != said(first)
    assert said(chat(server, SAM, **how | {"seed": None})) != said(chat(server, SAM, **how | {"seed": None}))


def test_usage_counts_prompt_once_and_every_answer(server: Server, policy: Any) -> None:
    prompt = len(policy.encode(Prompt.text("x", SUM)))
    answer = chat(server, temperature=0, max_tokens=5, n=3)
    assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": 15, "total_tokens": prompt + 15}
    assert {c["finish_reason"] for c in answer["choices"]} == {"length"}


def test_completions_of_texts_and_ids(server: Server, policy: Any) -> None:
    text = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": SUM}], tokenize=False, add_generation_prompt=True
    )
    ids = policy.tokenizer(text)["input_ids"]
    body = {"prompt": [text, text], "temperature": 0, "max_tokens": 40, "logprobs": 0}
    status, two = call(server, "/v1/completions", body)
    assert status == 200 and two["object"] == "text_completion" and two["usage"]["prompt_tokens"] == 2 * len(ids)
    _, one = call(server, "/v1/completions", body | {"prompt": ids})
    want = said(chat(server, temperature=0, max_tokens=40))[0]
    assert [c["text"] for c in two["choices"] + one["choices"]] == [want] * 3
    odds = one["choices"][0]["logprobs"]
    # each token begins where those before it end
    assert all((want + "<|end|>")[at:].startswith(t) for t, at in zip(odds["tokens"], odds["text_offset"], strict=True))


@pytest.mark.parametrize("stop", ["->", ["9 1", "->"], "</think>", "0=1 -> 1"])
def test_stop_strings_end_an_answer_and_are_not_shown(server: Server, stop: Any) -> None:
    whole = said(chat(server, temperature=0, max_tokens=60))[0]
    stops = [stop] if isinstance(stop, str) else stop
    want = whole[: min(whole.find(s) for s in stops)]
    answer = chat(server, temperature=0, max_tokens=60, stop=stop)
    assert said(answer) == [want] and answer["choices"][0]["finish_reason"] == "stop"
    chunks = events(
        server, "/v1/chat/completions", {"messages": [{"role": "user", "content": SUM}], "temperature": 0, "stop": stop}
    )
    assert "".join(c["delta"].get("content", "") for p in chunks for c in p["choices"]) == want
    assert (
        answer["usage"]["completion_tokens"] < chat(server, temperature=0, max_tokens=60)["usage"]["completion_tokens"]
    )


# ---- streams


@pytest.mark.parametrize("n", [1, 3])
def test_chunks_add_up_to_the_whole(server: Server, n: int) -> None:
    body = {"messages": [{"role": "user", "content": SAM}], "temperature": 2.0, "seed": 1, "max_tokens": 30, "n": n}
    extra = {"logprobs": True, "return_token_ids": True}
    whole = call(server, "/v1/chat/completions", body | extra)[1]
    chunks = events(server, "/v1/chat/completions", body | extra | {"stream_options": {"include_usage": True}})
    assert chunks[-1]["usage"] == whole["usage"] and chunks[-1]["choices"] == []
    assert {p["object"] for p in chunks} == {"chat.completion.chunk"} and len({p["id"] for p in chunks}) == 1
    for want in whole["choices"]:
        mine = [c for p in chunks for c in p["choices"] if c["index"] == want["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == want["message"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [want["finish_reason"]]
        assert [t for c in mine for t in c.get("token_ids", [])] == want["token_ids"]
        entries = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
        assert entries == want["logprobs"]["content"]


def test_chunks_come_as_they_are_generated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, server.service)
    reply = server.service.submit(
        parse_request({"messages": [{"role": "user", "content": SUM}], "temperature": 0, "stream": True}, "chat")
    )

    async def read() -> list[tuple[dict[str, Any], bool]]:
        return [(p, reply.request.done) async for p in reply.chunks()]

    seen = asyncio.run(read())
    early = [p for p, done in seen if not done and p["choices"][0]["delta"].get("content")]
    assert len(early) > 5


def test_chunks_of_completions(server: Server) -> None:
    body = {"prompt": "<|user|>What is 12+7?<|end|><|assistant|>", "temperature": 0, "max_tokens": 12}
    whole = call(server, "/v1/completions", body)[1]["choices"][0]
    chunks = [c for p in events(server, "/v1/completions", body) for c in p["choices"]]
    assert "".join(c["text"] for c in chunks) == whole["text"] and chunks[-1]["finish_reason"] == whole["finish_reason"]


def test_no_half_characters_and_no_beginnings_of_stop_strings(policy: Any) -> None:
    text = "5 € – né STOP no"
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > len(text) - 3  # several tokens per character
    detokenizer = Detokenizer(lambda t: policy.tokenizer.decode(t), ["STOP"])
    chunks = [detokenizer.next_chunk(ids[:n], False) for n in range(len(ids) + 1)]
    assert "".join(chunks) == "5 € – né " and "\ufffd" not in "".join(chunks)
    assert max(map(len, chunks)) <= 2
    stops = StopStrings(lambda t: policy.tokenizer.decode(t), ["STOP", "nothing"])
    found = stops(torch.tensor(ids))
    assert policy.tokenizer.decode(ids[:found]).endswith("STOP") and stops(torch.tensor(ids[: found - 1])) == 0
    cut = Detokenizer(lambda t: policy.tokenizer.decode(t))
    half = ids[: ids.index(policy.tokenizer("€", add_special_tokens=False)["input_ids"][0]) + 1]
    assert (
        cut.next_chunk(half, False) == "5 " and cut.next_chunk(half, True) == "\ufffd"
    )  # at the end nothing is kept back


@pytest.mark.parametrize("step", [1, 3, 250])
def test_text_that_is_settled_is_not_decoded_again(policy: Any, step: int) -> None:
    """The text of a thousand tokens, characters of several tokens among them, is that of decoding all of them each time."""
    ids = policy.tokenizer("5 € – né 数学 🙂 x=1\n" * 60, add_special_tokens=False)["input_ids"]
    ids += torch.randint(2, 500, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    most, whole = 0, policy.tokenizer.decode

    def decode(tokens: list[int]) -> str:
        nonlocal most
        most = max(most, len(tokens))
        return str(whole(tokens, skip_special_tokens=True))

    text = RunningText(decode)
    for n in [*range(0, len(ids), step), len(ids)]:
        assert text(ids[:n]) == whole(ids[:n], skip_special_tokens=True)
    assert len(ids) > 900 and (most < 500 or step == 250)
    assert text(ids[:5]) == whole(ids[:5])  # fewer than before: from the beginning


def test_stable_text_by_hand() -> None:
    assert stable_text("abc<", ["</think>"]) == "abc"
    assert stable_text("abc</thin", ["</think>", "x"]) == "abc"
    assert stable_text("a</", ["</a>", "a</b"]) == ""  # the longest beginning counts
    assert stable_text("abc", ["bcd", "cx"]) == "a"
    assert stable_text("abc", ["d"]) == "abc"
