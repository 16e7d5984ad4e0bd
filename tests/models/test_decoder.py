"""Our decoder computes what transformers computes, from the same folder, and writes folders that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from posttrain.core.errors import UserError
from posttrain.models.decoder import Decoder, DecoderConfig, block_mask, inverse_frequencies
from posttrain.models.hf import HFDecoder
from posttrain.models.layout import Rows, pack
from posttrain.policies.load import load_decoder, save_model
from tests.models import tiny

every_family = pytest.mark.parametrize("name", tiny.OURS)


def ids(B: int, T: int, seed: int = 0) -> Tensor:
    return torch.randint(2, tiny.V, (B, T), generator=torch.Generator().manual_seed(seed))


def logits(model: Decoder | HFDecoder, *args: Tensor | None) -> Tensor:
    return model.logits(model.hidden(*args))  # type: ignore[arg-type]


@torch.no_grad()
@every_family
def test_logits_are_transformers(name: str, tmp_path: Path) -> None:
    theirs = tiny.ours(name)
    model = load_decoder(tiny.saved(theirs, tmp_path), torch.float32)
    assert isinstance(model, Decoder)
    tokens_BT = ids(3, 30)
    want_BTV = theirs(tokens_BT).logits
    assert want_BTV.std() > 0.3  # a model that says something
    torch.testing.assert_close(logits(model, tokens_BT), want_BTV, rtol=0, atol=1e-4)


@torch.no_grad()
@every_family
def test_far_positions(name: str, tmp_path: Path) -> None:
    """Beyond the original context of 32 and the stated maximum of 64, where rope scaling acts most."""
    theirs = tiny.ours(name)
    model = load_decoder(tiny.saved(theirs, tmp_path), torch.float32)
    tokens_BT, positions_BT = ids(2, 12), 3000 + 97 * torch.arange(12).expand(2, 12)
    want_BTV = theirs(tokens_BT, position_ids=positions_BT).logits
    torch.testing.assert_close(logits(model, tokens_BT, positions_BT), want_BTV, rtol=0, atol=1e-4)
    assert (want_BTV - theirs(tokens_BT).logits).abs().max() > 1e-2  # the positions were heard


@torch.no_grad()
@every_family
def test_export_round_trip(name: str, tmp_path: Path) -> None:
    """transformers -> ours -> changed by training -> exported -> transformers, and ours again."""
    model = load_decoder(tiny.saved(tiny.ours(name), tmp_path / "in"), torch.float32)
    tiny.randomise(model, seed=1)
    save_model(tiny.policy(model), tmp_path / "out")
    tokens_BT = ids(2, 20)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    torch.testing.assert_close(theirs(tokens_BT).logits, logits(model, tokens_BT), rtol=0, atol=1e-4)
    again = load_decoder(str(tmp_path / "out"), torch.float32)
    assert torch.equal(logits(again, tokens_BT), logits(model, tokens_BT))
    assert (again.config.tied, theirs.config.eos_token_id) == (model.config.tied, 1)


@torch.no_grad()
def test_right_padding_is_not_seen() -> None:
    model, tokens_BT = tiny.decoder(), ids(2, 9)
    short_BTV = logits(model, tokens_BT[:, :5])
    torch.testing.assert_close(logits(model, tokens_BT)[:, :5], short_BTV, rtol=0, atol=1e-6)


@torch.no_grad()
def test_packed_rows_are_separate_rows() -> None:
    """Rows of 8, 11, 8, 5 and 10 tokens in bins of 11 (11 | 10 | 8 | 8 | 5) and of 24 (11 10 | 8 8 5)."""
    model, rows = tiny.decoder(), Rows.of(tiny.rows())
    for capacity, bins in ((None, 5), (24, 2)):
        packed = pack(rows, capacity)
        assert packed.tokens_NL.shape[0] == bins
        h_NLD = model.hidden(packed.tokens_NL, packed.positions_NL, packed.segments_NL)
        for b, n in enumerate(rows.length_B.tolist()):
            alone_TD = model.hidden(rows.tokens_BL[b : b + 1, :n])[0]
            here_TD = packed.states(h_NLD, torch.arange(n).expand(len(rows.length_B), n))[b]
            torch.testing.assert_close(here_TD, alone_TD, rtol=0, atol=1e-5)


def test_block_mask_by_hand() -> None:
    """Segments 0 0 1 and padding: the 1 sees only itself, and so does padding (a row of no keys would be nan)."""
    want = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert block_mask(torch.tensor([[0, 0, 1, -1]]))[0, 0].int().tolist() == want


@torch.no_grad()
def test_token_by_token_is_all_at_once() -> None:
    """Prompts of 3, 7 and 5 tokens read together, rows forked and reordered, 6 steps, against one long row each."""
    model = tiny.decoder()
    tokens_BT, lengths_B, order = ids(3, 13), torch.tensor([3, 7, 5]), torch.tensor([2, 0, 0, 1])
    h_BD, cache = model.prefill(tokens_BT[:, :7], lengths_B, 13)
    whole_BTD = model.hidden(tokens_BT)
    torch.testing.assert_close(h_BD, whole_BTD[[0, 1, 2], lengths_B - 1], rtol=0, atol=1e-5)
    cache.select(order)
    for t in range(6):
        at_B = lengths_B[order] + t
        h_BD = model.step(tokens_BT[order, at_B], cache)
        torch.testing.assert_close(h_BD, whole_BTD[order, at_B], rtol=0, atol=1e-5)


def test_llama3_frequencies_by_hand() -> None:
    """theta 100, d = 4: frequencies 1 and 0.1; original context 32, low 1, high 4, factor 8.

    turns = 32 f / 2 pi = 5.09 and 0.509: the first is above high, so kept; the second below low, so divided by 8.
    With context 16: turns 2.546, smooth = 1.546 / 3 = 0.5155, f = 0.4845 / 8 + 0.5155 = 0.5761.
    """
    shape = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 2,
    }

    def frequencies(context: int) -> list[float]:
        rope = tiny.LLAMA3 | {"original_max_position_embeddings": context}
        return inverse_frequencies(DecoderConfig(**shape, head_dim=4, rope_theta=100.0, rope=rope)).tolist()

    assert frequencies(32) == pytest.approx([1.0, 0.1 / 8])
    assert frequencies(16) == pytest.approx([0.5761, 0.1 / 8], abs=1e-4)


@torch.no_grad()
def test_bf16_keeps_the_angles() -> None:
    """A cast of the model must not cast the rotary frequencies: at position 4000 that is off by radians."""
    model = tiny.decoder()
    far = torch.tensor([[4000]])
    want, got = model.rope(far), model.to(torch.bfloat16).rope(far)
    assert model.inv_freq.dtype == torch.float32 and model.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(torch.stack(got), torch.stack(want))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt2"},
        {"model_type": "mistral", "sliding_window": 4096},
        {"model_type": "mistral"},  # whose window is 4096 when nothing is said
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 100},
        {"model_type": "llama", "hidden_act": "gelu"},
        {"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"model_type": "llama", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ],
)
def test_what_it_does_not_implement_it_leaves(changes: dict) -> None:
    assert DecoderConfig.of(tiny.SIZE | changes) is None


@torch.no_grad()
@pytest.mark.parametrize("name", tiny.THEIRS)
def test_other_architectures_go_through_transformers(name: str, tmp_path: Path) -> None:
    theirs = tiny.theirs(name)
    model = load_decoder(tiny.saved(theirs, tmp_path / "in"), torch.float32)
    assert isinstance(model, HFDecoder)
    tokens_BT = ids(2, 12)
    want_BTV = theirs(tokens_BT).logits
    assert torch.equal(logits(model.train(), tokens_BT), want_BTV)  # in training too: nothing is dropped out
    assert model.hidden(tokens_BT).shape[-1] == model.width
    save_model(tiny.policy(model), tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert torch.equal(again(tokens_BT).logits, want_BTV)


def test_an_unknown_head_is_refused() -> None:
    """A model that does something else to its logits would be sampled and trained consistently wrong."""
    model = HFDecoder(tiny.theirs("gpt_neox"))
    inner_forward = model.inner.forward

    def scaled(*args: object, **kwargs: object) -> object:
        out = inner_forward(*args, **kwargs)
        out.logits = out.logits * 2
        return out

    model.inner.forward = scaled
    with pytest.raises(UserError, match="logits that is not known"):
        model.checked()


def test_packed_needs_our_decoder() -> None:
    policy = tiny.policy(tiny.wrapped("gpt_neox"))
    policy.layout = "packed"
    with pytest.raises(UserError, match="packed rows need our own decoder"):
        policy.forward(tiny.rollouts())


def test_shards_are_read_and_copies_are_not(tmp_path: Path) -> None:
    """Weights in pieces, an index, and the same weights a second time under other names, as some hubs ship them."""
    from safetensors.torch import load_file, save_file

    theirs = tiny.ours("llama")
    tiny.saved(theirs, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names, index = sorted(state), {}
    for i, part in enumerate((names[:7], names[7:])):
        save_file({n: state[n] for n in part}, tmp_path / f"model-{i}.safetensors")
        index |= {n: f"model-{i}.safetensors" for n in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    save_file({"tok_embeddings.weight": torch.zeros(3)}, tmp_path / "consolidated.safetensors")
    tokens_BT = ids(1, 5)
    model = load_decoder(str(tmp_path), torch.float32)
    torch.testing.assert_close(logits(model, tokens_BT), theirs(tokens_BT).logits, rtol=0, atol=1e-4)
