"""Which layouts fit, which is chosen, what would fit, and the command to type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posttrain.cli import command_parser
from posttrain.commands.parser import parse
from posttrain.planning import report, words
from posttrain.planning.hardware import cluster
from posttrain.planning.layouts import WORTH, Plan, Site, choose, what_would_fit
from posttrain.planning.lengths import Lengths
from posttrain.planning.shapes import KNOWN
from posttrain.planning.work import Work

SMALL = Work(64, 8, Lengths(256, 1024), 128)


def site(model: str = "Qwen/Qwen2.5-0.5B", hardware: str = "8xh100-80gb", nodes: int = 1, work: Work = SMALL) -> Site:
    return Site(KNOWN[model], work, cluster(hardware, nodes))


def test_answers_of_32k_tokens_of_a_7b_model_fit_on_8_cards() -> None:
    work = Work(64, 8, Lengths(8192, 32640), 128)
    four = replace(work, divided=4)  # cards that train share a row
    for plan in (site("Qwen/Qwen2.5-7B", work=work).split(6), site("Qwen/Qwen2.5-7B", work=four).split(4)):
        assert plan.fits and plan.slots >= 8, report.too_much(plan)
        assert all(m.total < 76e9 for m in plan.memory.values())


def test_one_model_on_more_cards_takes_less_of_each() -> None:
    few, many = (site("Qwen/Qwen2.5-7B", nodes=n).colocated().memory["card"] for n in (1, 4))
    for part in ("fp32 shards of the parameters", "optimiser", "gradients", "reference"):
        assert few.parts[part] == pytest.approx(4 * many.parts[part])
    assert few.parts["engine's weights"] == many.parts["engine's weights"]


def test_what_does_not_fit_is_said_with_what_would() -> None:
    """14B over 8 cards is 30 GB of shards, moments and gradients in each, beside what is gathered, and 30 of the whole weights in bf16. More
    cards take less of the first. 72B is 145 GB whole, which fits on no card."""
    found = site("Qwen/Qwen2.5-14B", work=replace(SMALL, lengths=Lengths(1024, 4096)))
    plans = list(found.plans())
    assert not any(p.fits for p in plans) and choose(plans) is None
    assert "does not fit: a card would need" in report.too_much(plans[0])
    would = what_would_fit(found)
    assert would and all(w.startswith(("--nodes", "--lora", "--context")) for w in would)
    nodes = next(int(w.split()[1]) for w in would if w.startswith("--nodes"))
    for count, fits in ((nodes, True), (nodes // 2, False)):  # the least that does
        more = replace(found, cluster=replace(found.cluster, nodes=count))
        assert any(p.fits for p in more.plans()) == fits
    assert what_would_fit(replace(found, shape=KNOWN["Qwen/Qwen2.5-72B"])) == []


def test_engines_of_several_cards_are_listed_where_they_are_faster() -> None:
    """A 14B model is 30 GB of weights and 20 of joined matrices: on one 80 GB card there is room for a shard's 32 answers, and each is slower
    than on engines of several cards, which have more answers each. These are listed, and not chosen, because posttrain's own engine has no
    tensor parallel; for a small model they are not even listed. 32B fits on no card of its own. Cells of 8,192 tokens, because 16 cards that train
    have no room for the inputs of more in 48 layers: 8,192 x 48 x 6 x 5,120 is 12 GB."""
    work = replace(SMALL, lengths=Lengths(2048, 8000), micro_tokens=8192)
    large = site("Qwen/Qwen2.5-14B", nodes=4, work=work)
    assert large.split(16).slots == 32 and large.split(16, tp=2).slots == 64
    whole = replace(large, shape=KNOWN["Qwen/Qwen2.5-32B"])
    assert whole.split(16).slots == 0 and whole.split(16, tp=2).slots == 64
    plans = list(large.plans())
    assert plans[-1].layout.tp > 1 and plans[-1].rate > WORTH * plans[2].rate
    assert "sample of" in plans[-1].name
    best = choose(plans)
    assert best and best.layout.tp == 1
    assert choose([plans[-1]]) == plans[-1]  # where nothing else fits
    assert all(p.layout.tp == 1 for p in site(nodes=4, work=work).plans())
    odd = site(hardware="8xh100-80gb").timed(
        site().split(1, tp=2)
    )  # 7 cards for engines of two: one is left over, and is paid for
    assert (
        odd.outcome
        and (odd.outcome.cards, odd.cards) == (7, 8)
        and odd.rate == pytest.approx(odd.tokens / odd.outcome.step / 8)
    )
    assert large.wide(28) == [2, 4] and replace(large, shape=KNOWN["Qwen/Qwen2.5-1.5B"]).wide(16) == [
        2
    ]  # kv heads divide


def test_every_layout_is_listed_and_the_simplest_of_equals_is_chosen() -> None:
    plans = list(site().plans())
    kinds = [(p.layout.kind, p.layout.lag, p.layout.staleness) for p in plans]
    assert kinds == [
        ("colocated", 0, None),
        ("split", 0, None),
        ("split", 1, None),
        ("split", 2, None),
        ("split", 0, 1),
    ]
    best = choose(plans)
    assert best and best.layout.staleness is None
    loose = replace_step(plans[-1], 0.001)
    assert loose.rate > best.rate and choose([*plans, loose]) == best  # what is not reproducible is never chosen
    before = plans[: plans.index(best)]
    assert all(best.rate > WORTH * p.rate for p in before)
    assert all(p.rate <= WORTH * best.rate for p in plans if p.layout.staleness is None)


def test_a_lag_is_faster_than_waiting() -> None:
    """The same cards: synchronous is the sum of rollouts and training, a lag the larger of them, within the start-up and tails."""
    one = site()
    sync, lagged = (one.timed(one.split(4, lag)) for lag in (0, 1))
    stages = report.stage_seconds(sync)
    assert sync.outcome and lagged.outcome
    assert sync.outcome.step == pytest.approx(sum(stages.values()), rel=0.1)
    assert lagged.outcome.step == pytest.approx(max(stages["rollouts"], stages["training"]), rel=0.15)


def test_a_slow_reward_is_the_bottleneck_until_it_has_workers() -> None:
    slow = replace(site(), work=replace(SMALL, reward_s=0.5))
    told, fix = report.bottleneck(slow.timed(slow.colocated()), slow)
    assert told.startswith("rewards") and "--reward-workers" in fix
    assert report.stage_seconds(slow.timed(slow.colocated()))["rewards"] == pytest.approx(64 * 8 * 0.5)
    plenty = replace(slow, reward_workers=1024)
    assert report.stage_seconds(plenty.timed(plenty.colocated()))["rewards"] == 0.5  # an answer takes that long
    many = replace(slow, reward_workers=512)
    assert not report.bottleneck(many.timed(many.colocated()), many)[0].startswith("rewards")


def test_engines_without_prompts_are_told() -> None:
    few = replace(site(nodes=2), work=replace(SMALL, prompts=4))
    told, fix = report.bottleneck(few.timed(few.colocated()), few)
    assert "12 of 16 engines get no prompt" in told and fix == "use --prompts 16 or more"


def test_failures_by_hand() -> None:
    """16 training cards: one fails every 3,125 h, and costs 300 s and half of ten steps; of 22,440 s a step that is 1.0% of 11,250,000 s."""
    one = site(nodes=4)
    plan = one.timed(one.split(16, 1))
    assert "every 3,125 h; with a checkpoint every 10 steps that costs less than 0.1%" in report.failures(plan, one)
    assert "costs 1.0% of the time" in report.failures(replace_step(plan, 22440.0), one)
    assert "100 at 2 per GPU-hour" in report.cost(replace_step(plan, 3600 * 50 / 32), 1, 2.0)


def replace_step(plan: Plan, seconds: float) -> Plan:
    assert plan.outcome
    return replace(plan, outcome=replace(plan.outcome, ticks=[seconds]))


def test_two_changes_where_one_is_not_enough() -> None:
    """Of 38 GB of a card that trains, the whole weights take 15.2 and a cell of 20,480 tokens 15.9 with every layer recomputed, which leaves 7:
    adapters alone need the frozen weights and the reference on one card (30), more cards alone what is gathered (8.4)."""
    small = replace(site("Qwen/Qwen2.5-7B", "1xa100-40gb"), work=Work(16, 8, Lengths(16, 64), 128))
    assert what_would_fit(small) == ["--lora 16 --nodes 16"]


def test_what_is_said_to_fit_fits_when_it_is_typed() -> None:
    """Passes of 10^12 tokens fit nowhere; smaller ones do, a shorter context does not, and what is said is what was tried."""
    large = replace(site(), work=replace(SMALL, micro_tokens=10**12))
    assert what_would_fit(large) == ["--micro-tokens 16384"]
    assert replace(large, work=replace(large.work, micro_tokens=16384)).colocated().fits


# ---- the command


def commands() -> list[str]:
    one, four = site(), site(nodes=4)
    plans = [
        (one, one.colocated()),
        (one, one.colocated(1)),
        (one, one.split(4, 1)),
        (four, four.colocated()),
        (four, four.split(16, 2)),
    ]
    plans.append((one, replace(one.split(4), layout=replace(one.split(4).layout, staleness=1, reward_workers=3))))
    return [words.command(plan, s.work, s.cluster, "Qwen/Qwen2.5-0.5B") for s, plan in plans]


def test_commands_say_what_the_layout_is() -> None:
    same, lagged, split, nodes, far, loose = commands()
    assert same.startswith("posttrain run grpo") and "--gpus 8" in same and "--lag" not in same
    assert lagged.endswith("--gpus 8 --lag 1")
    assert "--gpus 4 --sampler process --rollout-workers 4 --shards 4 --lag 1" in split
    assert nodes.startswith("torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d") and "--gpus" not in nodes
    assert (
        far.startswith("torchrun --nnodes 2 --nproc-per-node 8")
        and "--sampler ray --ray-address auto --rollout-workers 16 --shards 16 --lag 2" in far
    )
    assert "--reward-workers 3 --max-staleness 1" in loose


def test_long_shards_get_time() -> None:
    """Workers are taken for hung after half an hour unless told otherwise."""
    work = replace(SMALL, lengths=Lengths(30000, 32000), prompts=256)
    slow = replace(site("Qwen/Qwen2.5-7B", work=work))
    plan = slow.timed(slow.split(6, 1))
    assert plan.stages
    given = words.command(plan, work, slow.cluster, "m").partition("--rollout-timeout ")[2].split()[0]
    assert int(given) == round(4 * max(map(max, plan.stages.make))) > 3600
    assert "--rollout-timeout" not in words.command(site().timed(site().split(4)), SMALL, site().cluster, "m")


@pytest.mark.parametrize("line", commands())
def test_every_option_of_a_command_is_one_of_run(line: str) -> None:
    """Options for several processes are parsed as soon as `posttrain run` has them; until then doctor says that they are not there."""
    parser = command_parser("run")
    after = line.partition("run grpo ")[2].split()
    missing = words.not_yet(line, parser.names())
    assert set(missing) == {w for w in after if w in words.OPTIONS} - set(parser.names())
    while any(w in missing for w in after):
        place = next(i for i, w in enumerate(after) if w in missing)
        del after[place : place + 2]
    args = parse(parser, ["grpo", *after])
    assert args.prompts == 64 and args.num_generations == 8
