"""All source layouts of a Llama convert to the same tensors and the same logits."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.store import Store
from tests.support import llama_layouts, tiny
from tests.support.checkpoint_layouts import LLAMA, write_split
from tests.support.same_logits import assert_same_logits
from tests.support.tiny_llama import tiny_llama


def model_of(**changes: Any) -> transformers.LlamaForCausalLM:
    """A tiny Llama whose sizes are divisible by 4, for up to four shards."""
    sizes = {
        "vocab_size": 104,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    return tiny_llama(**{**sizes, **changes}).requires_grad_(False)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, torch.Tensor]:
    """A model, and the logits of the engine for the directory that transformers writes."""
    folder = tmp_path_factory.mktemp("reference")
    model = model_of()
    model.save_pretrained(folder / "in")
    convert(folder / "in", folder / "out")
    return model, tiny.Bench(folder / "out").last_logits(list(range(3, 60)))


@pytest.mark.parametrize("name", LLAMA)
def test_all_layouts_convert_to_the_same_model(
    tmp_path: Path, reference: tuple[Any, torch.Tensor], name: str
) -> None:
    model, expected = reference
    source = LLAMA[name](tmp_path / "in", model)
    convert(source, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == set(model.state_dict())
    for tensor, value in model.state_dict().items():
        assert torch.equal(found[tensor], value), tensor
    assert_same_logits(tiny.Bench(tmp_path / "out").last_logits(list(range(3, 60))), expected)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        assert_same_logits(again(ids).logits, model(ids).logits)


def test_rotary_scores_equal_those_of_metas_layout(tmp_path: Path) -> None:
    """Meta's complex rotation of neighboring pairs equals the rotation of halves."""
    model = model_of()
    llama_layouts.write_meta(tmp_path / "in", model)
    convert(tmp_path / "in", tmp_path / "out")
    meta = torch.load(tmp_path / "in" / "consolidated.00.pth")
    ours = load_file(tmp_path / "out" / "model.safetensors")
    x = torch.randn(6, 64)
    angles = torch.arange(6)[:, None] / 10000.0 ** (torch.arange(0, 8, 2) / 8)
    rotation = torch.polar(torch.ones_like(angles), angles)[:, None]
    cos, sin = (f(torch.cat([angles, angles], 1))[:, None] for f in (torch.cos, torch.sin))

    def by_pairs(name: str) -> torch.Tensor:
        heads = (x @ meta[f"layers.2.attention.{name}.weight"].T).view(6, -1, 4, 2)
        return torch.view_as_real(torch.view_as_complex(heads) * rotation).flatten(2)

    def by_halves(name: str) -> torch.Tensor:
        heads = (x @ ours[f"model.layers.2.self_attn.{name}.weight"].T).view(6, -1, 8)
        first, second = heads.chunk(2, -1)
        return heads * cos + torch.cat([-second, first], -1) * sin

    expected = torch.einsum("ihd,jhd->hij", by_pairs("wq")[:, ::2], by_pairs("wk"))
    found = torch.einsum("ihd,jhd->hij", by_halves("q_proj")[:, ::2], by_halves("k_proj"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["bin", "bin from before torch 1.6", "sharded bin"])
def test_bin_files_run_without_conversion(
    tmp_path: Path, reference: tuple[Any, torch.Tensor], name: str
) -> None:
    model, expected = reference
    source = LLAMA[name](tmp_path / "in", model)
    assert_same_logits(tiny.Bench(source).last_logits(list(range(3, 60))), expected)


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (llama_layouts.write_bin, {}),
        (llama_layouts.write_megatron, {"tp": 3, "pp": 2}),
        (llama_layouts.write_meta, {"parts": 3, "embed_rows": True}),
    ],
)
def test_tied_embeddings_are_written_once(
    tmp_path: Path, write: Callable[..., None], options: dict[str, Any]
) -> None:
    """With the nine heads and three KV heads of SmolLM2, in three parts."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}
    model = model_of(tie_word_embeddings=True, **heads, vocab_size=105)
    write(tmp_path / "in", model, **options)
    convert(tmp_path / "in", tmp_path / "out")
    found, expected = load_file(tmp_path / "out" / "model.safetensors"), model.state_dict()
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(found[name], expected[name]) for name in found)
    model.save_pretrained(tmp_path / "theirs")
    ignored = {"bos_id": None, "eos_ids": (), "max_context_tokens": 0}
    ours, theirs = (
        replace(Model.open(tmp_path / name).config, **ignored) for name in ("out", "theirs")
    )
    assert ours.head.tied and ours == theirs


def test_split_gguf_behind_symlinks_of_the_hub_cache(tmp_path: Path) -> None:
    first = write_split(tmp_path / "in", model_of())
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for number, file in enumerate(sorted(first.parent.glob("*-of-00003.gguf"))):
        file.rename(tmp_path / "blobs" / f"{number:064}")
        (tmp_path / "snapshot" / file.name).symlink_to(tmp_path / "blobs" / f"{number:064}")
    store = Store(tmp_path / "models", tmp_path / "cache")
    Model.open(store.resolve(str(tmp_path / "snapshot" / first.name))).checkpoint()


def test_megatron_with_biases(tmp_path: Path) -> None:
    model = model_of(attention_bias=True, mlp_bias=True)
    llama_layouts.write_megatron(tmp_path / "in", model, tp=2, pp=2)
    convert(tmp_path / "in", tmp_path / "out", dtype="bfloat16")
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(found[name], value.to(torch.bfloat16)), name


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"norm_eps": 1e-6}, {"max_position_embeddings": 2048}),
        ({"rope_theta": None}, {"max_position_embeddings": 4096, "rope_theta": 10000.0}),
        ({"rope_theta": 1e6}, {"max_position_embeddings": 16384, "rope_theta": 1e6}),
        ({"n_kv_heads": 4}, {"num_key_value_heads": 4}),
        ({"sliding_window": 32}, {"architectures": ["MistralForCausalLM"], "sliding_window": 32}),
        ({"vocab_size": 104}, {"vocab_size": 104}),
        (
            {"use_scaled_rope": True, "rope_theta": 5e5},
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
        ),
    ],
)
def test_config_from_params(
    tmp_path: Path, params: dict[str, Any], expected: dict[str, Any]
) -> None:
    llama_layouts.write_meta(tmp_path / "in", model_of(), params=params)
    (tmp_path / "in" / "tokenizer.model").write_bytes(b"any")
    convert(tmp_path / "in", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: config[name] for name in expected} == expected
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == b"any"
    Model.open(tmp_path / "out").checkpoint()


# Damaged and inconsistent sources


def assert_rejected(source: Path, message: str) -> None:
    with pytest.raises(BadModelFile, match=message) as caught:
        convert(source, source.parent / "out")
    assert caught.value.exit_code == 7
    assert not (source.parent / "out").exists()


def change(file: Path, **tensors: torch.Tensor | None) -> None:
    """Replace (None: remove) tensors of a file of torch.save."""
    state = {**torch.load(file), **tensors}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, file)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dim": 10**30}, r"params.json: invalid model config: .*hidden_size"),
        ({"n_heads": "8"}, r"params.json: invalid model config: .*num_attention_heads"),
        ({"n_layers": None}, r"num_hidden_layers is missing"),
        ({"n_layers": 5}, r"consolidated.00.pth: no tensor layers.4.attention.wq.weight"),
        ({"n_layers": 3}, r"tensor layers.3.attention.wq.weight does not belong to Llama"),
        ({"n_kv_heads": 2}, r"k_proj.weight from 2 shards: expected \[16, 64\], found \[32, 64\]"),
        ({"vocab_size": 208}, r"embed_tokens.weight from 2 shards: expected \[208, 64\]"),
        ({"moe": {"num_experts": 8}}, "MoE is not supported"),
    ],
)
def test_inconsistent_params_raise_an_error(
    tmp_path: Path, params: dict[str, Any], message: str
) -> None:
    llama_layouts.write_meta(tmp_path / "in", model_of(), 2, params=params)
    assert_rejected(tmp_path / "in", message)


def test_inconsistent_shards_raise_an_error(tmp_path: Path) -> None:
    llama_layouts.write_meta(tmp_path / "in", model_of(), 2)
    second = tmp_path / "in" / "consolidated.01.pth"
    name = "layers.1.feed_forward.w2.weight"
    original = torch.load(second)[name]
    change(second, **{name: None})
    assert_rejected(tmp_path / "in", f"01.pth: no tensor {name}")
    change(second, **{name: original[:, :5]})
    assert_rejected(tmp_path / "in", "01.pth.*strides")
    change(second, **{name: original[:, :5].clone()})
    assert_rejected(tmp_path / "in", rf"01.pth: tensor {name}: .*\[64, 48\], found \[64, 5\]")
    for odd in (torch.tensor(1.0), torch.ones(0, 3), torch.ones(2, 3, 4)):
        change(second, **{name: odd})
        assert_rejected(tmp_path / "in", f"01.pth: tensor {name}: expected a vector or matrix")
    change(second, **{name: original.to(torch.int32)})
    assert_rejected(tmp_path / "in", f"01.pth: tensor {name}: expected one of .*, found I32")
    change(second, **{name: original, "vision.weight": torch.ones(2)})
    assert_rejected(tmp_path / "in", "tensor vision.weight does not belong to Llama")
    second.unlink()
    assert_rejected(tmp_path / "in", r"from 1 shards: expected .* found")
    (tmp_path / "in" / "consolidated.00.pth").rename(second)
    assert_rejected(tmp_path / "in", "expected consolidated.00.pth, found consolidated.01.pth")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"swiglu": False}, r"not like GPT-2 \(swiglu is not set\).*normalization"),
        ({"normalization": "LayerNorm"}, "not like Llama.*normalization"),
        ({"num_experts": 8}, "num_experts"),
        ({"num_layers": 6}, "no tensor self_attention.linear_qkv.weight of layer 4"),
        ({"num_query_groups": 8}, "groups of 24 rows in each shard, found 64"),
        ({"num_query_groups": 0}, "num_key_value_heads"),
        ({"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_inconsistent_args_raise_an_error(
    tmp_path: Path, args: dict[str, Any], message: str
) -> None:
    llama_layouts.write_megatron(tmp_path / "in", model_of(), 2, 2, args=args)
    assert_rejected(tmp_path / "in", message)


def test_missing_shards_of_megatron(tmp_path: Path) -> None:
    llama_layouts.write_megatron(tmp_path / "in", model_of(), 2, 2)
    iteration = tmp_path / "in" / "iter_0000010"
    (iteration / "mp_rank_01_001" / "model_optim_rng.pt").unlink()
    assert_rejected(tmp_path / "in", "mp_rank_01_001: model_optim_rng.pt is missing")
    shutil.rmtree(iteration / "mp_rank_01_001")
    assert_rejected(tmp_path / "in", "rank 1 of stage 1 is missing")
    (tmp_path / "in" / "latest_checkpointed_iteration.txt").write_text("../../../etc")
    assert_rejected(tmp_path / "in", "is not an iteration")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split.no": 1}, "not the first of its 3 files"),
        ({"split.no": 0}, r"00002-of-00003.gguf: expected split.no 1 of 3, found 0 of 3"),
        ({"split.tensors.count": 5}, "expected 5 tensors in 3 files, found 39"),
        ({"split.count": 2000}, "split.count is 2000"),
        ({"split.count": 4}, "split-?00003|is missing: the model has 4 files|00004"),
    ],
)
def test_inconsistent_split_gguf_raises_an_error(
    tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    assert_rejected(write_split(tmp_path / "in", model_of(), changes=changes), message)


def test_missing_file_of_a_split_gguf(tmp_path: Path) -> None:
    first = write_split(tmp_path / "in", model_of())
    third = first.with_name("tiny-00003-of-00003.gguf")
    content = third.read_bytes()
    third.unlink()
    assert_rejected(first, "00003-of-00003.gguf is missing")
    third.write_bytes(content[: len(content) // 2])
    assert_rejected(first, "00003-of-00003.gguf: .*truncated")
    third.write_bytes(content)
    renamed = first.rename(first.with_name("renamed.gguf"))
    assert_rejected(renamed, "must end with")


@pytest.mark.fault(1)
def test_code_in_a_pickle_never_runs(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    llama_layouts.write_meta(tmp_path / "in", model_of())
    change(tmp_path / "in" / "consolidated.00.pth", extra=Payload())  # type: ignore[arg-type]
    assert_rejected(tmp_path / "in", "nothing was executed")
    assert not (tmp_path / "ran").exists()
