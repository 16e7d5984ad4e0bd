"""The client of OpenAI-compatible servers, and a model behind one as a policy that answers."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import End, Prompt
from posttrain.policies.chat_api import NoReply, Reply, base_url
from posttrain.policies.remote import RemoteModel
from tests.openai_server import Clock, Fake, completion

ECHO = [{"messages": [{"role": "user", "content": c}]} for c in "abc"]


def echo(body: dict) -> str:
    return body["messages"][-1]["content"].upper()


def test_replies_come_in_order_and_are_counted() -> None:
    with (fake := Fake(echo)).listening() as url:
        api = Clock().api(url, concurrency=3)
        assert [r.text for r in api.ask(ECHO)] == ["A", "B", "C"]
    assert (api.requests, api.failed, api.tokens, api.prompt_tokens) == (3, 0, 9, 15)
    assert {body["model"] for body in fake.asked} == {"fake"}


def test_failures_are_retried_with_growing_waits_and_then_given_up() -> None:
    clock = Clock()
    busy, cut = (503, {"error": {"message": "loading"}}), {"choices": []}
    with Fake(echo, busy, cut, (429, {}), busy).listening() as url:
        api = clock.api(url, retries=2, wait=1.0)
        first, second = api.ask(ECHO[:1])[0], api.ask(ECHO[1:2])[0]
    assert isinstance(first, NoReply) and "429" in first.why and isinstance(second, Reply)
    assert clock.slept == [1.0, 2.0, 1.0] and (api.requests, api.retried, api.failed) == (5, 3, 1)


def test_a_mistake_of_the_request_is_not_repeated() -> None:
    clock = Clock()
    with Fake(echo, (400, {"error": {"message": "too long"}})).listening() as url:
        api = clock.api(url)
        assert "400: too long" in api.ask(ECHO[:1])[0].why
    assert clock.slept == [] and api.requests == 1


def test_the_rate_is_kept() -> None:
    clock = Clock()
    with Fake(echo).listening() as url:
        clock.api(url, rate=4.0).ask(ECHO)
    assert clock.slept == pytest.approx([0.25, 0.25])  # the first at 0, then one every quarter of a second


def test_a_server_that_is_gone_is_left_alone_for_the_rest_of_the_call() -> None:
    clock = Clock()
    with Fake(echo).listening() as url:
        pass
    api = clock.api(url, retries=3)
    told = api.ask(ECHO)
    assert all(isinstance(t, NoReply) and "nothing answers at" in t.why for t in told)
    assert api.requests == 4  # the first with its retries; then the others are not sent


def test_the_key_is_sent_and_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    with (fake := Fake(echo, (302, {}), (401, {"error": {"message": "bad key"}}))).listening() as url:
        moved, refused = Clock().api(url, key_env="MY_KEY", retries=0).ask(ECHO[:2])
    assert fake.headers[0]["Authorization"] == "Bearer secret"
    assert "302" in moved.why  # a redirect would take the key along
    assert "refused the key in MY_KEY" in refused.why and "secret" not in refused.why
    with pytest.raises(UserError, match="no environment variable 'NO_KEY'"):
        Clock().api(url, key_env="NO_KEY")


def test_the_model_is_chosen_or_checked() -> None:
    with Fake(echo, models=("one",)).listening() as url:
        assert Clock().api(url, model="").choose_model() == "one"
        with pytest.raises(UserError, match="did you mean 'one'"):
            Clock().api(url, model="onne").check_model()
    with (
        Fake(echo, models=("one", "two")).listening() as url,
        pytest.raises(UserError, match="serves one, two; say which: --model NAME"),
    ):
        Clock().api(url, model="").choose_model()
    with pytest.raises(UserError, match="nothing answers at"):
        Clock().api(url, model="").choose_model()


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/chat/completions"])
def test_addresses(given: str) -> None:
    assert base_url(given) == "http://h:1/v1"
    with pytest.raises(UserError, match="OpenAI-compatible"):
        base_url("h:1/v1")


def test_a_model_behind_an_api_answers_prompts() -> None:
    prompts = [Prompt.text("p0", "a"), Prompt.text("p1", "b")]
    cut = completion("B", stop="length", tokens=7)
    with (fake := Fake(lambda b: cut if echo(b) == "B" else "A")).listening() as url:
        model = RemoteModel(Clock().api(url))
        made = model.sample(prompts, 2, Sampling(5, temperature=0.5, top_k=3), seed=1)
        again = model.sample(prompts, 2, Sampling(5, temperature=0.5, top_k=3), seed=1)
    assert [[r.text for r in some] for some in made] == [["A", "A"], ["B", "B"]]
    assert [r.index for r in made[0]] == [0, 1] and made[1][0].truncated and made[1][0].info["tokens"] == 7
    seeds = [body["seed"] for body in fake.asked]
    assert len(set(seeds[:4])) == 4 and seeds[:4] == seeds[4:]  # draws belong to (seed, prompt, sample)
    sent = fake.asked[0]
    assert (sent["max_tokens"], sent["temperature"], sent["top_k"]) == (5, 0.5, 3) and "min_p" not in sent
    assert again[0][0].text == "A"


def test_an_answer_that_does_not_come_is_masked_and_a_wrong_name_is_an_error() -> None:
    with Fake(echo, (400, {"error": {"message": "too long"}})).listening() as url:
        [[lost], [come]] = RemoteModel(Clock().api(url)).sample(
            [Prompt.text("p0", "a"), Prompt.text("p1", "b")], 1, Sampling()
        )
    assert lost.end is End.ENV_ERROR and lost.failed and "too long" in lost.info["error"] and come.text == "B"
    with (
        Fake(echo, (404, {"error": {"message": "no such model"}})).listening() as url,
        pytest.raises(UserError, match="404: no such model"),
    ):
        RemoteModel(Clock().api(url)).sample([Prompt.text("p0", "a")], 1, Sampling())


def test_the_newer_name_of_the_limit_is_found_out() -> None:
    def newer(body: dict) -> object:
        told = {"error": {"message": "use 'max_completion_tokens' instead of max_tokens"}}
        return (400, told) if "max_tokens" in body else echo(body)

    with Fake(newer).listening() as url:
        model = RemoteModel(Clock().api(url))
        made = model.sample([Prompt.text("p0", "a"), Prompt.text("p1", "b")], 1, Sampling(5))
        assert [some[0].text for some in made] == ["A", "B"]
        assert model.sample([Prompt.text("p2", "c")], 1, Sampling(5))[0][0].text == "C"
