"""Thinking is a property of the turn: where the thought begins and ends under the chat templates of real models."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.thinking import phases, thought_of, without_lead
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import Problem, Task
from posttrain.environments.data import data
from posttrain.environments.mapped import with_prefill
from posttrain.rewards.rules.format import format
from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.rules.task import task as own_grade
from posttrain.rewards.rules.thinks import thinks
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rollouts.resume import cut
from tests.policies.thinkers import ENDS, thinker

ASKED = Prompt.text("q", "2+2?", "4")
SUM = Task("sum", lambda rng: Problem("2+2?", "4"))
# template, enable_thinking -> what it writes of the answer itself
LEADS = {
    ("qwen2_5", None): "",
    ("llama3", None): "",
    ("smollm2", None): "",
    ("qwen3", None): "",
    ("qwen3", True): "",
    ("qwen3", False): "<think>\n\n</think>\n\n",
    ("deepseek_r1_distill", None): "<think>\n",
}


@pytest.mark.parametrize(("template", "thinking"), LEADS)
def test_what_the_template_writes_of_the_answer(template: str, thinking: bool | None) -> None:
    policy = thinker(template)
    policy.thinking = thinking
    lead = LEADS[template, thinking]
    assert policy.observe(ASKED).lead == lead and policy.rendered(ASKED).endswith(lead)
    made = policy.sample([ASKED], 2, Sampling(max_tokens=4))[0]
    for r in made:  # the text is the whole answer, the actions are the policy's own
        assert r.text == lead + policy.decode(r.actions) and len(r) <= 4 and bool(r.mask_T.all())
    assert policy.clone().observe(ASKED).lead == lead


def test_a_question_that_shows_the_tag_opens_no_thought() -> None:
    policy = thinker("deepseek_r1_distill")
    asked = Prompt.text("q", "what is <think>\n")
    assert policy.observe(asked).lead == "<think>\n" and thinker("qwen3").observe(asked).lead == ""


@pytest.mark.parametrize(
    ("text", "start", "said", "answer", "opened", "closed", "empty"),
    [
        ("4", 0, "", "4", False, False, True),
        ("<think>\nso</think>\n\n4", 7, "\nso", "\n\n4", True, True, False),
        ("<think>\n\n</think>\n\n4", 7, "\n\n", "\n\n4", True, True, True),
        ("<think>\n...\n</think>4", 7, "\n...\n", "4", True, True, True),
        ("<think>\nso 4", 7, "\nso 4", "", True, False, False),  # cut off: nothing is answered
        (
            "so</think>4",
            0,
            "so",
            "4",
            True,
            True,
            False,
        ),  # an older template: the tag was the prompt's and nobody said so
        ("<think>a</think>4<think>no", 7, "a</think>4<think>no", "", True, False, False),  # opened again
        ("<think>a</think>b</think>4", 7, "a</think>b", "4", True, True, False),
    ],
)
def test_the_thought_of_a_text(
    text: str, start: int, said: str, answer: str, opened: bool, closed: bool, empty: bool
) -> None:
    found = thought_of(text)
    assert (found.start, text[found.start : found.end]) == (start, said)
    assert text[found.answer :] == (answer if opened else text)
    assert (found.opened, found.closed, found.empty) == (opened, closed, empty)
    assert final_answer(text) == (None if opened and not closed else text[found.answer :].strip())


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("template", ENDS)
def test_where_the_thought_is_in_tokens(template: str, tags: bool) -> None:
    """However many tokens a tag has, and whoever wrote the first one."""
    policy = thinker(template, tags)
    r = policy.written(ASKED, "<think>\nsé</think>4")
    parts = phases(policy.decode, r.turns[0]).tolist()
    said = {k: policy.decode(r.actions[torch.tensor(parts) == k]) for k in range(4)}
    opened = template == "deepseek_r1_distill"
    assert said == {0: "" if opened else "<think>", 1: "sé" if opened else "\nsé", 2: "</think>", 3: "4"}
    assert r.text == "<think>\nsé</think>4"
    first = next(t for t, k in enumerate(parts) if k)  # the action that decides whether to think
    assert first == (0 if opened else 1 if tags else 7)
    empty = policy.written(ASKED, "<think></think>4")
    decides = next(t for t, k in enumerate(phases(policy.decode, empty.turns[0]).tolist()) if k)
    assert decides == first and phases(policy.decode, empty.turns[0])[decides] == 2
    assert phases(policy.decode, policy.written(ASKED, "4").turns[0]).tolist() == (
        [2] * (1 if tags else 8) + [3] * 4 if opened else [0, 0]
    )


def test_a_written_answer_is_what_the_policy_would_have_to_write() -> None:
    cases = [
        ("<think>\n", "<think>\nso</think>4", "so</think>4"),
        ("<think>\n", "<think>so</think>4", "so</think>4"),
        ("<think>\n", "so</think>4", "so</think>4"),
        ("<think>\n", "4", "</think>\n\n4"),  # without a thought: the one that was opened is closed first
        ("<think>\n...\n", "<think>so</think>4", "so</think>4"),
        ("<think>\n\n</think>\n\n", "4", "4"),
        ("<think>\n\n</think>\n\n", "<think></think>4", "4"),
        ("The answer is ", "The answer is 4", "4"),
        ("The answer is ", "4", "4"),
        ("", "<think>so</think>4", "<think>so</think>4"),
    ]
    assert [without_lead(lead, text) for lead, text, _ in cases] == [rest for _, _, rest in cases]
    r = thinker("deepseek_r1_distill").written(ASKED, "4")
    assert r.text == "<think>\n</think>\n\n4" and numeric(ASKED, r.text) == 1.0


def test_graders_take_no_answer_out_of_a_thought_that_was_cut_off() -> None:
    """R1-Distill's template opens the thought: its text says so, and every rule reads the same text."""
    policy = thinker("deepseek_r1_distill")
    whole = policy.written(ASKED, "so it is 4</think>\n\n4")
    short = cut(policy, whole, len("so it is 4"))
    assert short.text == "<think>\nso it is 4"
    graded = RewardSum([("task", own_grade.but(environment=SUM), 1.0), ("n", numeric, 1.0), ("thinks", thinks, 0.0)])
    graded.score([Group(ASKED, [whole, short])])
    assert whole.rewards == {"task": 1.0, "n": 1.0, "thinks": 1.0}
    assert short.rewards == {"task": 0.0, "n": 0.0, "thinks": 1.0}
    assert format(ASKED, whole.text) == 1.0 and format(ASKED, short.text) == 0.0


