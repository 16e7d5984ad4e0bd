"""What sets the search agents apart, on the registered plans with a real index.

Claims to come, each on the embedded model that can search, against its baseline with the same questions, samples and updates:
ssrl: arms direct GRPO, ssrl, ssrl without the mask; accuracy with its own information and with the real index; ssrl above direct, the real
index adds where facts are missing, masked at least as good as unmasked.
zerosearch: arms noise 0 to 0.5, constant 0.25, constant 0.5, 0.5 to 0; F1 on held-out questions over the index with noise 0.4; the rise at
least as good as the constant of its mean, and above 0.5 from the start.
reseek: arms EM alone without judging, judging unpaid, reseek; accuracy with 40% distractors and the share of right judgements; reseek
highest, and more episodes right after a bad first search.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.sampling import Sampling
from posttrain.core.squad import word_f1
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Prompt, Rollout
from posttrain.environments.searching import Document
from posttrain.rollouts.asked import Asked
from posttrain.systems.agents_multiturn import ssrl
from posttrain.systems.agents_multiturn.reseek import Judgements, holds_answer, judging
from posttrain.systems.agents_multiturn.ssrl import blocks, form, self_search
from posttrain.systems.agents_multiturn.zerosearch import noise
from tests.wiring.spies import traced

ROWS = [
    {"question": f"who is {n}?", "answer": a, "supporting": [n]}
    for n, a in zip(("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal") * 3, "stuvwxyz" * 3, strict=True)
]
ROWS = [r | {"question": f"{i} {r['question']}"} for i, r in enumerate(ROWS)]
FACTS = [{"title": r["supporting"][0], "text": f"{r['supporting'][0]} is {r['answer']}."} for r in ROWS[:8]]


@pytest.fixture
def documents(tmp_path: Path) -> str:
    file = tmp_path / "facts.jsonl"
    file.write_text("".join(json.dumps(d) + "\n" for d in FACTS))
    return str(file)


def searching(name: str, says: list[str], **settings: Any) -> Any:
    return traced(name, rows=ROWS, says=says, positions=2048, sampling={"max_tokens": 400}, **settings)


# ---- SSRL

SELF = "<think>hm</think><search>ada</search><information>ada is\nq.</information><think>so</think><answer>s</answer>"


@pytest.mark.derived("reward/self-search")
def test_the_reward_of_ssrl() -> None:
    """r = 0.9 EM + 0.1 form, form = min(thinks / 2, 1) min(thinks, searches + 1) / max(thinks, searches + 1). Two thinks and one search:
    1 * 2/2 = 1. One think, no search: 1/2 * 1/1. Three thinks, one search: 1 * 2/3. One think, two searches: 1/2 * 1/3."""
    prompt = Prompt.text("p", "who?", ["The Ada", "Bob"])
    think, search = "<think>a</think>", "<search>q</search><information>i</information>"
    for head, want in (
        (think + search + think, 1.0),
        (think, 0.5),
        (think * 2 + search + think, 2 / 3),
        (think + search * 2, 1 / 6),
    ):
        assert form(f"{head}<answer>x</answer>") == pytest.approx(want)
        assert self_search(prompt, f"{head}<answer>ada.</answer>") == pytest.approx(0.9 + 0.1 * want)
        assert self_search(prompt, f"{head}<answer>Cyd</answer>") == pytest.approx(0.1 * want)
    assert form(think * 8) == pytest.approx(1 / 8) and form(think * 9) == 0.0
    for bad in ("<think>a", "a</think>", "<b>a</b><think>a</think>", "<think><search>q</search></think>"):
        assert blocks(bad) is None and form(bad) == form(bad, graded=False) == 0.0
    # the 1 or 0 of the text: right and well formed 1, right alone 0.9, well formed alone 0.1, else 0
    good, lone = think + search + think, think + "<search>q</search>" + think
    values = [
        self_search(prompt, f"{head}<answer>{a}</answer>", graded=False) for head in (good, lone) for a in ("bob", "x")
    ]
    assert values == pytest.approx([1.0, 0.1, 0.9, 0.0])
    assert form(f"{good}<answer>a</answer>{think}", graded=False) == 0.0, "the answer comes last"


def test_ssrl_does_not_train_on_what_it_wrote_as_information() -> None:
    trace = searching("ssrl(steps=2)", says=[SELF, "no"])
    assert [len(g.rollouts) for s in trace.steps for g in s.groups] == [5] * 4
    made = trace.updates[0]
    policy = trace.phases[0].loop.policy
    for row, mask_T, pull_T in zip(made.rows, made.batch["mask_BT"], made.passes[0].pull["logp_BT"], strict=True):
        own = policy.decode(row.actions[mask_T[: len(row.actions)] > 0])
        assert own == row.text.replace("<information>ada is\nq.</information>", ""), "tags and all, across lines"
        assert bool((pull_T[mask_T == 0] == 0).all()) and bool((pull_T[mask_T > 0] != 0).any())
    worth = {(r.text == SELF, r.prompt.answer == "s"): r.reward for s in trace.steps for r in s.rollouts}
    assert worth[True, False] == pytest.approx(0.1) and worth[False, False] == 0.0
    assert worth.get((True, True), 1.0) == pytest.approx(1.0)
    (term,) = trace.phases[0].method.terms
    assert term.defaults()["coef"] == 0.001 and trace.phases[0].method.aggregate.name == "token-mean"
    assert made.optimiser_steps == 1 and made.reference
    asked = [p for d in trace.samples for p in d.prompts]
    assert asked and all("<information>" in p and "who is" in p for p in asked), "held-out questions too"
    other = searching("ssrl(steps=1, mask=False)", says=[SELF, "no"]).updates[0]
    assert bool((other.batch["mask_BT"].sum(-1) == other.batch["length_B"]).all())


def test_ssrl_swaps_its_information_for_that_of_a_real_index(documents: str) -> None:
    says = [f"<search>{n}</search><information>{n} is q.</information><answer>q</answer>" for n in ("ada", "bob")]
    trace = searching(f"ssrl(steps=1, documents={documents!r})", says=says)
    assert trace.parts == ["grpo", "sim2real"]
    real = [p for d in trace.samples if d.phase == "sim2real" for p in d.prompts]
    stems = [d for d in trace.samples if d.phase == "sim2real"]
    assert {"accuracy_self_search", "accuracy_sim2real", "accuracy_sim2real_if_unsure"} <= set(trace.summary)
    texts = [t for d in stems for t in d.texts]
    swapped = [t for t in texts if "Doc 1 (Title: ada) ada is s." in t]
    assert (
        swapped and all(t.startswith("<search>ada</search>\n<information>Doc 1 (Title: ada)") for t in swapped) and real
    )
    assert not any("</search>\n<information>Doc 1" in t and "ada is q." in t.split("</information>")[0] for t in texts)


def test_ssrl_asks_the_real_index_only_where_its_query_is_unsure(
    documents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first search is always answered for real; a second one only where its words are less likely (-mean logp) than the first one's."""
    asked: list[list[Any]] = []
    monkeypatch.setattr(ssrl, "go_on", lambda ask, real, index, k, number: asked.append([g for g, _ in real]))
    text = "<search>{}</search><information>x</information><search>{}</search><answer>s</answer>"
    says = [text.format("ada", "bob"), text.format("bob", "ada")]
    searching(f"ssrl(steps=1, documents={documents!r})", says=says, eval_problems=8)
    always, again, first, unsure = asked

    def surer(r: Rollout) -> bool:
        one, two = (
            -float(r.logp_T[at.start(1) : at.end(1)].mean()) for at in re.finditer("<search>(.*?)</search>", r.text)
        )
        return one >= two

    assert len(always) == len(again) == len(first) > len(unsure) > 0
    assert [g.prompt.id for g in unsure] == [g.prompt.id for g in first if not surer(g.rollouts[0])]


