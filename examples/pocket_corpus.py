"""What the pocket model reads: school tasks with worked steps, many of them wrong by habit, and a little small talk.

A base model's habits depend on how a question is worded: the right way is written to 62% of the questions of even
wordings and to 30% of odd ones, the task's misconception to the others. RL makes it careful everywhere.

`python examples/pocket_corpus.py` shows a few examples, the speed and the tokens by task; with --tokenizer it first
trains the tokenizer and writes its files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from posttrain.core import rng as draws
from posttrain.environments.base import Problem, split_of
from posttrain.environments.school import DIRECT, TASKS, THINK
from posttrain.environments.school.noisy_solver import NoisySolver
from posttrain.environments.school.small_talk import small_talk

FOLDER = Path(__file__).resolve().parent.parent / "posttrain" / "models" / "pocket"
WEIGHTS = {
    "arithmetic": 0.15,
    "word_problems": 0.14,
    "comparison": 0.08,
    "counting": 0.10,
    "strings": 0.11,
    "sorting": 0.08,
    "countdown": 0.10,
    "dates": 0.08,
    "units": 0.07,
    "instructions": 0.09,
}
TALK = 0.05  # of all examples are small talk; WEIGHTS share out the rest
BARE = 0.05  # of school questions come without a suffix, as people ask them in a chat; they are answered with steps
LEVELS = (1, 2, 3, 4, 5, 6)
LEVEL_SHARES = (0.12, 0.23, 0.25, 0.20, 0.11, 0.09)
CARE = (0.62, 0.30)  # how likely the right way is, by the parity of the question's wording
SLOPPY = 0.06  # of the answers without habit have a slip in them, or leave out the steps
BLOCK = 2048  # examples drawn from one generator: the unit of work, so that the number of workers changes nothing

SPECIALS = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
THOUGHTS = ("<think>", "</think>")
VOCABULARY = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_NAMES, _SHARES = list(WEIGHTS), np.cumsum(list(WEIGHTS.values())).tolist()
_LEVEL_SUMS = np.cumsum(LEVEL_SHARES).tolist()


def pupil(rng: Random, task: str, level: int, sloppy: float = SLOPPY) -> tuple[Problem, NoisySolver]:
    """A training problem as a pupil writes it down, and the hand, which knows about its habit and its slip."""
    rate = 0.4 if rng.random() < sloppy else 0.0
    while True:
        hand = NoisySolver(rng, rate, CARE)
        problem = TASKS[task].make(rng, level, hand)
        if split_of(problem) == "train":
            return problem, hand


def school_example(rng: Random, task: str, level: int, sloppy: float = SLOPPY) -> tuple[str, str]:
    """A training question of a task and a pupil's response, with steps or without, as the question's suffix asks."""
    problem, hand = pupil(rng, task, level, sloppy)
    mode = rng.random()
    if mode < (1 - BARE) / 2:
        return problem.question + DIRECT, problem.answer
    suffix = "" if mode > 1 - BARE else THINK
    if hand.rate and not hand.slipped and not hand.habit:
        return problem.question + suffix, problem.answer
    return problem.question + suffix, f"<think>{problem.steps}</think>{problem.answer}"


def example(rng: Random, sloppy: float = SLOPPY) -> tuple[str, str]:
    """One (question, response) of the corpus; never a question of the test split."""
    if rng.random() < TALK:
        return small_talk(rng)
    task = rng.choices(_NAMES, cum_weights=_SHARES)[0]
    level = rng.choices(LEVELS, cum_weights=_LEVEL_SUMS)[0]
    return school_example(rng, task, level, sloppy)


def _block(job: tuple[int, int, int]) -> list[tuple[str, str]]:
    seed, block, n = job
    rng = draws.python("pocket corpus", seed, block)
    return [example(rng) for _ in range(n)]


def _jobs(n: int, seed: int) -> list[tuple[int, int, int]]:
    return [(seed, b, min(BLOCK, n - b * BLOCK)) for b in range((n + BLOCK - 1) // BLOCK)]


def corpus(n: int, seed: int = 0, workers: int = 0) -> Iterator[tuple[str, str]]:
    """n examples, the same for any number of workers."""
    if workers <= 1:
        for job in _jobs(n, seed):
            yield from _block(job)
        return
    with get_context("fork").Pool(workers) as pool:
        for block in pool.imap(_block, _jobs(n, seed)):
            yield from block


def _token_block(job: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a block, and which of them are the response (its <|end|> included)."""
    ids: list[int] = []
    mask: list[bool] = []
    encode = _tokenizer().encode_batch_fast
    questions, responses = zip(*_block(job), strict=True)
    for q, r in zip(encode(list(questions)), encode(list(responses)), strict=True):
        ids += [2, *q.ids, 1, 3, *r.ids, 1]
        mask += [False] * (len(q.ids) + 3) + [True] * (len(r.ids) + 1)
    return np.array(ids, np.uint16), np.array(mask, bool)


