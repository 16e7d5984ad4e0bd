"""Memory by part and seconds by stage, by hand for a small shape; and the numbers of the engine and the trainer themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posttrain.inference import engine, pages
from posttrain.models import likelihood
from posttrain.models.shape import DecoderConfig
from posttrain.planning import memory
from posttrain.planning.costs import Costs, Layout
from posttrain.planning.hardware import PCIE, Cluster, Device, cluster
from posttrain.planning.lengths import Lengths
from posttrain.planning.shapes import Shape, known_shape
from posttrain.planning.speed import ADAM_BYTES, Pace, Speed, makespan
from posttrain.planning.work import Work
from posttrain.runs import estimate

TINY = Shape(10, 4, 6, 2, 2, 1, 3)
WORK = Work(4, 3, Lengths(5, 5, 0.0), 7, 15)
FREE = Speed(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
ONES = Speed(0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0)
UNIT = Device("unit", 1.0, 1.0, 1e6)


# ---- memory


def test_the_numbers_are_those_of_the_code() -> None:
    assert (memory.PAGE, memory.SHARE, memory.CHUNK) == (pages.PAGE, engine.SHARE, likelihood.CHUNK_GPU)
    assert memory.MAX_SLOTS == estimate.MAX_SLOTS_GPU


def test_what_a_trainer_rank_keeps() -> None:
    """348 parameters over 4 ranks; a layer has 152, the ends 44. Gathered in bf16: two layers and the ends; summed in fp32: a layer and the
    ends. The critic has its own weights, gradient and two moments, 16 bytes each."""
    assert memory.resident(TINY, replace(WORK, critic="own"), 4) == {
        "fp32 shards of the parameters": 348.0, "frozen weights, sharded": 0.0, "optimiser": 696.0, "gradients": 348.0,
        "gathered bf16 layers": 2.0 * (2 * 152 + 44) + 4.0 * (152 + 44), "reference": 174.0, "critic": 4.0 * 348,
    }  # fmt: skip


def test_adapters_are_all_that_learns() -> None:
    """Rank 2: 256 numbers (tests/runs/test_estimate.py), 128 a layer; the frozen weights are sharded in bf16."""
    parts = memory.resident(TINY, replace(WORK, lora=2, reference=False), 4)
    assert parts["fp32 shards of the parameters"] == 256 and parts["frozen weights, sharded"] == 174
    assert parts["gathered bf16 layers"] == 2 * (2 * 152 + 44) + 4 * 128 and parts["reference"] == 0


def test_cells_hold_at_least_one_answer() -> None:
    """15 answer tokens: three answers of 5 and their prompt; a limit below an answer is an answer."""
    assert (
        WORK.cell == 15 + 7
        and replace(WORK, micro_tokens=2).cell == 5 + 7
        and replace(WORK, micro_tokens=16).cell == 16 + 14
    )


@pytest.mark.parametrize("room", [3.3e9, 5e9, 9e9, 40e9])
def test_layers_recompute_as_the_trainer_decides(room: float) -> None:
    shape = Shape(151936, 896, 4864, 24, 14, 2, 64, family="qwen2")
    config = DecoderConfig.of(shape.as_config())
    work = Work(16, 8, Lengths(2048, 2048, 0.0), 128, 16384)
    assert config and memory.passing(shape, work, room)[1] == estimate.layers_recomputed(config, work.cell, room)


def test_activations_by_hand() -> None:
    """A token keeps 2*(6*4 + 2*6 + 3*6 + 2*3) = 120 bytes per layer (queries are 6 wide); with both layers recomputed the inputs of both, 4 numbers of the stream in fp32
    and 4 in bf16 that are to be added to it, 24 bytes each, and one layer in full."""
    roomy, kept = memory.passing(TINY, WORK, 1e12)
    assert kept == 0 and roomy == {"activations": 22 * 2 * 120, "logits, in chunks": 2 * 22 * 10}
    tight, both = memory.passing(TINY, WORK, 0.0)
    assert both == 2 and tight["activations"] == 22 * (2 * 24 + 120)
    assert memory.passing(TINY, replace(WORK, critic="own"), 1e12)[0]["activations"] == 2 * roomy["activations"]


@pytest.mark.parametrize(
    "model, kept",
    [("HuggingFaceTB/SmolLM2-135M", 19_390), ("Qwen/Qwen2.5-1.5B", 79_800), ("Qwen/Qwen2.5-7B", 174_100)],
)
def test_activations_are_counted_as_measured(model: str, kept: int) -> None:
    """Bytes per token and layer on one H200: 8 layers, 16,384 tokens."""
    assert memory.activation_bytes(known_shape(model)[1]) == pytest.approx(kept, rel=0.01)  # type: ignore[index]


def test_keys_and_values_by_hand() -> None:
    """A position is 2*2*3*2 = 24 bytes, a page of 64 is 1536; an answer and a third of a prompt: 2048. All 12 where there is room; where half of
    the room is 6144, 3 at a time and all of that half; where it is not enough for one, none."""
    assert memory.keys_and_values(TINY, WORK, 1e9, 12) == (12 * 2048, 12)
    assert memory.keys_and_values(TINY, WORK, 2 * 6200, 12) == (6200, 3)
    assert memory.keys_and_values(TINY, WORK, 2 * 2000, 12) == (0, 0)
    assert memory.keys_and_values(TINY, WORK, 2 * 6200, 12, tp=2) == (6200, 6)  # each card holds half


def test_a_colocated_card_has_both() -> None:
    """The whole weights in bf16 once, also on a card that only trains. The engine joins queries, keys and values (4 x 12) and gate and up
    (4 x 12) of two layers; with adapters it copies all 144 numbers of a layer's matrices."""
    found = memory.colocated(TINY, WORK, 4, 3, 1e9)
    alone = memory.trainer(TINY, WORK, 4, 1e9)
    assert alone.parts["whole bf16 copy"] == found.parts["engine's weights"] == 2 * 348
    assert found.parts["engine's joined matrices"] == 2 * 2 * (4 * 12 + 4 * 12)
    assert memory.fused(TINY, replace(WORK, lora=2)) == 2 * 2 * 144
    assert found.total == alone.total + 384 + 3 * 2048 and found.fits and found.slots == 3
    assert memory.worker(TINY, WORK, 3, 1e9).total == 2 * 348 + 384 + 3 * 2048
    assert "engine's joined matrices" not in memory.worker(TINY, WORK, 3, 1e9, tp=2).parts  # not posttrain's own
    # beside weights and shards 7000 bytes: half of it would be 3500 for pages, but training needs 22 * 168 + 440 = 4136 when every layer
    # recomputes; what is left has room for one answer of 2048
    tight = memory.colocated(TINY, WORK, 4, 3, sum(memory.resident(TINY, WORK, 4).values()) + 2 * 348 + 384 + 7000)
    assert tight.fits and tight.slots == 1 and tight.parts["keys and values"] == 7000 - 4136
    reward = memory.colocated(TINY, replace(WORK, reward_shape=TINY), 4, 3, 1e9)
    assert reward.total == found.total + 2 * 348


