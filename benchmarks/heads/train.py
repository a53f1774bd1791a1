"""Train an EAGLE-3 head or Medusa heads for a small model, from text that it writes itself.

    python benchmarks/heads/train.py MODEL OUT [--kind eagle3|medusa] [--tokens 30000] [--minutes 5]

MODEL is a model directory or a GGUF file; the engine runs it on the CPU, and `--device` trains the
heads. OUT is a new folder for `--draft`. The model answers prompts of a fixed list; the heads learn
the distributions that the LM head gave in these steps, over the most frequent ids, from the hidden
states.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from examples import Examples, Recorded, generate
from modules import Eagle3, Loss, Medusa
from torch import Tensor, nn

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.formats.safetensors import create_safetensors
from swiftchat.weights.model.directory import Model
from swiftchat.weights.store import default_store

_DTYPES = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


def train(
    module: nn.Module,
    recorded: list[Recorded],
    losses: Callable[[Examples], list[Loss]],
    args: argparse.Namespace,
) -> None:
    """Minimize the sum of the losses for `args.minutes`; print the agreement of each."""
    started, limit = time.monotonic(), 60 * args.minutes
    module.to(args.device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=args.rate, weight_decay=0.01)
    chance, reported = random.Random(args.seed), started
    agreements: list[list[float]] = []  # of each loss, for the steps since the last report
    for number in itertools.count():
        batch = Examples.of(chance.sample(recorded, min(args.batch, len(recorded))))
        batch = batch.to(args.device)
        done = max((time.monotonic() - started) / limit, number / args.max_steps)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (number + 1) / 20) * (1 - done)
        found = losses(batch)
        optimizer.zero_grad()
        torch.stack([loss.value for loss in found]).sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        agreements.append([loss.agreement for loss in found])
        if time.monotonic() - reported > 20 or done == 0:
            reported = time.monotonic()
            rates = [sum(each) / len(agreements) for each in zip(*agreements, strict=True)]
            agreements.clear()
            print(f"step {number}: same id", " ".join(f"{rate:.3f}" for rate in rates), flush=True)
    seconds = time.monotonic() - started
    print(
        f"trained {number} steps of {len(recorded[: args.batch])} conversations in {seconds:.0f} s"
    )


def frequent_ids(recorded: Sequence[Recorded], number: int, vocab_size: int) -> Tensor:
    """Return the most frequent ids of the texts in ascending order, filled up with the first."""
    counts = Counter(itertools.chain.from_iterable(one.tokens for one in recorded))
    ids = [token for token, _ in counts.most_common(number)]
    ids += itertools.islice((i for i in range(vocab_size) if i not in counts), number - len(ids))
    return torch.tensor(sorted(ids))


def eagle3_config(model: ModelConfig, draft_vocab: int, ctx_size_tokens: int) -> dict[str, Any]:
    """Return a config.json for a head of the model's width."""
    heads = model.hidden_size // model.head_dim
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": math.gcd(heads, model.num_kv_heads),
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": ctx_size_tokens,
        "vocab_size": model.vocab_size,
        "draft_vocab_size": draft_vocab,
    }


