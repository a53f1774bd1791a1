"""convert: what comes out computes the same, and it comes whole or not at all."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_gguf
import torch
import transformers
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound, UsageError
from swiftchat.weights import safetensors_file
from swiftchat.weights.convert import convert
from swiftchat.weights.model import Model
from swiftchat.weights.rounding import to_bfloat16
from swiftchat.weights.safetensors_file import read_header

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def tiny_llama(**changes: Any) -> transformers.LlamaForCausalLM:
    sizes = {
        "vocab_size": len(tiny_gguf.TOKENS), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
        "initializer_range": 0.2,
    }  # fmt: skip
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    return model


def logits(model: transformers.LlamaForCausalLM) -> torch.Tensor:
    ids = torch.arange(3, 90, dtype=torch.long)[None]
    with torch.inference_mode():
        return model(ids).logits


def loaded(folder: Path) -> transformers.LlamaForCausalLM:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "tiny.gguf"
    path.parent.mkdir()
    tiny_gguf.write(path, tiny_llama())
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
)
def test_gguf_gives_the_models_own_logits(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny_llama(**changes)
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float32"
    assert torch.equal(logits(loaded(tmp_path / "out")), logits(model))


def rope_divisors(scaling: dict[str, Any]) -> np.ndarray:
    config = transformers.LlamaConfig(
        hidden_size=64 * 4, num_attention_heads=4, rope_parameters=scaling,
        max_position_embeddings=8192 * 8,
    )  # fmt: skip
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1 / scaling["rope_theta"] ** (torch.arange(0, 64, 2) / 64)
    return (plain / scaled).numpy().astype(np.float32)


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3_ROPE,
        {**LLAMA3_ROPE, "factor": 32.0, "rope_theta": 500000.0},
        {**LLAMA3_ROPE, "low_freq_factor": 0.5, "high_freq_factor": 10.0},
    ],
)
def test_llama3_rope_scaling_is_recovered(tmp_path: Path, scaling: dict[str, Any]) -> None:
    model = tiny_llama(
        hidden_size=256, head_dim=64, rope_parameters=scaling, max_position_embeddings=65536
    )
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, model, tensors={"rope_freqs.weight": rope_divisors(scaling)})
    convert(path, tmp_path / "out")
    rope = Model.open(tmp_path / "out").config.rope
    assert rope.scaling == "llama3"
    assert rope.factor == scaling["factor"]
    assert rope.low_freq_factor == pytest.approx(scaling["low_freq_factor"], rel=1e-3)
    assert rope.high_freq_factor == pytest.approx(scaling["high_freq_factor"], rel=1e-3)
    # Angles to 65,536 positions from parameters known to 1e-4 at worst.
    torch.testing.assert_close(
        logits(loaded(tmp_path / "out")), logits(model), rtol=1e-3, atol=1e-2
    )


def test_other_rope_divisors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    divisors = np.linspace(1, 3, 8, dtype=np.float32)
    tiny_gguf.write(path, tiny_llama(), tensors={"rope_freqs.weight": divisors})
    with pytest.raises(BadModelFile, match=r"rope_freqs.weight follows no known"):
        convert(path, tmp_path / "out")


def test_quantised_gguf_is_rounded_to_nearest_bfloat16(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    model = tiny_llama()
    tiny_gguf.write(tmp_path / "tiny.gguf", model, quantise=kind)
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        if array.ndim == 2:
            array = gguf.dequantize(gguf.quantize(array, kind), kind)
        assert torch.equal(found[name], torch.from_numpy(array).to(torch.bfloat16)), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("source_dtype", ["bfloat16", "float16", "float32"])
def test_directory_to_every_dtype(tmp_path: Path, source_dtype: str, dtype: str) -> None:
    model = tiny_llama(tie_word_embeddings=True).to(getattr(torch, source_dtype))
    model.save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    convert(tmp_path / "in", tmp_path / "out", dtype=dtype)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert torch.equal(found[name], parameter.detach().to(getattr(torch, dtype))), name
    assert Model.open(tmp_path / "out").config.dtype == dtype
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert again.dtype == getattr(torch, dtype)


def test_rounding_to_bfloat16_is_torchs() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64)
    numbers = bits.astype(np.uint32).view(np.float32)
    numbers = numbers[np.abs(numbers) < 3.38e38]
    ties = (np.arange(2000, dtype=np.uint32) << 15 | 0x3F800000).view(np.float32)
    for array in (numbers, ties):
        ours = to_bfloat16(array)
        assert ours is not None
        theirs = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("number", "dtype", "complaint"),
    [
        (1e5, "float16", "too large for float16"),
        (3.4e38, "bfloat16", "too large for bfloat16"),
        (np.inf, "float32", "not finite"),
        (np.nan, "bfloat16", "not finite"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    tmp_path: Path, number: float, dtype: str, complaint: str
) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = number
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    with pytest.raises(BadModelFile, match=f"layers.1.mlp.up_proj.weight .*{complaint}"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out", dtype=dtype)
    assert left_in(tmp_path) == ["tiny.gguf"]


def test_shards_are_what_transformers_reads(tmp_path: Path, source: Path) -> None:
    convert(source, tmp_path / "one")
    convert(source, tmp_path / "many", shard_size_bytes=50_000)
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) < 60_000
    assert torch.equal(logits(loaded(tmp_path / "many")), logits(loaded(tmp_path / "one")))
    Model.open(tmp_path / "many").checkpoint()


def test_order_and_alignment_of_tensors(tmp_path: Path, source: Path) -> None:
    convert(source, tmp_path / "out")
    tensors, metadata = read_header(tmp_path / "out" / "model.safetensors")
    names = [info.name for info in sorted(tensors.values(), key=lambda info: info.offset)]
    layer = [name.removeprefix("model.layers.0.") for name in names if ".layers.0." in name]
    short = [name.split(".")[-2].removesuffix("_proj") for name in layer]
    assert short[:7] == ["q", "k", "v", "o", "gate", "up", "down"]
    assert min(info.offset for info in tensors.values()) % 64 == 0
    assert metadata["format"] == "pt"


def test_progress_counts_up_to_the_total(tmp_path: Path, source: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    convert(source, tmp_path / "out", progress=lambda *report: reports.append(report))
    total = sum(info.nbytes for info in read_header(tmp_path / "out/model.safetensors")[0].values())
    written = sum(f.stat().st_size for f in (tmp_path / "out").iterdir())
    written -= (tmp_path / "out" / "swiftchat.json").stat().st_size
    for label, expected in (("converting", total), ("checking", written)):
        done = [report[1] for report in reports if report[0] == label]
        assert done == sorted(done)
        assert (label, expected, expected) in reports


def test_all_chat_templates_are_kept(tmp_path: Path) -> None:
    named = {"tokenizer.chat_template.rag": "R", "tokenizer.chat_template.tool_use": "T"}
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama(), metadata=named)
    convert(tmp_path / "tiny.gguf", tmp_path / "a")
    said = json.loads((tmp_path / "a" / "tokenizer_config.json").read_text())["chat_template"]
    names = {entry["name"]: entry["template"] for entry in said}
    assert names == {"default": "{{ messages[0]['content'] }}", "rag": "R", "tool_use": "T"}
    (tmp_path / "a" / "additional_chat_templates").mkdir()
    (tmp_path / "a" / "additional_chat_templates" / "rag.jinja").write_text("file")
    convert(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "additional_chat_templates" / "rag.jinja").read_text() == "file"


def test_license_and_ends_are_kept(tmp_path: Path) -> None:
    ids = {f"tokenizer.ggml.{name}_token_id": 100 + at for at, name in enumerate(("eos", "eot"))}
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama(), metadata=ids)
    defaults = {"temperature": 0.2, "eos_token_id": 5}
    convert(tmp_path / "tiny.gguf", tmp_path / "out", generation_defaults=defaults)
    model = Model.open(tmp_path / "out")
    assert model.license == "apache-2.0"
    assert model.config.eos_ids == (100, 101)
    assert model.generation_config["temperature"] == 0.2


# Lies and unknown kinds


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"general.architecture": "lama"}, "unknown GGUF architecture 'lama'"),
        ({"llama.block_count": 10**9}, "num_hidden_layers"),
        ({"llama.block_count": 3}, r"blk.2.attn_q.weight: expected \[64, 64\], found nothing"),
        ({"llama.block_count": "two"}, "num_hidden_layers"),
        ({"llama.block_count": None}, "num_hidden_layers is missing"),
        ({"llama.attention.head_count": 0}, "num_attention_heads"),
        ({"llama.attention.head_count_kv": 4}, r"attn_k.weight: expected \[64, 64\], found"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps"),
        ({"llama.feed_forward_length": [96, 96]}, "intermediate_size"),
        ({"llama.rope.dimension_count": 8}, "gate|q.weight|head"),
        ({"llama.attention.value_length": 8}, "value_length differs"),
        ({"llama.rope.scaling.type": "yarn"}, "'yarn' is not supported"),
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"tokenizer.ggml.model": "bert"}, "'bert', which is not supported yet"),
        ({"tokenizer.ggml.pre": "klingon"}, "unknown GGUF pre-tokenizer 'klingon'"),
        ({"tokenizer.ggml.pre": ["smollm"]}, "unknown GGUF pre-tokenizer"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": tiny_gguf.TOKENS[:-1]}, "token_type does not match"),
        ({"tokenizer.ggml.tokens": ["a"] * len(tiny_gguf.TOKENS)}, "are both 'a'"),
        ({"tokenizer.ggml.merges": ["a b", "q zz"]}, "merge 1, 'q zz'"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge 0"),
        ({"tokenizer.ggml.merges": [1, 2]}, "merges is missing or no list"),
        ({"tokenizer.ggml.bos_token_id": 1000}, "bos_token_id"),
        ({"tokenizer.ggml.padding_token_id": 1000}, "padding_token_id"),
    ],
)
def test_metadata_lie_is_named(tmp_path: Path, metadata: dict[str, Any], complaint: str) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama(), metadata=dict(metadata))
    with pytest.raises(BadModelFile, match=complaint):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert left_in(tmp_path) == ["tiny.gguf"]


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama(vocab_size=len(tiny_gguf.TOKENS) - 1))
    with pytest.raises(BadModelFile, match="tokens, but 102 embeddings"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


def test_unknown_source_and_dtype(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ModelNotFound):
        convert(tmp_path / "none", tmp_path / "out")
    with pytest.raises(UsageError, match="int8"):
        convert(source, tmp_path / "out", dtype="int8")


# All or nothing


class Stop(Exception):
    """Raised from a callback."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
