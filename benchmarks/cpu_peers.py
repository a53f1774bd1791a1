"""swiftchat, transformers and llama.cpp side by side on the CPU, in one run, taking turns.

    python benchmarks/cpu_peers.py MODEL_DIR [GGUF …] [--threads 2] [--rounds 5]

Each program prefills the same 512-token prompt, then decodes 128 tokens greedily after a short
prompt, at batch size 1. The rounds interleave the programs, so that changes of the machine's speed
affect all of them; medians are printed. llama.cpp runs each given GGUF file and needs
llama-cpp-python. `--from FILE` first writes the first GGUF file, in bf16, from FILE, which must be
the source of MODEL_DIR. `--as-read` keeps llama.cpp from rearranging the weights, which crashes in
some builds. Transformers is skipped if MODEL_DIR has quantized weights, or with
`--no-transformers`.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = [3 + i * 104729 % 30_000 for i in range(512)]
SHORT = PROMPT[:16]
NUM_DECODED = 128


def swiftchat(model: Path, threads: int) -> tuple[Callable[[], float], Callable[[], float]]:
    from swiftchat.engine.api.client import EngineClient
    from swiftchat.engine.api.params import EngineConfig, SamplingParams
    from swiftchat.engine.api.protocol import Finished

    client = EngineClient(EngineConfig(device="cpu", num_threads=threads), model).start()
    client.wait_ready()
    counter = iter(range(10**6))

    def run(prompt: list[int], length: int) -> Finished:
        fresh = [3 + next(counter), *prompt[1:]]  # avoids reusing a cached prefix
        params = SamplingParams(temperature=0, max_tokens=length)
        *_, end = client.generate(fresh, params)
        assert isinstance(end, Finished)
        return end

    def decode() -> float:
        end = run(SHORT, NUM_DECODED)
        return (end.completion_tokens - 1) / end.decode_s

    return lambda: len(PROMPT) / run(PROMPT, 1).prefill_s, decode


def transformers(model: Path, threads: int) -> tuple[Callable[[], float], Callable[[], float]]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    @torch.inference_mode()
    def prefill() -> float:
        started = time.perf_counter()
        network(torch.tensor([PROMPT]), logits_to_keep=1)
        return len(PROMPT) / (time.perf_counter() - started)

    @torch.inference_mode()
    def decode() -> float:
        out = network(torch.tensor([SHORT]), use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        started = time.perf_counter()
        for _ in range(NUM_DECODED):
            out = network(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        return NUM_DECODED / (time.perf_counter() - started)

    return prefill, decode


def disable_repacking() -> None:
    """Keep llama.cpp from making rearranged copies of the weights."""
    from llama_cpp import llama_cpp as library

    defaults = library.llama_model_default_params

    def without_extra_buffers() -> object:
        params = defaults()
        params.use_extra_bufts = False
        return params

    library.llama_model_default_params = without_extra_buffers


def llama_cpp(gguf: Path, threads: int) -> tuple[Callable[[], float], Callable[[], float]]:
    from llama_cpp import Llama

    llama = Llama(
        str(gguf),
        n_ctx=2048,
        n_batch=512,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )

    def prefill() -> float:
        llama.reset()
        started = time.perf_counter()
        llama.eval(PROMPT)
        return len(PROMPT) / (time.perf_counter() - started)

    def decode() -> float:
        llama.reset()
        llama.eval(SHORT)
        token = llama.sample(temp=0.0)
        started = time.perf_counter()
        for _ in range(NUM_DECODED):
            llama.eval([token])
            token = llama.sample(temp=0.0)
        return NUM_DECODED / (time.perf_counter() - started)

    return prefill, decode


def write_bf16_gguf(source: Path, file: Path) -> None:
    """Copy a GGUF file with its matrices in bf16 and its norms in fp32."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(file, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, item)
    bf16 = gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if value.ndim == 1:
            writer.add_tensor(tensor.name, value)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(value, bf16), raw_dtype=bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("gguf", type=Path, nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--as-read", action="store_true")
    parser.add_argument("--no-transformers", action="store_true")
    args = parser.parse_args()
    if args.source:
        write_bf16_gguf(args.source, args.gguf[0])
    if args.as_read:
        disable_repacking()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    programs = {"swiftchat": swiftchat(args.model, args.threads)}
    quantized = "quantization_config" in json.loads((args.model / "config.json").read_text())
    if not quantized and not args.no_transformers:
        programs["transformers"] = transformers(args.model, args.threads)
    for gguf in args.gguf:
        programs[f"llama.cpp {gguf.stem}"[:24]] = llama_cpp(gguf, args.threads)
    rates: dict[tuple[str, int], list[float]] = {}
    for round_number in range(args.rounds + 1):
        for name, measures in programs.items():
            for kind, measure in enumerate(measures):
                rate = measure()
                if round_number:  # the first round warms up
                    rates.setdefault((name, kind), []).append(rate)
    print(f"{'tok/s, median of ' + str(args.rounds):24} {'prefill 512':>22} {'decode':>22}")
    for name in programs:
        cells = []
        for kind in range(2):
            values = rates[name, kind]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f}–{max(values):.0f})")
        print(f"{name:24} {cells[0]:>22} {cells[1]:>22}")


if __name__ == "__main__":
    main()