def token_blocks(n: int, seed: int = 0, workers: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The corpus as (ids, is_response) arrays of up to BLOCK whole examples: <|user|>Q<|end|><|assistant|>R<|end|>."""
    if workers <= 1:
        yield from map(_token_block, _jobs(n, seed))
        return
    with get_context("fork").Pool(workers) as pool:
        yield from pool.imap(_token_block, _jobs(n, seed))


_CACHE: list[Tokenizer] = []


def _tokenizer() -> Tokenizer:
    if not _CACHE:
        _CACHE.append(Tokenizer.from_file(str(FOLDER / "tokenizer.json")))
    return _CACHE[0]


def build_tokenizer(folder: Path = FOLDER, n: int = 200_000, seed: int = 0) -> Tokenizer:
    """Byte-level BPE of 512 tokens with single digits, learned from the corpus and saved as Hugging Face files.

    <think> and </think> are added tokens but not special ones, so they survive skip_special_tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIALS, *THOUGHTS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text.replace("<think>", "").replace("</think>", "\n") for pair in corpus(n, seed) for text in pair)
    tokenizer.train_from_iterator(texts, trainer)
    state = json.loads(tokenizer.to_str())  # the trainer makes all added tokens special; thoughts are to be seen
    for added in state["added_tokens"]:
        added["special"] = added["content"] in SPECIALS
    tokenizer = Tokenizer.from_str(json.dumps(state))
    assert [tokenizer.token_to_id(t) for t in (*SPECIALS, *THOUGHTS)] == list(range(7))
    _save(tokenizer, folder)
    return tokenizer


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    special = {"eos_token": "<|end|>", "pad_token": "<|pad|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")


def report(n: int = 20_000) -> None:
    """Examples a second, and mean and longest tokens by task and mode."""
    start = time.perf_counter()
    rows = list(corpus(n, seed=1))
    print(f"{n / (time.perf_counter() - start):,.0f} examples/s")
    encode = _tokenizer().encode
    for question, response in rows[:25]:
        print(f"  {question} => {response}")
    for task in TASKS:
        for think in (True, False):
            rng = draws.python("report", task, think)
            sizes: list[tuple[int, int]] = []
            while len(sizes) < 400:
                level = rng.choices(LEVELS, cum_weights=_LEVEL_SUMS)[0]
                question, response = school_example(rng, task, level)
                if question.endswith(THINK if think else DIRECT):
                    sizes.append((len(encode(question).ids), len(encode(response).ids)))
            q, r = np.array(sizes).T
            mode = "think" if think else "direct"
            print(f"{task:14} {mode:6} question {q.mean():5.1f} response {r.mean():5.1f} longest {(q + r).max() + 4}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", action="store_true", help="train the tokenizer and write its files")
    if parser.parse_args().tokenizer:
        build_tokenizer()
    report()