@pytest.mark.parametrize("after", [1, 7, 20])
def test_interrupt_leaves_nothing(
    tmp_path: Path, source: Path, error: type[BaseException], after: int
) -> None:
    target = tmp_path / "target"
    calls = 0

    def progress(label: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        assert len(left_in(target)) == 2  # the lock and the directory in the making
        if calls == after:
            raise error

    with pytest.raises(error):
        convert(source, target / "out", progress=progress)
    assert left_in(target) == []
    convert(source, target / "out")
    assert left_in(target) == ["out"]


def fail_after(monkeypatch: pytest.MonkeyPatch, number: int, error: OSError) -> None:
    write = safetensors_file.Writer.write
    calls = iter(range(1000))

    def failing(self: safetensors_file.Writer, name: str, array: np.ndarray) -> None:
        if next(calls) == number:
            raise error
        write(self, name, array)

    monkeypatch.setattr(safetensors_file.Writer, "write", failing)


def test_full_disk_says_needed_and_free_and_leaves_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    fail_after(monkeypatch, 5, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(FileSystemError, match=r"GB needed, .* GB free") as caught:
        convert(source, target / "out")
    assert caught.value.exit_code == 8
    assert left_in(target) == []


def test_other_write_errors_are_told(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after(monkeypatch, 0, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(FileSystemError, match="Input/output error"):
        convert(source, tmp_path / "target" / "out")
    assert left_in(tmp_path / "target") == []


def test_too_little_room_is_told_before_writing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    fail_after(monkeypatch, 0, OSError(errno.EIO, "must not be written"))
    with pytest.raises(FileSystemError, match="not enough room"):
        convert(source, tmp_path / "target" / "out")
    assert left_in(tmp_path / "target") == []


def test_existing_destination_is_kept(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("precious")
    with pytest.raises(FileSystemError, match="exists already"):
        convert(source, out)
    assert left_in(out) == ["mine"]


def test_what_a_killed_process_left_is_cleared(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    stale = target / ".out.x8f3k.partial"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(bytes(99))
    (target / ".out2.aaaa.partial").mkdir()
    convert(source, target / "out")
    assert left_in(target) == [".out2.aaaa.partial", "out"]


def test_killed_process_leaves_nothing_under_the_name(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    for after in (1, 5, 21):

        def killed(after: int = after) -> None:
            calls = iter(range(1, 100))

            def progress(label: str, done: int, total: int) -> None:
                if next(calls) == after:
                    os.kill(os.getpid(), signal.SIGKILL)

            convert(source, target / "out", progress=progress)

        child = multiprocessing.get_context("fork").Process(target=killed)
        child.start()
        child.join(30)
        assert child.exitcode == -signal.SIGKILL
        assert not (target / "out").exists()
    convert(source, target / "out")
    assert left_in(target) == ["out"]
    Model.open(target / "out").checkpoint()


def _convert_in_child(
    source: Path, destination: Path, dtype: str, start: Any, results: Any
) -> None:
    calls: list[str] = []
    try:
        start.wait(20)
        convert(source, destination, dtype=dtype, progress=lambda label, *_: calls.append(label))
    except FileSystemError as error:
        results.put((error.message, calls))
    else:
        results.put(("done", calls))


def race(source: Path, destination: Path, dtypes: list[str]) -> list[tuple[str, list[str]]]:
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(len(dtypes)), context.Queue()
    children = [
        context.Process(target=_convert_in_child, args=(source, destination, dtype, start, results))
        for dtype in dtypes
    ]
    for child in children:
        child.start()
    found = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    return found


def test_two_processes_one_works_and_one_waits(tmp_path: Path, source: Path) -> None:
    for round_number in range(5):
        target = tmp_path / f"target{round_number}"
        found = race(source, target / "out", ["bfloat16", "bfloat16"])
        workers = [calls for _, calls in found if "converting" in calls]
        assert len(workers) == 1
        late = {"done", f"{target / 'out'} exists already"}
        assert "done" in {message for message, _ in found} <= late
        assert left_in(target) == ["out"]
        Model.open(target / "out").checkpoint()


def test_two_processes_wanting_different_things_do_not_share(tmp_path: Path, source: Path) -> None:
    found = race(source, tmp_path / "target" / "out", ["bfloat16", "float32"])
    messages = sorted(message for message, _ in found)
    assert messages.count("done") == 1
    assert "made meanwhile from something else" in "".join(messages) or "exists" in "".join(
        messages
    )
    assert left_in(tmp_path / "target") == ["out"]


def test_waiting_process_finds_the_work_done(tmp_path: Path, source: Path) -> None:
    """The second starts while the first is in its middle, and returns without converting."""
    context = multiprocessing.get_context("fork")
    begun, waits, results = context.Event(), context.Event(), context.Queue()
    destination = tmp_path / "target" / "out"

    def second() -> None:
        labels: list[str] = []

        def progress(label: str, done: int, total: int) -> None:
            labels.append(label)
            waits.set()

        begun.wait(20)
        convert(source, destination, progress=progress)
        results.put(labels)

    def progress(label: str, done: int, total: int) -> None:
        begun.set()
        assert waits.wait(20)

    child = context.Process(target=second)
    child.start()
    convert(source, destination, progress=progress)
    assert results.get(timeout=30) == ["waiting for another process"]
    child.join(20)
    assert child.exitcode == 0


# The real model


def test_real_model_talks(smollm2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Why is the sky blue?"}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    out = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
    assert "Rayleigh scattering" in answer
