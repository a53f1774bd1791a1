"""GGUF files of every architecture with invalid tensors or metadata."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.formats.gguf_header import GgufTensor
from swiftchat.weights.gguf.architectures import GGUF_ARCHITECTURES, gguf_architecture
from swiftchat.weights.gguf.config import model_config_json
from swiftchat.weights.gguf.tensors import tensor_sources
from tests.support.gguf.models import copy_case, write_case


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        (
            "mixtral",
            {"metadata": {"expert_count": 5}},
            r"blk.0.ffn_gate_inp.weight: expected \[5, 48\], found \[4, 48\]",
        ),
        ("mixtral", {"metadata": {"expert_count": 10**9}}, "num_local_experts"),
        ("mixtral", {"metadata": {"expert_count": "many"}}, "num_local_experts"),
        ("mixtral", {"metadata": {"expert_used_count": 5}}, "num_experts_per_tok"),
        ("mixtral", {"metadata": {"expert_count": None}}, r"blk.0.ffn_gate.weight: expected"),
        (
            "mixtral",
            {"without": ("blk.1.ffn_up_exps.weight",)},
            r"blk.1.ffn_up_exps.weight: expected \[4, 80, 48\], found nothing",
        ),
        (
            "mixtral",
            {"tensors": {"blk.2.ffn_down_exps.weight": np.zeros((4, 80, 48), np.float32)}},
            r"blk.2.ffn_down_exps.weight: expected \[4, 48, 80\], found \[4, 80, 48\]",
        ),
        (
            "mixtral",
            {"tensors": {"blk.0.ffn_up_exps.weight": np.zeros((3, 80, 48), np.float32)}},
            r"blk.0.ffn_up_exps.weight: expected \[4, 80, 48\], found \[3, 80, 48\]",
        ),
        (
            "mixtral",
            {"tensors": {"blk.0.ffn_up_exps.weight": np.zeros((320, 48), np.float32)}},
            r"blk.0.ffn_up_exps.weight: expected \[4, 80, 48\], found \[320, 48\]",
        ),
        (
            "qwen3moe",
            {"metadata": {"expert_feed_forward_length": 25}},
            r"blk.0.ffn_gate_exps.weight: expected \[5, 25, 48\], found \[5, 24, 48\]",
        ),
        ("qwen3moe", {"metadata": {"expert_used_count": None}}, "expert_used_count is missing"),
        ("gemma", {"metadata": {"attention.layer_norm_rms_epsilon": None}}, "eps is missing"),
        ("gpt2", {"metadata": {"context_length": None}}, "max_position_embeddings is missing"),
        (
            "qwen3moe",
            {"tensors": {"blk.0.ffn_up_shexp.weight": np.zeros((80, 48), np.float32)}},
            "ffn_up_shexp.weight: not part of this architecture",
        ),
        (
            "stablelm",
            {"tensors": {"blk.0.attn_q_norm.weight": np.zeros((6, 8), np.float32)}},
            "attn_q_norm.weight: not part of this architecture",
        ),
        (
            "gemma3",
            {"metadata": {"attention.sliding_window_pattern": "often"}},
            "or a list of 3 flags",
        ),
        (
            "gemma3",
            {"metadata": {"attention.sliding_window_pattern": [True]}},
            "or a list of 3 flags",
        ),
        ("gemma2", {"metadata": {"attn_logit_softcapping": -1.0}}, "attn_logit_softcapping"),
        ("gptneox", {"metadata": {"rope.dimension_count": 9}}, "rotary|share"),
        ("llama", {"metadata": {"rope.dimension_count": 4}}, "partial_rotary_factor must be"),
        ("llama", {"metadata": {"attention.key_length": "8"}}, "value_length differs"),
        (
            "gpt2",
            {"metadata": {"feed_forward_length": 100}},
            r"blk.0.ffn_up.weight: expected \[100, 48\], found \[192, 48\]",
        ),
        ("falcon-40b", {"metadata": {"attention.head_count_kv": 4}}, "num_kv_heads|divisor"),
        (
            "bloom",
            {"tensors": {"blk.0.attn_qkv.weight": np.zeros((96, 48), np.float32)}},
            r"blk.0.attn_qkv.weight: expected \[144, 48\], found \[96, 48\]",
        ),
        (
            "phi3-longrope",
            {"without": ("rope_factors_short.weight",)},
            "rope_factors_short.weight: expected one dimension, found nothing",
        ),
        (
            "phi3-longrope",
            {"tensors": {"rope_factors_long.weight": np.ones(5, np.float32)}},
            "long_factor must be a list of 3",
        ),
    ],
)
def test_invalid_tensor_or_metadata_raises_an_error(
    name: str, changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    copy_case(name, tmp_path / "theirs")
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", **changes)
    with pytest.raises(BadModelFile, match=complaint):
        convert(tmp_path / "model.gguf", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


_KEYS: dict[str, Any] = {
    "block_count": 3,
    "context_length": 256,
    "embedding_length": 48,
    "feed_forward_length": 80,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.key_length": 8,
    "attention.value_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.sliding_window": 9,
    "attention.sliding_window_pattern": 3,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "expert_used_count": 2,
    "expert_feed_forward_length": 24,
    "expert_count": 4,
    "use_parallel_residual": True,
    "rope.dimension_count": 8,
    "rope.freq_base": 1e4,
    "rope.freq_base_swa": 1e4,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 2.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_attn_factor": 1.0,
}
_JUNK = ["x", "", -1, 0, 1, 2**31, 2**63, math.nan, math.inf, 1e-300, [1, 2], [], ["a"], True]


@pytest.mark.parametrize("arch", GGUF_ARCHITECTURES)
def test_any_metadata_value_raises_only_bad_model_file(arch: str) -> None:
    """The file has one tensor only, so valid metadata fails too, for a missing tensor.

    Each architecture has one value for each key, and all of them together have all values.
    """
    embed = GgufTensor("token_embd.weight", (97, 48), "F32", 0, 97 * 48 * 4)
    first = list(GGUF_ARCHITECTURES).index(arch)
    for index, key in enumerate(_KEYS):
        junk = _JUNK[(first + index) % len(_JUNK)]
        metadata = {f"{arch}.{name}": value for name, value in _KEYS.items()}
        metadata |= {"general.architecture": arch, f"{arch}.{key}": junk}
        file = GgufFile(Path("x.gguf"), metadata, {embed.name: embed}, [], [])
        with pytest.raises(BadModelFile):
            config = model_config_json(file, "float32")
            tensor_sources(file, gguf_architecture(file)[0], read_model_config(config))
