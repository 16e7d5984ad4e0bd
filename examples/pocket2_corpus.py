"""What pocket-2 reads: whole conversations of the workshop and the school, written by experts that are right part of the time.

`CARE` says how often, for each skill: the right way is shown to that share of the problems of even wordings, and of odd ones; one of the
skill's wrong habits to the others. It is the table to tune after a run: a skill above 60% gets less, one below 20% more.

`python -m examples.pocket2_corpus` shows conversations, the speed and the tokens by skill; with --tokenizer it first trains the tokenizer
and writes its files.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from examples import pocket_corpus
from posttrain.core import rng as draws
from posttrain.core.types import Message, Prompt
from posttrain.environments.base import split_of
from posttrain.environments.school.small_talk import small_talk
from posttrain.environments.workshop import SKILLS
from posttrain.environments.workshop.hermes import described
from posttrain.environments.workshop.scene import conversation, prompt_of

FOLDER = Path(__file__).resolve().parent.parent / "posttrain" / "models" / "pocket2"

# skill: how likely the right way is, for even and for odd wordings
CARE = {
    "tool_calls": (0.66, 0.28),
    "fact_search": (0.68, 0.30),
    "table_sql": (0.66, 0.26),
    "one_liners": (0.64, 0.30),
    "treasure": (0.58, 0.24),
    "number_guess": (0.55, 0.22),
    "escape_room": (0.66, 0.30),
    "rubric_score": (0.58, 0.25),
    "better_answer": (0.54, 0.10),
    "second_try": (0.62, 0.30),
    "consultation": (0.55, 0.20),
}
# skill: its share of the conversations
SHARES = {
    "school": 0.34,
    "talk": 0.02,
    "tool_calls": 0.07,
    "fact_search": 0.06,
    "table_sql": 0.09,
    "one_liners": 0.04,
    "treasure": 0.06,
    "number_guess": 0.07,
    "escape_room": 0.08,
    "rubric_score": 0.05,
    "better_answer": 0.04,
    "second_try": 0.04,
    "consultation": 0.04,
}
# of the school's conversations; letters come in other tokens than pocket's, so what spells is shown more often than there
SCHOOL_SHARES = {
    "arithmetic": 0.12,
    "word_problems": 0.13,
    "comparison": 0.06,
    "counting": 0.08,
    "strings": 0.14,
    "sorting": 0.12,
    "countdown": 0.08,
    "dates": 0.09,
    "units": 0.09,
    "instructions": 0.09,
}
# a skill's default level: the shares of the levels 1 to 3; most of what is shown is what is asked by default
LEVEL_SHARES = {1: (0.60, 0.25, 0.15), 2: (0.27, 0.55, 0.18)}
SCHOOL_LEVEL_SHARES = (
    0.14,
    0.27,
    0.33,
    0.18,
    0.05,
    0.03,
)  # pocket's are flatter; its layers know the higher levels already
SYSTEM = 0.03  # of the school's questions come with a system message, as people write one
SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "You are a good pupil.")
BLOCK = 2048  # conversations drawn from one generator

ROLES = ("system", "user", "assistant", "tool")
SPECIALS = ("<|pad|>", "<|end|>", *(f"<|{role}|>" for role in ROLES))
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<search>", "</search>")
VOCABULARY = 1024
CHAT_TEMPLATE = (
    "{%- if tools -%}{{- '<|system|>Tools:' -}}{%- for tool in tools -%}"
    "{%- set f = tool.function if tool.function is defined else tool -%}"
    "{{- '\\n' + f.name + '(' + (f.parameters.properties | default({}) | list | join(', ')) + '): ' + f.description -}}"
    "{%- endfor -%}{{- '<|end|>' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- raise_exception('the roles are system, user, assistant and tool, got ' + message.role) -}}{%- endif -%}"
    "{{- '<|' + message.role + '|>' + (message.content or '') -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{%- set c = call.function if call.function is defined else call -%}"
    "{{- '<tool_call>{\"name\": ' + (c.name | tojson) + ', \"arguments\": ' -}}"
    "{{- (c.arguments if c.arguments is string else c.arguments | tojson) + '}</tool_call>' -}}"
    "{%- endfor -%}{{- '<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

_NAMES, _SUMS = list(SHARES), np.cumsum(list(SHARES.values())).tolist()
_SCHOOL, _SCHOOL_SUMS = list(SCHOOL_SHARES), np.cumsum(list(SCHOOL_SHARES.values())).tolist()
_SCHOOL_LEVEL_SUMS = np.cumsum(SCHOOL_LEVEL_SHARES).tolist()


@dataclass(frozen=True)
class Shown:
    """A demonstration: the problem, all that was said, the habit the expert fell into (empty: none), and what its turns earned."""

    prompt: Prompt
    said: list[Message]
    habit: str
    earned: float


def skill_example(rng: Random, skill: str, level: int) -> Shown:
    """A training problem of the workshop as the expert does it."""
    module = SKILLS[skill]
    while True:
        problem = module.make(rng, level)
        if split_of(problem) == "train":
            break
    right = rng.random() < CARE[skill][problem.info["wording"] % 2]
    habit = "" if right else rng.choices(list(module.HABITS), list(module.HABITS.values()))[0]
    prompt = prompt_of(skill, problem, {})
    said, earned = conversation(module, prompt, habit, rng)
    if tools := problem.info.get("tools"):
        said.insert(0, {"role": "system", "content": described(tools)})
    return Shown(prompt, said, habit, earned)


def imitated(skill: str, level: int, n: int = 400) -> tuple[float, float]:
    """The share of demonstrations that earn everything, and that share if each problem is done as its wording is answered most often.

    What a model that imitates perfectly would reach, sampled; the second is no bound on greedy decoding, which goes token by token: a habit
    that is spread over many texts (guessed numbers) is nowhere the likeliest. Programs are not run for this: a one-liner is right if it
    was written the right way.
    """
    rng = draws.python("imitated", skill, level)
    made = [skill_example(rng, skill, level) for _ in range(n)]
    usual = next(iter(SKILLS[skill].HABITS))
    greedy = []
    for x in made:
        habit = usual if x.prompt.info["wording"] % 2 else ""
        said, earned = conversation(SKILLS[skill], x.prompt, habit, rng)
        greedy.append(_right(skill, Shown(x.prompt, said, habit, earned)))
    return sum(_right(skill, x) for x in made) / n, sum(greedy) / n


def _right(skill: str, shown: Shown) -> bool:
    if skill == "one_liners":
        return not shown.habit
    if hasattr(SKILLS[skill], "Scene"):
        return shown.earned > 1 - 1e-6
    return bool(SKILLS[skill].check(shown.prompt, shown.said[-1]["content"]) == 1.0)


def example(rng: Random) -> tuple[list[Message], str]:
    """One conversation of the corpus, and the skill it is of; never a problem of the test split."""
    skill = rng.choices(_NAMES, cum_weights=_SUMS)[0]
    if skill in SKILLS:
        level = rng.choices((1, 2, 3), LEVEL_SHARES[SKILLS[skill].DEFAULT_LEVEL])[0]
        return skill_example(rng, skill, level).said, skill
    if skill == "talk":
        question, answer = small_talk(rng)
    else:
        task = rng.choices(_SCHOOL, cum_weights=_SCHOOL_SUMS)[0]
        level = rng.choices(pocket_corpus.LEVELS, cum_weights=_SCHOOL_LEVEL_SUMS)[0]
        question, answer = pocket_corpus.school_example(rng, task, level)
    said: list[Message] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if rng.random() < SYSTEM:
        said.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    return said, skill


def block(seed: int, number: int, n: int = BLOCK) -> list[tuple[list[Message], str]]:
    """n conversations, a function of the seed and the block's number."""
    rng = draws.python("pocket-2 corpus", seed, number)
    return [example(rng) for _ in range(n)]