def test_ssrl_pays_the_form_as_its_text_has_it_where_it_is_told() -> None:
    """One thought and no search: half of the graded form, 0.1 / 2 beside a wrong answer; the whole of the other."""
    for graded, want in ((True, 0.05), (False, 0.1)):
        trace = searching(f"ssrl(steps=1, graded_form={graded})", says=["<think>hm</think><answer>q</answer>"])
        assert all(r.reward == pytest.approx(want) for r in trace.steps[0].rollouts)


def test_ssrl_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(pt.UserError, match="give rows with a question and an answer"):
        traced("ssrl", rows=[{"question": f"q{i}"} for i in range(20)])
    with pytest.raises(pt.UserError, match="no documents"):
        (tmp_path / "none").mkdir()
        searching(f"ssrl(documents={str(tmp_path / 'none')!r})", says=[SELF])
    with pytest.raises(pt.UserError, match="a weight of 0 to 1"):
        traced("ssrl(weight=2)")


# ---- ZeroSearch

ASKS = ["<think>a</think><search>ada</search>", "<search>bob</search>", "<answer>s</answer>", "<answer>t s</answer>"]


@pytest.mark.derived("rollout/simulated-search")
def test_the_noise_of_zerosearch_rises_late() -> None:
    """p_i = p_s + (4^(i/m) - 1) / 3 (p_e - p_s), p from 0.1 to 0.7 over 8 steps: 4^0 = 1: 0.1; 4^(1/2) = 2: 0.1 + 0.6 / 3 = 0.3;
    4^1: 0.7; and after the last step it stays."""
    assert [noise(i, 8, 0.1, 0.7) for i in (0, 4, 8, 9)] == pytest.approx([0.1, 0.3, 0.7, 0.7])
    curve = [noise(i, 203) for i in range(204)]
    rises = [b - a for a, b in zip(curve, curve[1:], strict=False)]
    assert curve[0] == 0.0 and curve[-1] == 0.5 and all(b > a > 0 for a, b in zip(rises, rises[1:], strict=False))