def test_lengths_that_an_engine_holds() -> None:
    """All of 10: at the end every answer holds 10. Half of 2, half of 10: E[x^2] / 2 E[x] = 52 / 12; of answers that began together the
    most is 10 x 1/2."""
    assert Lengths(10, 10, 0.0).held == 10
    assert Lengths(6, 10, seen=[2, 10]).held == pytest.approx(5.0, rel=0.06)
    drawn = Lengths(100, 1000)
    assert 80 < drawn.held < 120 and drawn.draw(5, __import__("random").Random(1)) == drawn.draw(
        5, __import__("random").Random(1)
    )


# ---- seconds


def test_slots_are_refilled() -> None:
    """Two slots: 5 and 3; the third answer of 4 begins at 3 after a wait of 2, and ends at 9; the fourth of 1 begins at 5 + 2: 8."""
    assert makespan([5, 3, 4, 1], 2, 2) == 9 and makespan([5, 3], 2, 2) == 5 and makespan([], 2, 2) == 0


def test_sampling_by_hand() -> None:
    """Answers of 2 and 3 tokens after 7 of prompt: 3 steps read the weights, 2 * 328 bytes; tokens: 2 * 328 FLOPs for each of 5; positions
    seen: 7 * 5 + (4 + 9) / 2, of 24 bytes. Two prompts: 2 * (2*328*7 + 2*2*6*49). On two cards half of it, and four hops a step."""
    pace = Pace(TINY, UNIT, ONES)
    want = 3 * 656 + 5 * 656 + 24 * (35 + 6.5) + 2 * (656 * 7 + 24 * 49)
    assert pace.sample([2, 3], 2, 7, 8) == pytest.approx(want)
    both = replace(pace, tp=2).sample([2, 3], 2, 7, 8)
    assert both == pytest.approx(want / 2 + 3 * 2 * 2 * 15e-6)
    fixed = replace(FREE, call=100.0, prompt=10.0, answer=1.0, layer_decode=0.5)
    assert Pace(TINY, UNIT, fixed).sample([2, 3], 2, 7, 8) == 100 + 20 + 2 + 3 * 2 * 0.5


