"""Layers traced for one token: when they are traced, and that results are bitwise equal.

`test_architectures.py` does so for every architecture.
"""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.model import traced_layers
from swiftchat.engine.model.traced_layers import TracedLayers
from swiftchat.engine.schedule.scheduler import Sequence
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.quantization.quantize import QuantizationSpec
from tests.support import tiny
from tests.support.tiny_llama import tiny_llama

CPU = torch.device("cpu")
IDS = tiny.random_ids(3 * tiny.BLOCK_SIZE, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "plain"
    sizes = {"hidden_size": 128, "intermediate_size": 192, "tie_word_embeddings": True}
    tiny_llama(**sizes).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def trace_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_layers, "_UNTRACED_STEPS", 3)


def trace_layers(bench: tiny.Bench) -> TracedLayers:
    """Replace the layers of the bench's decoder by traced ones."""
    layers = TracedLayers(bench.decoder)
    bench.decoder.compute_layers = layers
    return layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_traced_plain_weights_equal_untraced_bitwise(folder: Path, dtype: torch.dtype) -> None:
    bench = tiny.Bench(folder, dtype=dtype)
    expected = bench.logits(IDS)
    layers = trace_layers(bench)
    assert TracedLayers.supports(bench.decoder, CPU)
    assert torch.equal(bench.logits(IDS), expected)
    assert layers.is_traced


@pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"),
    reason="torch has no int4 kernel for this processor",
)
@pytest.mark.parametrize(("scheme", "keep"), [("int4", []), ("int8", []), ("int4", ["*.v_proj.*"])])
def test_traced_quantized_weights_equal_untraced_bitwise(
    folder: Path, tmp_path: Path, scheme: str, keep: list[str]
) -> None:
    convert(folder, tmp_path / scheme, quantization=QuantizationSpec(scheme, keep=keep))
    bench = tiny.Bench(tmp_path / scheme, dtype=torch.bfloat16)
    assert isinstance(bench.decoder.weights.layers[0].qkv, MergedWeight) == bool(keep)
    expected = bench.logits(IDS)
    layers = trace_layers(bench)
    assert TracedLayers.supports(bench.decoder, CPU)
    assert torch.equal(bench.logits(IDS), expected)
    assert layers.is_traced


def test_weights_multiplied_in_tiles_are_not_traced(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "fp8", quantization=QuantizationSpec("fp8"))
    assert not TracedLayers.supports(tiny.Bench(tmp_path / "fp8").decoder, CPU)
    convert(folder, tmp_path / "int8", quantization=QuantizationSpec("int8"))
    assert not TracedLayers.supports(tiny.Bench(tmp_path / "int8").decoder, CPU)  # in fp32


def test_layers_on_a_gpu_are_not_traced(folder: Path) -> None:
    assert not TracedLayers.supports(tiny.Bench(folder).decoder, torch.device("cuda"))


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_batches_other_than_one_token_are_computed_untraced(folder: Path, kv_dtype: str) -> None:
    """Prompts, several sequences, and scattered contexts, after the layers were traced."""
    bench, other = (tiny.Bench(folder, kv_dtype=kv_dtype) for _ in range(2))
    layers = trace_layers(bench)
    found: list[dict[int, torch.Tensor]] = []
    for each in (bench, other):
        each.logits(IDS)
        each.last_logits(IDS[:11])
        taken = [each.allocator.allocate() for _ in range(each.allocator.num_free)]
        each.allocator.release(taken[::2])
        each.held = [taken[1::2]]
        each.scheduler.add(Sequence(1, IDS[::-1], SamplingParams()))
        each.scheduler.add(Sequence(2, IDS[3:], SamplingParams()))
        rows: list[dict[int, torch.Tensor]] = [each.step()]
        for sequence in each.scheduler.running:
            sequence.tokens.append(7)
        rows.append(each.step())
        each.scheduler.remove(each.scheduler.running[0])
        each.scheduler.running[0].tokens.append(9)
        rows.append(each.step())
        found.append({i: torch.stack(list(row.values())) for i, row in enumerate(rows)})
    assert layers.is_traced == (kv_dtype == "auto")
    assert [len(rows) for rows in found[0].values()] == [2, 2, 1]
    for i, rows in found[0].items():
        assert torch.equal(rows, found[1][i])


def test_short_answers_are_not_traced(folder: Path) -> None:
    bench = tiny.Bench(folder)
    layers = trace_layers(bench)
    bench.logits(IDS[:3])
    assert not layers.is_traced
    bench.logits(IDS[:1])
    assert layers.is_traced