def save(folder: Path, name: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the folder of a head."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    specs = [(key, _DTYPES[tensor.dtype], tuple(tensor.shape)) for key, tensor in tensors.items()]
    with create_safetensors(folder / name, specs, {}) as writer:
        for key, tensor in tensors.items():
            writer.write(key, tensor.detach().cpu().numpy())


def probabilities(lm_head: Tensor, scale: float) -> Callable[[Examples], Tensor]:
    """Return what computes the model's probabilities after each token but the first."""

    @torch.no_grad()
    def of(batch: Examples) -> Tensor:
        return (batch.labels[:, 1:] @ lm_head.T * scale).softmax(2)

    return of


def train_eagle3(
    engine: Engine, recorded: list[Recorded], lm_head: Tensor, args: argparse.Namespace
) -> None:
    model = engine.decoder.config
    ids = frequent_ids(recorded, min(args.draft_vocab, model.vocab_size), model.vocab_size)
    config = eagle3_config(model, len(ids), engine.ctx_size_tokens)
    head = Eagle3(config, recorded[0].joined.values.shape[1])
    # It begins as the model would without its last layers.
    nn.init.zeros_(head.fc.weight)
    head.fc.weight.data[:, -model.hidden_size :] = torch.eye(model.hidden_size)
    head.lm_head.weight.data.copy_(lm_head[ids])
    for matrix in (head.midlayer.self_attn.o_proj, head.midlayer.mlp.down_proj):
        nn.init.zeros_(matrix.weight)
    final_norm = engine.decoder.weights.final_norm
    if model.norm == "rms" and final_norm is not None:
        head.norm.weight.data.copy_(final_norm.float() + float(model.norm_unit_offset))
    targets = probabilities(lm_head[ids].to(args.device), model.logit_scale)
    table = engine.decoder.weights.embed

    def losses(batch: Examples) -> list[Loss]:
        embedded = table.rows(batch.following.flatten().cpu()).float().to(args.device, copy=True)
        embedded = embedded.unflatten(0, batch.following.shape)
        return head.losses(batch, embedded, targets(batch), args.passes)

    train(head, recorded, losses, args)
    is_used = torch.isin(torch.arange(model.vocab_size), ids)
    offsets = {"d2t": ids - torch.arange(len(ids)), "t2d": is_used}
    save(args.out, "model.safetensors", config, {**head.state_dict(), **offsets})


def train_medusa(
    engine: Engine, recorded: list[Recorded], lm_head: Tensor, args: argparse.Namespace
) -> None:
    model = engine.decoder.config
    ids = frequent_ids(recorded, min(args.draft_vocab, model.vocab_size), model.vocab_size)
    heads = Medusa(args.heads, lm_head.shape[1])
    head = lm_head[ids].to(args.device)
    targets = probabilities(head, model.logit_scale)
    train(heads, recorded, lambda batch: heads.losses(batch, targets(batch), head), args)
    tensors = {}
    for h, block in enumerate(heads.blocks):
        tensors[f"{h}.0.linear.weight"], tensors[f"{h}.0.linear.bias"] = block.weight, block.bias
        tensors[f"{h}.1.weight"] = lm_head
    config = {"medusa_num_heads": args.heads, "medusa_num_layers": 1}
    save(args.out, "medusa_lm_head.safetensors", config, tensors)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=["eagle3", "medusa"], default="eagle3")
    parser.add_argument("--tokens", type=int, default=30_000, help="that the model writes")
    parser.add_argument("--max-tokens", type=int, default=160, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--rows", type=int, default=16, help="answers at a time")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training")
    parser.add_argument("--max-steps", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=4, help="conversations of a step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--passes", type=int, default=3, help="of an EAGLE-3 head")
    parser.add_argument("--heads", type=int, default=3, help="number of Medusa heads")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu", help="of the training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    path = default_store().resolve(args.model)
    ctx_size_tokens = min(1024, Model.open(path).config.max_context_tokens)
    config = EngineConfig(
        device="cpu",
        ctx_size_tokens=ctx_size_tokens,
        cache_tokens=args.rows * ctx_size_tokens,
        max_num_seqs=args.rows,
        num_threads=args.threads,
    )
    engine, tokenizer = build_engine(path, config), Tokenizer.load(path)
    num_layers = engine.decoder.config.num_layers
    recorded = generate(engine, tokenizer, (2, num_layers // 2, num_layers - 3), args)
    weights = engine.decoder.weights
    # The matrix as it multiplies, whatever its format.
    identity = torch.eye(weights.lm_head.shape[1], dtype=weights.lm_head.dtype)
    lm_head = weights.lm_head.matmul_fp32(identity).T.contiguous()
    torch.set_num_threads(args.threads or engine.info.num_threads)
    kinds = {"eagle3": train_eagle3, "medusa": train_medusa}
    kinds[args.kind](engine, recorded, lm_head, args)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
