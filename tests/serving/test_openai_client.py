"""The official client works as its users write it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.serving.server import Server
from tests.serving.serving import SUM, chat, said

openai = pytest.importorskip("openai")
ASK: dict[str, Any] = {"model": "pocket", "messages": [{"role": "user", "content": SUM}]}


def test_the_official_client(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == ["pocket"] and client.models.retrieve("pocket").id == "pocket"
    want = said(chat(server, temperature=0, max_tokens=40))[0]
    answer = client.chat.completions.create(**ASK, temperature=0, max_completion_tokens=40, logprobs=True)
    assert answer.choices[0].message.content == want and answer.choices[0].finish_reason == "stop"
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    stream = client.chat.completions.create(
        **ASK, temperature=0, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == want
    assert chunks[-1].usage == answer.usage
    text = client.completions.create(model="pocket", prompt="<|user|>a<|end|>", n=2, seed=1, max_tokens=4)
    assert len(text.choices) == 2
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    made = client.chat.completions.create(**ASK, response_format=form, max_tokens=100, temperature=0.5, seed=1)
    assert json.loads(made.choices[0].message.content).keys() == {"a"}
    with pytest.raises(openai.BadRequestError, match="top_p must be"):
        client.chat.completions.create(**ASK, top_p=2)
    with pytest.raises(openai.NotFoundError, match="did you mean 'pocket'"):
        client.chat.completions.create(**(ASK | {"model": "poket"}))
    client.close()
