"""The corpus of the school tasks, pupils who err, and the tokenizer made for it."""

from __future__ import annotations

import re
import time
from random import Random

from transformers import AutoTokenizer

from examples import pocket_corpus
from posttrain.core.types import Prompt
from posttrain.environments.school import TASKS, school
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver
from tests.environments.test_school import EVERY


def test_corpus_is_reproducible_fast_and_keeps_the_test_split_out() -> None:
    start = time.process_time()
    rows = list(pocket_corpus.corpus(10_000, seed=3))
    assert len(rows) / (time.process_time() - start) > 3000  # some 50,000 on one core; the floor is for slow machines
    assert rows[:3000] == list(pocket_corpus.corpus(3000, seed=3, workers=2))
    assert rows[:100] != list(pocket_corpus.corpus(100, seed=4))
    held_out = {
        school(t, n, k).prompt(i, "test").last for t, n in EVERY if n <= 3 for k in (True, False) for i in range(60)
    }
    assert held_out.isdisjoint(question for question, _ in rows)
    thinking = sum(r.startswith("<think>") for _, r in rows) / len(rows)
    assert 0.4 < thinking < 0.6


def test_careless_pupils_err_and_careful_ones_do_not() -> None:
    for task in TASKS:
        env, rates = school(task, 3), []
        for hand in (None, 0.5):
            marks = []
            for i in range(150):
                gold = TASKS[task].make(Random(i), 3)
                told = TASKS[task].make(Random(i), 3, CAREFUL if hand is None else NoisySolver(Random(i), hand))
                if told.question == gold.question:
                    marks.append(env.grade(Prompt.text("x", gold.question, gold.answer, **gold.info), told.answer))
            rates.append(sum(marks) / len(marks))
        assert rates[0] == 1.0 and rates[1] < 0.9, (task, rates)


def test_tokenizer_round_trip_digits_and_thoughts() -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(pocket_corpus.FOLDER))
    assert len(tokenizer) == 512 and tokenizer.eos_token_id == 1 and tokenizer.pad_token_id == 0
    specials = [*pocket_corpus.SPECIALS, *pocket_corpus.THOUGHTS]
    assert tokenizer.convert_tokens_to_ids(specials) == list(range(7))
    for pair in pocket_corpus.corpus(1500, seed=9):
        for text in pair:
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    odd = "Grüße, 世界! 12,345\n\t<think>é</think>"
    assert tokenizer.decode(tokenizer.encode(odd)) == odd
    assert not [t for t in tokenizer.get_vocab() if len(t) > 1 and re.search(r"\d", t)]
    assert len(tokenizer.encode("90210")) == 5


def test_chat_template_and_token_blocks_agree() -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(pocket_corpus.FOLDER))
    question, response = next(pocket_corpus.corpus(1, seed=4))
    chat = [{"role": "user", "content": question}]
    head = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert head == f"<|user|>{question}<|end|><|assistant|>"
    ids, is_response = next(pocket_corpus.token_blocks(1, seed=4))
    assert ids.tolist() == tokenizer.encode(f"{head}{response}<|end|>")
    assert tokenizer.decode(ids[is_response].tolist()) == f"{response}<|end|>"
