"""An EAGLE-3 head with random weights on the GPU: the duration of its steps and of a verification.

    python benchmarks/gpu/heads.py [--shape llama-3.1-8b[:int4]] [--tokens 2 4 7]

Wall time of proposing K tokens, which ends when the host has them, and of a whole engine step:
proposing, the verification and its tokens. With mean accepted lengths of a trained head this gives
the expected tokens a second. The first line is a captured decode step without the head, and one
that stores its tokens for it.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from decode import CUBINS, load_rows
from safetensors.torch import save_file
from timing import median_us

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.model.dummy import dummy_config

DRAFT_VOCAB = 32_000
# Published mean numbers of tokens a step by K, of EAGLE-3 heads for 8B models.
PUBLISHED = {2: 2.36, 4: 3.08, 7: 3.54}


def write_head(folder: Path, config: ModelConfig) -> None:
    """Write a head of one layer as large as those of the model."""
    width, attention, mlp = config.hidden_size, config.attention, config.mlp
    inner, size = 0 if mlp is None else mlp.intermediate_size, attention.head_dim
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    vocab = min(DRAFT_VOCAB, config.vocab_size)
    settings = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": vocab,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    layer = "midlayer."
    shapes = {
        "fc": (width, 3 * width),
        f"{layer}self_attn.q_proj": (heads * size, 2 * width),
        f"{layer}self_attn.k_proj": (kv_heads * size, 2 * width),
        f"{layer}self_attn.v_proj": (kv_heads * size, 2 * width),
        f"{layer}self_attn.o_proj": (width, heads * size),
        f"{layer}mlp.gate_proj": (inner, width),
        f"{layer}mlp.up_proj": (inner, width),
        f"{layer}mlp.down_proj": (width, inner),
        "lm_head": (vocab, width),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    shapes |= {f"{layer}{name}": (width,) for name in norms} | {"norm": (width,)}
    tensors = {
        f"{name}.weight": torch.randn(shape, device="cuda").mul_(0.02).bfloat16().cpu()
        for name, shape in shapes.items()
    }
    tensors["d2t"] = torch.zeros(vocab, dtype=torch.int64)
    save_file(tensors, folder / "model.safetensors")


def step_us(engine: Engine) -> float:
    load_rows(engine, 1, 1024, SamplingParams(temperature=0))
    return median_us(engine.graphs.decode.graphs.graph(1).replay)


def measure(engine: Engine, num_tokens: int) -> None:
    """Print the times of an answer all of whose steps verify `num_tokens` proposed tokens."""
    speculation, durations = engine.speculation, []
    proposer = speculation._draft
    propose = type(proposer).propose

    def timed(sequence: TokenSequence, count: int) -> list[int]:
        started = time.perf_counter()
        found = propose(proposer, sequence, count)
        durations.append(time.perf_counter() - started)
        return found

    proposer.propose = timed
    speculation._num_drafted = lambda sequence, num_rows: max(
        0, speculation._max_proposed(sequence, num_rows) or 0
    )
    params = SamplingParams(
        temperature=0, max_tokens=40, speculate="draft", speculate_tokens=num_tokens
    )
    engine.add(num_tokens, list(range(5, 205)), params)
    steps = []
    while engine.has_work:
        started = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - started)
    chain_us = median_us(proposer._chain.__self__._graph(num_tokens).replay)
    propose_ms, step_ms = (1e3 * statistics.median(each[4:]) for each in (durations, steps))
    expected = PUBLISHED.get(num_tokens, 0) / step_ms * 1e3
    print(
        f"  K {num_tokens}: proposing {propose_ms:.2f} ms, {chain_us / 1e3:.2f} of it on the "
        f"device, {propose_ms / num_tokens:.3f} a token; step {step_ms:.2f} ms; expected "
        f"{expected:.0f} tok/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2, 4, 7])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_head(Path(folder), dummy_config(args.shape))
        torch.cuda.empty_cache()
        options = {"device": "cuda", "dummy": args.shape, "ctx_size_tokens": 4096}
        options |= {"cache_tokens": 16_384, "max_num_seqs": 8}
        plain = build_engine(Path(folder), EngineConfig(**options), cubins=CUBINS)
        plain_us = step_us(plain)
        engine = build_engine(Path(folder), EngineConfig(**options, draft=folder), cubins=CUBINS)
    print(f"{args.shape}: step {plain_us:.0f} us, with a head {step_us(engine):.0f} us")
    for num_tokens in args.tokens:
        measure(engine, num_tokens)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