def test_updates_by_hand() -> None:
    """6 FLOPs per weight and token, 12 per layer, head dimension and pair; frozen weights 4; recomputed layers a third more; a forward
    pass is a third."""
    pace = Pace(TINY, UNIT, ONES)
    matrices, attention = 6 * 328 * 10, 12 * 2 * 6 * 50
    assert pace.update(10, 50) == matrices + attention
    assert pace.update(10, 50, recomputed=1.0) == pytest.approx((matrices + attention) * 4 / 3)
    assert pace.update(10, 50, frozen=True) == pytest.approx(matrices * 2 / 3 + attention)
    assert pace.forward(10, 50) == pytest.approx((matrices + attention) / 3)
    assert pace.step(5) == 5 * ADAM_BYTES


def costs(layout: Layout, speed: Speed = ONES, work: Work = WORK) -> Costs:
    return Costs(TINY, work, Cluster(UNIT, 2, 1, link=1e30), layout, speed)


def test_cells_by_hand() -> None:
    """12 tokens a cell, groups of 3, prompts of 7: 5 + 5 fit, the third answer begins another with its prompt again; 14 alone
    is a cell of its own. Pairs: the prompt's 24.5 and l * (7 + l / 2) of each answer."""
    made = costs(Layout("colocated", 1, 1, shards=1), work=replace(WORK, prompts=2, micro_tokens=12))
    assert made.cells([5, 5, 5, 14, 1, 2]) == [
        (17, 24.5 + 2 * 47.5), (12, 24.5 + 47.5), (21, 24.5 + 14 * 14), (10, 24.5 + 7.5 + 2 * 8.0),
    ]  # fmt: skip
    assert sum(tokens for tokens, _ in made.cells([12, 12])) == 2 * (12 + 7)


def test_training_deals_cells_longest_first() -> None:
    """Four equal cells on two ranks are two each; three are two on one rank. The optimiser works on half of the parameters."""
    work = replace(WORK, prompts=4, n=1, micro_tokens=5, reference=False)
    made = costs(Layout("colocated", 2, 2, shards=2), work=work)
    cell = made.cell(12, 24.5 + 47.5)
    assert made.train([5] * 4) == pytest.approx(2 * cell + 348 / 2 * ADAM_BYTES, rel=1e-6)
    assert made.train([5] * 3) == pytest.approx(2 * cell + 348 / 2 * ADAM_BYTES, rel=1e-6)
    long, short = (
        made.cell(17, 24.5 + 120),
        made.cell(12, 72),
    )  # the longest first: 5 and 5 beside 10, not 5 and 10 beside 5
    assert made.train([5, 5, 10]) == pytest.approx(max(long, 2 * short) + 348 / 2 * ADAM_BYTES, rel=1e-6)
    with_reference = costs(Layout("colocated", 2, 2, shards=2), work=replace(work, reference=True))
    assert with_reference.cell(12, 72) == pytest.approx(made.cell(12, 72) * 4 / 3)
    critic = costs(Layout("colocated", 2, 2, shards=2), work=replace(work, critic="own"))
    assert critic.cell(12, 72) == pytest.approx(made.cell(12, 72) * (2 + 1 / 3))


def test_training_waits_for_slow_links() -> None:
    """A cell gathers 2 x 696 bytes and sums 1392: with links so slow that they alone count, two rounds of it, and the first layers' share."""
    work = replace(WORK, prompts=4, n=1, micro_tokens=5, reference=False)
    made = Costs(TINY, work, Cluster(UNIT, 2, 1, link=1e-3), Layout("colocated", 2, 2, shards=2), ONES)
    moved = 0.5 * (2 * 696 + 1392) / 0.7e-3
    assert made.exchange() == pytest.approx(moved, rel=1e-3)
    assert made.train([5] * 4) == pytest.approx(2 * moved * 1.5, rel=1e-2)


