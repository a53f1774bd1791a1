"""Prefill and decode on a GPU with torch's operators in place of kernels, beside transformers.

    python benchmarks/gpu/torch_path.py

The model is a random Llama-3.2-1B. Prints the rate of a device-to-device copy, the engine's rates,
and those of transformers' eager decoding in the same run.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine

SHAPE = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
}


def copy_tb_per_s() -> float:
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return 2 * source.nbytes / statistics.median(times) / 1e9


def generate(engine: Engine, prompt: list[int], length: int) -> Finished:
    engine.add(1, prompt, SamplingParams(temperature=0, max_tokens=length, speculate="off"))
    while True:
        for _, event in engine.step():
            if isinstance(event, Finished):
                return event


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"device-to-device copy: {copy_tb_per_s():.2f} TB/s")
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).bfloat16()
        network.save_pretrained(folder)
        engine = build_engine(
            Path(folder), EngineConfig(device="cuda", chunk_tokens=4096, kernels=False)
        )
        print(f"load {engine.info.load_s:.2f} s, {engine.info.weights_bytes / 1e9:.2f} GB")
        for context in (128, 1024, 8192):
            ends = [generate(engine, [3 + run, *range(5, 4 + context)], 128) for run in range(4)]
            del ends[0]  # warm-up
            prefill = statistics.median(end.prefill_s for end in ends)
            decode = statistics.median((end.completion_tokens - 1) / end.decode_s for end in ends)
            print(
                f"context {context}: prefill {context / prefill:.0f} tok/s, "
                f"decode {decode:.0f} tok/s"
            )
    network.cuda()
    with torch.inference_mode():
        out = network(torch.arange(5, 133, device="cuda")[None], use_cache=True)
        for attempt in range(2):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(128):
                token = out.logits[:, -1:].argmax(-1)
                out = network(token, past_key_values=out.past_key_values, use_cache=True)
            torch.cuda.synchronize()
            if attempt:
                rate = 128 / (time.perf_counter() - started)
                print(f"transformers eager, context 256: decode {rate:.0f} tok/s")


if __name__ == "__main__":
    main()
