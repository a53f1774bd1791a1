"""Models computed by one native program: against torch, in every format, and when they cannot be.

`tests/engine/model` has every architecture against transformers.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.cpu.native_decoder import NativeDecoder
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.memory import native_workspace_bytes
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.quantization.gguf_blocks import KEPT_TYPES
from swiftchat.weights.quantization.quantize import QuantizationSpec
from tests.support import reference, tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.quantized_models import FORMATS, quantized_model
from tests.support.tiny_llama import tiny_llama
from tests.support.tiny_models import FAMILIES

GREEDY = SamplingParams(temperature=0, max_tokens=8)
IDS = tiny.random_ids(40, seed=1)
# One for each mixer with a state that has kernels.
HYBRIDS = ("lfm2", "qwen3_next", "falcon_h1", "jamba")


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def logits(folder: Path, dtype: torch.dtype, native: bool) -> Tensor:
    """Return the logits after a prompt in chunks of 23 and 17 tokens, and after one token more."""
    bench = tiny.Bench(folder, chunk_tokens=23, dtype=dtype, native=native)
    prompt, end = bench.last_logits(IDS), bench.last_logits([*IDS, 7])
    return torch.stack([prompt, end])


def assert_equals_dequantized(folder: Path, plain: Path) -> None:
    """In fp32 only the order of sums differs; else the error is about that of torch in bf16.

    The native activations have 16 bits or more. Formats that are dequantized to bf16 when they are
    loaded have the same error of the weights in both; half of it is left for the order of sums.
    """
    expected = logits(plain, torch.float32, native=False)
    assert relative_error(logits(folder, torch.float32, native=True), expected) <= 1e-4
    native, by_torch = (logits(folder, torch.bfloat16, native=native) for native in (True, False))
    allowed = relative_error(by_torch, expected)
    assert 0 < relative_error(native, expected) <= 1.5 * allowed


@pytest.mark.parametrize("type_name", sorted(KEPT_TYPES))
def test_gguf_blocks(type_name: str, tmp_path: Path) -> None:
    gguf_directory.write(tmp_path / "in", type_name)
    convert(tmp_path / "in", tmp_path / "plain", dtype="float32")
    assert_equals_dequantized(tmp_path / "in", tmp_path / "plain")


@pytest.mark.parametrize("name", FORMATS)
def test_other_quantization_formats(name: str, tmp_path: Path) -> None:
    quantized_model(tmp_path / "in", *FORMATS[name])
    convert(tmp_path / "in", tmp_path / "plain", dtype="float32")
    assert_equals_dequantized(tmp_path / "in", tmp_path / "plain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "plain"
    sizes = {"hidden_size": 128, "intermediate_size": 192, "tie_word_embeddings": True}
    tiny_llama(**sizes).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def int4(folder: Path) -> Path:
    path = folder.with_name("int4")
    convert(folder, path, quantization=QuantizationSpec("int4"))
    return path


def test_batches_of_changing_sizes_equal_sequences_alone(int4: Path) -> None:
    """A batch does not see what larger and smaller ones before it left in the buffers."""
    prompts = [tiny.random_ids(length, seed=length) for length in (30, 1, 9, 2, 50)]
    bench = tiny.Bench(int4, dtype=torch.bfloat16, chunk_tokens=16, native=True)
    found: dict[int, Tensor] = {}
    for batch in ((0, 1), (2, 3, 4)):
        for i in batch:
            bench.scheduler.add(TokenSequence(i, list(prompts[i]), SamplingParams()))
        while not found.keys() >= set(batch):
            found |= bench.step()
            for sequence in [each for each in bench.scheduler.running if each.id in found]:
                bench.scheduler.remove(sequence)
    for i, prompt in enumerate(prompts):
        alone = tiny.Bench(int4, dtype=torch.bfloat16, native=True).last_logits(prompt)
        assert torch.equal(found[i], alone)


@pytest.fixture(scope="module")
def quantized(folder: Path) -> Callable[[str], Path]:
    def make(scheme: str) -> Path:
        path = folder.with_name(f"same-{scheme}")
        if not path.exists():
            convert(folder, path, quantization=QuantizationSpec(scheme))
        return path

    return make


@pytest.mark.parametrize(
    ("scheme", "kv_dtype"),
    [("int4", "auto"), ("int8", "int8"), ("int8", "int5"), ("mxfp4", "auto")],
)
def test_logits_depend_on_the_tokens_alone(
    scheme: str, kv_dtype: str, quantized: Callable[[str], Path]
) -> None:
    """The same bits token by token, in chunks of any size, with a cached prefix, in a batch."""
    ids, path = tiny.random_ids(150, seed=3), quantized(scheme)
    lengths, found = (20, 90, 150), {}

    def bench(chunk_tokens: int) -> tiny.Bench:
        return tiny.Bench(
            path,
            chunk_tokens=chunk_tokens,
            dtype=torch.bfloat16,
            kv_dtype=kv_dtype,
            native=True,
        )

    for chunk_tokens in (1, 9, 10, 64, 512):
        chunked = bench(chunk_tokens)  # longer prompts find the shorter ones in the cache
        found[chunk_tokens] = torch.stack([chunked.last_logits(ids[:end]) for end in lengths])
    together = bench(100)
    for end in lengths:
        together.scheduler.add(TokenSequence(end, ids[:end], SamplingParams()))
    batched: dict[int, Tensor] = {}
    while batched.keys() != set(lengths):
        for end, logits in together.step().items():
            batched.setdefault(end, logits)
            next(each for each in together.scheduler.running if each.id == end).tokens.append(3)
    found[0] = torch.stack([batched[end] for end in lengths])
    assert all(torch.equal(logits, found[512]) for logits in found.values())


@pytest.mark.parametrize("num_threads", [1, 3])
def test_results_do_not_depend_on_the_number_of_threads(int4: Path, num_threads: int) -> None:
    prompts = {i: tiny.random_ids(1 + 20 * i, seed=i) for i in range(3)}
    params = replace(GREEDY, logprobs=1)
    found = []
    for threads in (2, num_threads):
        engine = tiny.engine(int4, dtype="bfloat16", num_threads=threads)
        assert isinstance(engine.decoder, NativeDecoder) and engine.info.num_threads == threads
        tiny.run(engine, prompts, GREEDY)
        found.append(tiny.logprobs(engine, IDS, params))
    assert found[0] == found[1]


def test_logits_are_not_changed_by_the_next_step(int4: Path) -> None:
    bench = tiny.Bench(int4, native=True)
    first = bench.last_logits(IDS)
    copy = first.clone()
    bench.last_logits(IDS[::-1])
    assert torch.equal(first, copy)


def test_w8a8_has_more_exact_activations(folder: Path, tmp_path: Path) -> None:
    """It equals its dequantized weights."""
    convert(folder, tmp_path / "w8a8", quantization=QuantizationSpec("w8a8-int8"))
    convert(tmp_path / "w8a8", tmp_path / "plain", dtype="float32")
    assert_equals_dequantized(tmp_path / "w8a8", tmp_path / "plain")
    engine = tiny.engine(tmp_path / "w8a8", dtype="float32")
    assert isinstance(engine.decoder, NativeDecoder)


def test_kernels_that_are_switched_off(int4: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for name in ("auto", "off"):
        monkeypatch.setenv("SWIFTCHAT_CPU_KERNELS", name)
        engine = tiny.engine(int4)
        assert isinstance(engine.decoder, NativeDecoder) == (name == "auto")
        ids.append(tiny.run(engine, {1: IDS}, GREEDY)[0])
    assert engine.info.device == (
        "cpu, torch only: switched off by SWIFTCHAT_CPU_KERNELS=off, weights dequantized"
    )
    assert type(engine.decoder) is Decoder
    assert ids[0] == ids[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_memory_plan_covers_the_activations(name: str, tmp_path: Path) -> None:
    tiny.native_kernels()
    tiny.make(name, tmp_path)
    engine = tiny.engine(tmp_path)
    num_seqs = engine.config.max_num_seqs
    planned = native_workspace_bytes(engine.decoder.config, 512 + num_seqs, num_seqs)
    assert 0 < engine.info.workspace_bytes <= planned


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_layers_with_states_equal_torch(model_type: str, tmp_path: Path) -> None:
    """Prompts in chunks, with a cached prefix and in batches with decode steps; token by token.

    In fp32 only the order of sums differs.
    """
    reference.copy_reference(model_type, tmp_path)
    expected = tiny.Bench(tmp_path).logits(IDS[:24])
    token_by_token = tiny.Bench(tmp_path, native=True).logits(IDS[:24])
    assert relative_error(token_by_token, expected) <= 1e-4
    bench = tiny.Bench(tmp_path, chunk_tokens=7, native=True)
    assert isinstance(bench.decoder, NativeDecoder)
    found = [bench.last_logits(IDS[:end]) for end in (13, 22, 24)]
    assert relative_error(torch.stack(found), expected[[12, 21, 23]]) <= 1e-4
    lengths = (1, 9, 20, 24)
    for length in lengths:
        bench.scheduler.add(TokenSequence(length, IDS[:length], SamplingParams()))
    together: dict[int, Tensor] = {}
    while together.keys() != set(lengths):
        for length, logits in bench.step().items():
            together.setdefault(length, logits)
            sequence = next(each for each in bench.scheduler.running if each.id == length)
            sequence.tokens.append(3)
    rows = torch.stack([together[length] for length in lengths])
    assert relative_error(rows, expected[[length - 1 for length in lengths]]) <= 1e-4


def test_quantized_projections_of_mixers(tmp_path: Path) -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 12}
    reference.copy_reference("lfm2", tmp_path / "float", **sizes)
    convert(tmp_path / "float", tmp_path / "int4", quantization=QuantizationSpec("int4"))
    convert(tmp_path / "int4", tmp_path / "plain", dtype="float32")
    assert_equals_dequantized(tmp_path / "int4", tmp_path / "plain")


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_the_memory_plan_covers_layers_with_states(model_type: str, tmp_path: Path) -> None:
    tiny.native_kernels()
    reference.copy_reference(model_type, tmp_path)
    engine = tiny.engine(tmp_path)
    assert isinstance(engine.decoder, NativeDecoder)
    num_seqs = engine.config.max_num_seqs
    planned = native_workspace_bytes(engine.decoder.config, 512 + num_seqs, num_seqs)
    assert 0 < engine.info.workspace_bytes <= planned