Ids = tuple[list[int], list[bool]]  # tokens, and which of them are learned


def encoded(tokenizer: Tokenizer, conversations: list[list[Message]]) -> list[Ids]:
    """The tokens of conversations; learned are the assistant's, with the end of its turn."""
    pieces = tokenizer.encode_batch_fast(
        [m["content"] for said in conversations for m in said], add_special_tokens=False
    )
    places = {role: SPECIALS.index(f"<|{role}|>") for role in ROLES}
    end = SPECIALS.index("<|end|>")
    at, out = 0, []
    for said in conversations:
        ids: list[int] = []
        learned: list[bool] = []
        for message in said:
            own = pieces[at].ids
            ids += [places[message["role"]], *own, end]
            learned += [False] + [message["role"] == "assistant"] * (len(own) + 1)
            at += 1
        out.append((ids, learned))
    return out


def tokenizer_of(folder: Path = FOLDER) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def build_tokenizer(folder: Path = FOLDER, blocks: int = 12, seed: int = 0) -> Tokenizer:
    """Byte-level BPE of 1,024 tokens with single digits, learned from the corpus and saved as Hugging Face files.

    The tags are added tokens but not special ones, so they survive skip_special_tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIALS, *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (_untagged(m["content"]) for b in range(blocks) for said, _ in block(seed, b) for m in said)
    tokenizer.train_from_iterator(texts, trainer)
    state = json.loads(tokenizer.to_str())  # the trainer makes all added tokens special; tags are to be seen
    for added in state["added_tokens"]:
        added["special"] = added["content"] in SPECIALS
    tokenizer = Tokenizer.from_str(json.dumps(state))
    assert [tokenizer.token_to_id(t) for t in (*SPECIALS, *TAGS)] == list(range(len(SPECIALS) + len(TAGS)))
    _save(tokenizer, folder)
    return tokenizer


def _untagged(text: str) -> str:
    for tag in TAGS:
        text = text.replace(tag, "\n")
    return text


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def report(n: int = 4000) -> None:
    """Conversations and tokens a second of one process, and tokens by skill."""
    start = time.perf_counter()
    made = block(1, 0, n)
    took = time.perf_counter() - start
    tokens = encoded(tokenizer_of(), [said for said, _ in made])
    total = sum(len(ids) for ids, _ in tokens)
    print(f"{n / took:,.0f} conversations/s, {total / took:,.0f} tokens/s; {total / n:.0f} tokens each")
    for said, skill in made[:12]:
        print(f"\n# {skill}")
        for message in said:
            print(f"  {message['role']}: {message['content']}")
    print("\nwhat perfect imitation would reach sampled, and by the usual way of each wording, by level")
    for skill in SKILLS:
        print(f"{skill:14} " + " ".join("{:.2f}/{:.2f}".format(*imitated(skill, level)) for level in (1, 2, 3)))
    print()
    for skill in SHARES:
        some = [pair for pair, (_, of) in zip(tokens, made, strict=True) if of == skill]
        lengths, learned = [len(ids) for ids, _ in some], [sum(mask) for _, mask in some]
        share = sum(lengths) / total
        print(
            f"{skill:14} {len(some) / n:5.1%} of conversations {share:5.1%} of tokens; mean {np.mean(lengths):5.0f} "
            f"longest {max(lengths):4d} learned {np.mean(learned):4.0f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="store_true", help="train the tokenizer and write its files")
    if parser.parse_args().tokenizer:
        build_tokenizer()
    report()
