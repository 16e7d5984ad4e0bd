"""Which tokens of a written conversation are learned: by the template's own mask, by rendering, without a template."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.types import Group, Origin, Prompt
from posttrain.policies.conversation import marks_itself, turns_of
from posttrain.policies.load import POCKET, load_tokenizer
from posttrain.rollouts.written import demonstrations
from tests.policies.test_language import calm_policy

CHAT = [
    {"role": "system", "content": "brief"},
    {"role": "user", "content": "2 and 2"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "and 3"},
    {"role": "assistant", "content": "seven"},
]
MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REWRITES = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and not loop.last %}...{% else %}{{ m.content }}{% endif %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def tokenizer() -> Any:
    return load_tokenizer(str(POCKET))


def learned(tokenizer: Any, messages: Any) -> tuple[list[int], list[str]]:
    """All ids in order, and the text of each stretch that is learned."""
    turns = turns_of(tokenizer, messages)
    ids = [i for t in turns for i in (*t.observation.tokens.tolist(), *t.actions.tolist())]
    assert [t.continues for t in turns] == [False, True]
    assert all(bool(t.mask_T.all()) and not t.logp_T.any() for t in turns)
    return ids, [tokenizer.decode(t.actions.tolist()) for t in turns]


def test_by_rendering_every_answer_and_its_end_are_learned_and_nothing_else(tokenizer):
    assert not marks_itself(tokenizer.chat_template)
    ids, texts = learned(tokenizer, CHAT)
    end = tokenizer.eos_token
    assert texts == [f"four{end}", f"seven{end}"]
    whole = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert tokenizer.decode(ids) == whole[: whole.rindex(end) + len(end)]  # the ids are the conversation as rendered


def test_by_the_templates_own_mask(tokenizer):
    tokenizer.chat_template = MARKED
    assert marks_itself(MARKED) and marks_itself("{%- generation -%}")
    ids, texts = learned(tokenizer, CHAT)
    assert texts == [f"four{tokenizer.eos_token}", f"seven{tokenizer.eos_token}"]
    found = tokenizer.apply_chat_template(CHAT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert ids == list(found["input_ids"])
    only = MARKED.replace(
        "{{ m.content }}{{ eos_token }}{% endgeneration %}", "{{ m.content }}{% endgeneration %}{{ eos_token }}"
    )
    tokenizer.chat_template = only
    assert learned(tokenizer, CHAT)[1] == [
        "four",
        "seven",
    ]  # the mask is the template's: without the end, if it says so


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    tokenizer.chat_template = REWRITES
    with pytest.raises(UserError, match=r"rewrites earlier turns.*turns='last'"):
        turns_of(tokenizer, CHAT)


def test_without_a_template_turns_are_read_as_an_episode_reads_them():
    policy = calm_policy()
    made = policy.imitated(
        Prompt("x", tuple(CHAT[1:4])), [m | {"content": m["content"].replace("\n", " ")} for m in CHAT[1:]]
    )
    first, second = made.turns
    assert first.observation.tokens.tolist() == policy.encode(Prompt("x", tuple(CHAT[1:2]))).tolist()
    assert policy.decode(first.actions) == "four" and policy.decode(second.actions) == "seven"
    assert int(first.actions[-1]) == int(second.actions[-1]) == policy.tokenizer.eos_token_id


def test_demonstrations_learn_all_turns_in_one_row_with_the_mask_on_the_answers():
    policy = calm_policy()
    prompt = Prompt("x", tuple(CHAT[1:4]), "seven", {"imitated": CHAT[4]})
    (group,) = demonstrations(RolloutRequest({"policy": policy}, [prompt]))
    (made,) = group.rollouts
    assert made.origin is Origin.WRITTEN and made.reward == 1.0
    rows, batch = assemble([Group(prompt, [made])])
    assert len(rows) == 1
    ids = torch.cat([made.context, made.actions]).tolist()
    mask = [False] * len(made.context) + made.mask_T.tolist()
    assert policy.decode(torch.tensor([i for i, m in zip(ids, mask, strict=True) if m])) == "fourseven"
    assert int(batch.mask_BT.sum()) == len("four") + len("seven") + 2
    assert policy.forward(rows)["logp_BT"].shape[1] == len(made.actions)


def test_calls_of_tools_are_learned_as_the_template_writes_them(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<call {{ c.function.name }}>"
        "{% endfor %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    (turn,) = turns_of(tokenizer, [CHAT[1], call])
    assert tokenizer.decode(turn.actions.tolist()) == f"<call f>{tokenizer.eos_token}"
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="calls tools, and this model has no chat template"):
        turns_of(tokenizer, [CHAT[1], call])


def test_a_template_that_marks_its_answers_and_raises_is_one_sentence(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}" + MARKED
    with pytest.raises(UserError, match=r"cannot write this conversation \(system, user, .*roles must alternate"):
        turns_of(tokenizer, CHAT)