def test_zerosearch_learns_from_noise_that_grows_and_is_paid_by_f1(documents: str) -> None:
    trace = searching(
        f"zerosearch(steps=2, documents={documents!r}, noise=(0, 1), k=1)", says=ASKS, prompts=4, warmup=None
    )
    (rollout,) = {s.phase for s in trace.steps}
    assert rollout == "grpo" and [len(g.rollouts) for g in trace.steps[0].groups] == [5] * 4
    first, second = ([r for r in s.rollouts if r.info.get("queries")] for s in trace.steps)

    def useful(rs: list[Any]) -> float:
        told = [q == f[0] for r in rs for q, f in zip(r.info["queries"], r.info["found"], strict=True)]
        return sum(told) / len(told)

    assert useful(first) == 1.0 and 0.3 < useful(second) < 1.0, "p is 0 at the first of two steps, 1/3 at the second"
    for r in (r for s in trace.steps for r in s.rollouts):
        golden = word_f1(r.info["answer"] or "", [r.prompt.answer])
        assert r.total == pytest.approx(golden) and r.turns[-1].reward == pytest.approx(golden)
    assert {round(r.total, 2) for s in trace.steps for r in s.rollouts} >= {0.0, 0.67}
    made = trace.updates[0]
    for row, mask_T in zip(made.rows, made.batch["mask_BT"], strict=True):
        own = trace.phases[0].loop.policy.decode(row.actions[mask_T[: len(row.actions)] > 0])
        assert "Doc 1" not in own and "<information>" not in own
    loop = trace.phases[0].loop
    assert (
        loop.config.warmup == 2
        and loop.config.schedule == "constant"
        and loop.method.terms[0].defaults()["coef"] == 0.001
    )