def test_rewards_that_begin_as_answers_end_see_the_same_text() -> None:
    policy, heard = thinker("deepseek_r1_distill"), dict[int, str]()
    policy.stops = tuple(range(60))  # so that answers end at different lengths
    how = Sampling(max_tokens=9)
    made = policy.sample([ASKED], 8, how, finished=lambda p, i, text: heard.__setitem__(i, text()))[0]
    assert heard and all(made[i].text == text and text.startswith("<think>\n") for i, text in heard.items())


# ---- the prefill


@pytest.mark.parametrize("template", ENDS)
def test_a_prefill_is_observed_and_not_an_action(template: str) -> None:
    """AutoThink's prompt ends in an open thought with a line of dots, whether or not the template opens it."""
    policy = thinker(template)
    numbers = Task("numbers", lambda rng: Problem(f"{rng.random()}", "4"))
    prompt = with_prefill(numbers, "<think>\\n...\\n").prompt(0)
    seen = policy.observe(prompt)
    assert seen.lead == "<think>\n...\n" and policy.rendered(prompt).endswith("<think>\n...\n")
    assert policy.rendered(prompt).count("<think>") == 1
    r = policy.sample([prompt], 1, Sampling(max_tokens=3))[0][0]
    assert torch.equal(r.row.observation.tokens, seen.tokens) and len(r) <= 3
    assert r.text == "<think>\n...\n" + policy.decode(r.actions)
    bare = dataclasses.replace(prompt, info={})
    added = len(seen.tokens) - len(policy.observe(bare).tokens)
    assert added == len("<think>\n...\n") - len(policy.observe(bare).lead)


def test_a_prefill_of_the_data_and_of_the_settings() -> None:
    rows = [{"question": f"{i}+2?", "answer": i + 2, "prefill": "It is "} for i in range(20)]
    env = data(rows)
    assert env.prompt(0).info["prefill"] == "It is " and env.understood.columns["prefill"] == "prefill"
    assert with_prefill(env, "So ").prompt(0).info["prefill"] == "So "
    policy = thinker("smollm2")
    assert policy.rendered(env.prompt(0)).endswith("<|im_start|>assistant\nIt is ")
    r = policy.sample([env.prompt(0)], 1, Sampling(max_tokens=2))[0][0]
    assert r.text.startswith("It is ")
    with pytest.raises(UserError, match="prefill of prompt 'p' is 3"):
        policy.observe(Prompt.text("p", "hi", prefill=3))


def test_later_turns_have_a_lead_too() -> None:
    policy = thinker("deepseek_r1_distill")
    first = policy.sample([ASKED], 1, Sampling(max_tokens=2))[0][0].turns
    assert policy.extend(first, [{"role": "user", "content": "again"}]).lead == "<think>\n"
    assert thinker("qwen2_5").extend(first, [{"role": "user", "content": "again"}]).lead == ""