def test_stages_of_a_layout() -> None:
    """4 prompts in 2 shards: 2 prompts with 3 answers each. 6 answers per shard, 4 reward workers, 1.5 s each: 2.25 s of all, at least 1.5."""
    work = replace(WORK, reward_s=1.5)
    made = costs(Layout("split", 1, 2, shards=2, reward_workers=4), work=work)
    stages, tokens = made.stages(3)
    assert tokens == 60 and len(stages.make) == 3 and (stages.score, stages.grade) == (2.25, 1.5)
    assert stages.make[0] == [Pace(TINY, UNIT, ONES).sample([5] * 6, 2, 7, 1024)] * 2
    assert stages.save == 12 * 348 / PCIE and stages.load == 2 * 696
    assert costs(made.layout, work=replace(work, critic="own")).save() == 2 * stages.save
    judged = costs(Layout("split", 1, 2, shards=2), work=replace(WORK, reward_shape=TINY))
    assert judged.stages(1)[0].make[0][0] - stages.make[0][0] == pytest.approx(
        Pace(TINY, UNIT, ONES).forward(72, 6 * 72)
    )


def test_what_is_sent() -> None:
    """All weights in bf16, or the adapters alone; a colocated engine copies them (read and written), others get a broadcast."""
    assert costs(Layout("colocated", 2, 2)).publish() == pytest.approx(2 * 696, rel=1e-4)
    assert costs(Layout("colocated", 2, 2), work=replace(WORK, lora=2)).publish() == pytest.approx(2 * 512, rel=1e-4)
    made = Costs(TINY, WORK, Cluster(UNIT, 2, 2, link=1e30, network=1.0), Layout("split", 1, 2, shards=2), ONES)
    assert made.publish() == pytest.approx(696 / 0.56, rel=1e-4)


def test_cards_that_share_a_row_have_their_part_of_its_tokens_and_all_of_its_keys() -> None:
    # 32,640 + 128 tokens of one cell on 8 cards: 4,096 each. A layer of Qwen2.5-7B keeps 2 x (8 x 3,584 + 3 x 18,944 + 2 x 512) = 173,056
    # bytes of a token, and with the keys and values of the 28,672 other tokens (2 x 2 x 512 = 2,048 bytes each) 7 x 2,048 = 14,336 bytes more. With
    # every layer recomputed its inputs alone are kept in each ((4 + 2) x 3,584 = 21,504), and one layer in full: 4,096 x (28 x 21,504 + 187,392) =
    # 3.234 GB; undivided 32,768 x (28 x 21,504 + 173,056) = 25.40 GB
    shape = known_shape("Qwen/Qwen2.5-7B")[1]  # type: ignore[index]
    long = Work(64, 8, Lengths(8160, 32640), 128)
    divided, recomputed = memory.passing(shape, replace(long, divided=8), -1.0)
    assert recomputed == 28 and divided["activations"] == 4096 * (28 * 21504 + 173056 + 14336)
    assert memory.passing(shape, long, -1.0)[0]["activations"] == 32768 * (28 * 21504 + 173056)


def test_a_shared_row_is_computed_in_parts_and_its_keys_are_gathered() -> None:
    # two cards instead of one: half of the tokens and pairs, and in every layer keys and values gathered (bf16) and their gradients summed (fp32)
    where = cluster("8xh100-80gb", None)
    shape = known_shape("Qwen/Qwen2.5-7B")[1]  # type: ignore[index]
    long = Work(64, 8, Lengths(8160, 32640), 128, reference=False)
    alone, both = (Costs(shape, replace(long, divided=n), where, Layout("colocated", 8, 8)) for n in (1, 2))
    assert alone.gathering(1000) == 0.0
    want = 28 * (where.ring(2 * 2 * 512 * 1000, 2) + where.ring(2 * 4 * 512 * 1000, 2))
    assert both.gathering(1000) == pytest.approx(want)
    assert both.cell(1000, 5e5) == pytest.approx(alone.cell(500, 2.5e5) + want)