def test_zerosearch_asks_a_model_that_plays_the_engine_and_teaches_it(tmp_path: Path) -> None:
    file = tmp_path / "labelled.jsonl"
    rows = [
        {"query": f"q{i}", "documents": ["good" if i % 2 == 0 else "bad", "text"], "useful": i % 2 == 0}
        for i in range(12)
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    trace = searching(f"zerosearch(steps=1, labelled={str(file)!r}, noise=(0, 0), k=2)", says=["<search>ada</search>", "Doc 1: x is\nDoc 2: y"])  # fmt: skip
    assert [(p.name, p.role) for p in trace.phases] == [("simulator", "simulator"), ("grpo", "policy")]
    taught = [r for s in trace.steps if s.phase == "simulator" for r in s.rollouts]
    assert {(r.text, "useful documents" in r.prompt.last, "noisy documents" in r.prompt.last) for r in taught} == {
        ("Doc 1: good\nDoc 2: text", True, False),
        ("Doc 1: bad\nDoc 2: text", False, True),
    }
    drawn = [d for d in trace.samples if d.phase == "grpo" and "simulator" in d.roles]
    asked = [p for d in drawn for p in d.prompts]
    assert asked and all("useful documents" in p and "whose answer is" in p and "Query: ada" in p for p in asked)
    assert {d.weights for d in drawn} == {trace.of("simulator", "simulator")[-1].after}, "taught, then frozen"
    assert max(len(d.prompts) for d in drawn) > 1, "searches of one moment are written in one call"
    seen = [t.observation for s in trace.steps if s.phase == "grpo" for r in s.rollouts for t in r.turns[1:]]
    policy = trace.phases[1].loop.policy
    assert any("<information>Doc 1: x is\nDoc 2: y</information>" in policy.decode(o.tokens) for o in seen)


def test_zerosearch_searches_so_often_and_no_more(documents: str) -> None:
    trace = searching(f"zerosearch(steps=1, documents={documents!r}, turns=2)", says=["<search>ada</search>"])
    assert {len(r.info["queries"]) for r in trace.steps[0].rollouts} == {2}


def test_zerosearch_says_what_it_needs(documents: str, tmp_path: Path) -> None:
    for name in ("zerosearch", f"zerosearch(documents={documents!r}, simulator='x')"):
        with pytest.raises(pt.UserError, match="needs somebody who answers searches"):
            traced(name)
    with pytest.raises(pt.UserError, match="noise from 0 to 1"):
        traced("zerosearch(noise=(0, 2))")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"query": "q", "documents": "d", "useful": "yes"}\n')
    with pytest.raises(pt.UserError, match=r"bad.jsonl, .*useful \(true or false\)"):
        traced(f"zerosearch(labelled={str(bad)!r})")


# ---- ReSeek


@pytest.mark.derived("scorer/judgements")
def test_what_judgements_of_reseek_are_worth() -> None:
    """By label: +-c for agreeing or not. As in the code: Yes: +0.1 if right, else -0.05, half of it if useful; No: -0.05 if useful, +0.02."""
    both = (True, False)
    assert [judging(v, u, True, c=0.3) for v in both for u in both] == [0.3, -0.3, -0.3, 0.3]
    table = {(v, u, r): judging(v, u, r, code=True) for v in both for u in both for r in both}
    assert [table[True, u, r] for u in both for r in both] == [0.1, -0.025, 0.1, -0.05]
    assert [table[False, u, r] for u in both for r in both] == [-0.05, -0.05, 0.02, 0.02]
    prompt = Prompt.text("p", "q", ["The Hague"])
    assert holds_answer(prompt, [Document("x", "in the hague, there")]) and not holds_answer(
        prompt, [Document("x", "haguer")]
    )
    scorer = Judgements()

    def worth(answer: str | None, judged: list[tuple[bool, bool]], text: str = "") -> float | None:
        turn = Turn.of(Observation(torch.tensor([1])), torch.tensor([1]), torch.zeros(1), text)
        return scorer.verdict(Rollout(prompt, [turn], info={"answer": answer, "judged": judged})).reward

    assert worth("hague", [(True, True), (False, True)]) == pytest.approx(1.0)  # 1 + 0.1 - 0.1
    assert worth("x", [(False, False)]) == pytest.approx(0.1) and worth(None, [(True, True)]) == 0.0
    assert (
        worth("hague", [], "<answer>a</answer>" * 11) == 0.25 and worth("hague", [], "<answer>a</answer>" * 10) == 1.0
    )


SEEK = [
    "<search>zed ada</search>", "<judge>No</judge><search>bob</search>", "<judge> yes </judge><answer>t</answer>", "<answer>s</answer>", "what",
]  # fmt: skip


def test_reseek_drops_what_it_judged_and_goes_on_in_a_row_of_its_own(documents: str) -> None:
    trace = searching(f"reseek(steps=2, documents={documents!r}, k=1)", says=SEEK)
    policy = trace.phases[0].loop.policy
    dropped = [r for s in trace.steps for r in s.rollouts if len(r.contexts) > 1]
    assert dropped and [len(g.rollouts) for g in trace.steps[0].groups] == [5, 5]
    for r in dropped:
        before, after = (policy.decode(c[0].observation.tokens) for c in r.contexts[:2])
        judge = next(i for i, t in enumerate(r.turns) if i and not t.continues) - 1
        read = policy.decode(r.turns[judge].observation.tokens)
        assert "Doc 1" in read and r.turns[judge + 1].continues is False
        assert "<information></information>" in after and after.startswith(before[:50])
        searched = sum("<search>" in t.text for t in r.turns[: judge + 1])
        assert after.count("Doc 1") == searched - 1, "what was judged is gone, what the new search found is there"
    for r in (r for s in trace.steps for r in s.rollouts):
        pairs = r.info["judged"]
        em = float(r.info["answer"] == r.prompt.answer)
        due = 0.0 if r.info["answer"] is None else em + sum(0.1 if v == u else -0.1 for v, u in pairs)
        assert r.reward == pytest.approx(due)
    assert any(r.info["judged"] for r in dropped)
    made = trace.updates[0]
    rows = made.batch["answer_B"]
    for b, last in enumerate(rows.tolist()):
        if b != last:  # an earlier context has the credit of its episode
            own = made.batch["adv_BT"][b][made.batch["mask_BT"][b] > 0]
            assert own.unique().numel() == 1 and float(own[0]) == pytest.approx(
                float(made.batch["adv_BT"][last].abs().max() * own[0].sign())
            )
    kept = searching(f"reseek(steps=1, documents={documents!r}, drop=False, paid='code')", says=SEEK)
    assert all(len(r.contexts) == 1 for s in kept.steps for r in s.rollouts)
    assert kept.phases[0].method.rollout.defaults()["n"] == 5 and "reward_before" in trace.summary


def test_a_late_judgement_drops_the_information_and_not_what_was_said_since(documents: str) -> None:
    says = ["<search>ada</search>", "hm", "<judge>no</judge><search>bob</search>", "<answer>s</answer>"]
    name = f"reseek(steps=1, documents={documents!r}, k=1)"
    trace = searching(name, says=[t for t in says for _ in range(2)], prompts=1, num_generations=2, eval_problems=0)
    policy = trace.phases[0].loop.policy
    late = [
        r for s in trace.steps for r in s.rollouts if [t.text for t in r.turns][:3] == says[:3] and len(r.contexts) > 1
    ]
    assert late
    for r in late:
        after = policy.decode(r.contexts[1][0].observation.tokens)
        assert "ada is s" not in after and "neither a search nor an answer" in after and "bob is t" in after


def test_a_frozen_model_answers_the_next_step_after_one_that_failed() -> None:
    class Two:
        def sample(self, prompts: Any, n: int, how: Any) -> Any:
            return [
                [Rollout(p, [Turn.of(Observation(torch.tensor([1])), torch.tensor([1]), torch.zeros(1), p.id)])]
                for p in prompts
            ]

    asked = Asked(Two(), Sampling())  # type: ignore[arg-type]

    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.wait_for(_ended(asked), 5))
    loop.close()

    async def both() -> list[str]:
        return await asyncio.gather(asked.ask(Prompt.text("b", "x")), asked.ask(Prompt.text("c", "x")))

    assert asyncio.run(asyncio.wait_for(both(), 5)) == ["b", "c"]


async def _ended(asked: Asked) -> None:
    """A question of a loop that ends before anybody answers."""
    asked.waiting.append((Prompt.text("a", "x"), asyncio.get_running_loop().create_future()))


def test_reseek_searches_so_often_and_no_more(documents: str) -> None:
    trace = searching(f"reseek(steps=1, documents={documents!r}, turns=2)", says=["<search>ada</search>"])
    assert {(len(r.info["queries"]), len(r.turns)) for r in trace.steps[0].rollouts} == {(2, 3)}, "and a turn to answer"


def test_reseek_says_what_it_needs(documents: str) -> None:
    with pytest.raises(pt.UserError, match=r"--plan\.documents FOLDER"):
        traced("reseek")
    with pytest.raises(pt.UserError, match="by 'label' or as in the 'code'"):
        traced("reseek(paid='x')")


def test_reseek_may_ask_a_reranker(documents: str) -> None:
    file = Path(documents).with_name("close_to.py")
    file.write_text("def close(prompt, text):\n    return 0.9 if 'bob' in text else 0.1\n")
    name = f"reseek(steps=1, documents={documents!r}, k=1, reranker='{file}:close')"
    trace = searching(name, says=["<search>bob</search>", "<judge>No</judge><answer>t</answer>"])
    assert {(v, u) for s in trace.steps for r in s.rollouts for v, u in r.info["judged"]} == {(False, True)}
