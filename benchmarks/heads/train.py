"""Train an EAGLE-3 head or Medusa heads for a small model, from text that it writes itself.

    python benchmarks/heads/train.py MODEL OUT [--kind eagle3 medusa] [--tokens 30000] [--minutes 5]

MODEL is a model directory or a GGUF file. OUT is a new folder for `--draft`; with two kinds it gets
one for each. The model answers prompts of a fixed list, questions that it writes itself, and
requests about its earlier answers. The heads learn the distributions that the LM head gives over
the most frequent ids, from the hidden states of these texts.
"""

import argparse
import itertools
import json
import math
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from examples import Examples, Recorded, record
from modules import Eagle3, Loss, Medusa, Targets
from texts import Writer
from torch import Tensor, nn

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.formats.safetensors import create_safetensors
from swiftchat.weights.model.directory import Model
from swiftchat.weights.store import default_store

_HELD_OUT = 40  # one of so many prompts is not trained with
_WARM_UP_STEPS = 20
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}


Losses = Callable[[Examples], list[Loss]]


def train(
    module: nn.Module,
    recorded: list[Recorded],
    losses: Losses,
    minutes: float,
    args: argparse.Namespace,
) -> None:
    """Minimize the sum of the losses for `minutes`; print the agreement of each.

    The last report is of texts whose prompts were not trained with.
    """
    started, limit, device = time.monotonic(), 60 * minutes, args.device
    held = [one for one in recorded if is_held_out(one)]
    recorded = [one for one in recorded if not is_held_out(one)]
    optimizer = torch.optim.AdamW(module.parameters(), lr=args.rate, weight_decay=0.01)
    chance, reported = random.Random(args.seed), started
    agreements: list[Tensor] = []  # of the steps since the last report
    for number in itertools.count():
        done = max((time.monotonic() - started) / limit, number / args.max_steps)
        if done >= 1:
            break
        batch = Examples.of(chance.sample(recorded, min(args.batch, len(recorded))), device)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (number + 1) / _WARM_UP_STEPS) * (1 - done)
        with mixed_precision(device):
            found = losses(batch)
        optimizer.zero_grad()
        torch.stack([loss.value for loss in found]).sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        agreements.append(torch.stack([loss.agreement for loss in found]))
        if time.monotonic() - reported > 10 or done == 0:
            reported = time.monotonic()
            report(f"step {number}", agreements)
            agreements.clear()
    seconds = time.monotonic() - started
    print(
        f"trained {number} steps of {len(recorded[: args.batch])} conversations in {seconds:.0f} s"
    )
    with torch.no_grad(), mixed_precision(device):
        batches = (held[i : i + args.batch] for i in range(0, len(held), args.batch))
        found = [losses(Examples.of(some, device)) for some in batches]
    if found:
        report("held out", [torch.stack([loss.agreement for loss in each]) for each in found])


def is_held_out(one: Recorded) -> bool:
    prompt = one.text.tokens[: one.text.answer]
    return zlib.crc32(str(prompt).encode()) % _HELD_OUT == 0


def report(name: str, agreements: list[Tensor]) -> None:
    rates = torch.stack(agreements).mean(0).tolist()
    print(f"{name}: same id", " ".join(f"{rate:.3f}" for rate in rates), flush=True)


def mixed_precision(device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def frequent_ids(recorded: Sequence[Recorded], number: int, vocab_size: int) -> Tensor:
    """Return the most frequent ids of the texts in ascending order, filled up with the first."""
    counts = Counter(itertools.chain.from_iterable(one.text.tokens for one in recorded))
    ids = [token for token, _ in counts.most_common(number)]
    ids += itertools.islice((i for i in range(vocab_size) if i not in counts), number - len(ids))
    return torch.tensor(sorted(ids))


def eagle3_config(model: ModelConfig, draft_vocab: int, ctx_size_tokens: int) -> dict[str, Any]:
    """Return a config.json for a head of the model's width."""
    attention, mlp = model.attention, model.mlp
    assert mlp is not None
    heads = model.hidden_size // attention.head_dim
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "intermediate_size": mlp.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": math.gcd(heads, attention.num_kv_heads),
        "head_dim": attention.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": ctx_size_tokens,
        "vocab_size": model.vocab_size,
        "draft_vocab_size": draft_vocab,
    }


def save(folder: Path, name: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the folder of a head, its matrices in bf16."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    stored = {key: _rounded(tensor.detach().cpu()) for key, tensor in tensors.items()}
    specs = [(key, _DTYPES[tensor.dtype], tuple(tensor.shape)) for key, tensor in stored.items()]
    with create_safetensors(folder / name, specs, {}) as writer:
        for key, tensor in stored.items():
            is_bf16 = tensor.dtype == torch.bfloat16  # which NumPy does not have
            writer.write(key, (tensor.view(torch.int16) if is_bf16 else tensor).numpy())


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() and tensor.dim() > 1 else tensor


def probabilities(lm_head: Tensor, scale: float) -> Targets:
    """Return what computes the model's probabilities."""

    @torch.no_grad()
    def of(states: Tensor) -> Tensor:
        return ((states.to(lm_head.dtype) @ lm_head.T).float() * scale).softmax(1)

    return of


def train_eagle3(
    engine: Engine,
    recorded: list[Recorded],
    out: Path,
    minutes: float,
    args: argparse.Namespace,
) -> None:
    model, weights, lm_head = engine.decoder.config, engine.decoder.weights, lm_head_of(engine)
    ids = frequent_ids(recorded, min(args.draft_vocab, model.vocab_size), model.vocab_size)
    config = eagle3_config(model, len(ids), engine.ctx_size_tokens)
    head = Eagle3(config, recorded[0].joined.shape[1])
    # It begins as the model would without its last layers.
    nn.init.zeros_(head.fc.weight)
    head.fc.weight.data[:, -model.hidden_size :] = torch.eye(model.hidden_size)
    head.lm_head.weight.data.copy_(lm_head[ids.to(lm_head.device)])
    for matrix in (head.midlayer.self_attn.o_proj, head.midlayer.mlp.down_proj):
        nn.init.zeros_(matrix.weight)
    if model.norm.kind == "rms" and weights.final_norm is not None:
        head.norm.weight.data.copy_(weights.final_norm.float() + float(model.norm.unit_offset))
    head.to(args.device)
    targets = probabilities(lm_head[ids.to(lm_head.device)].to(args.device), model.head.scale)
    every_id = torch.arange(model.vocab_size, device=engine.device)
    table = weights.embed.rows(every_id).float().to(args.device)

    def losses(batch: Examples) -> list[Loss]:
        return head.losses(batch, table[batch.following], targets, args.passes)

    train(head, recorded, losses, minutes, args)
    is_used = torch.isin(torch.arange(model.vocab_size), ids)
    offsets = {"d2t": ids - torch.arange(len(ids)), "t2d": is_used}
    save(out, "model.safetensors", config, {**head.state_dict(), **offsets})


def train_medusa(
    engine: Engine,
    recorded: list[Recorded],
    out: Path,
    minutes: float,
    args: argparse.Namespace,
) -> None:
    model, lm_head = engine.decoder.config, lm_head_of(engine)
    ids = frequent_ids(recorded, min(args.draft_vocab, model.vocab_size), model.vocab_size)
    heads = Medusa(args.heads, lm_head.shape[1]).to(args.device)
    head = lm_head[ids.to(lm_head.device)].to(args.device)
    targets = probabilities(head, model.head.scale)
    train(heads, recorded, lambda batch: heads.losses(batch, targets, head), minutes, args)
    tensors = {}
    for h, block in enumerate(heads.blocks):
        tensors[f"{h}.0.linear.weight"], tensors[f"{h}.0.linear.bias"] = block.weight, block.bias
        tensors[f"{h}.1.weight"] = lm_head
    config = {"medusa_num_heads": args.heads, "medusa_num_layers": 1}
    save(out, "medusa_lm_head.safetensors", config, tensors)


def lm_head_of(engine: Engine) -> Tensor:
    """Return the matrix as it multiplies, whatever its format, fp32 [vocab_size, hidden_size]."""
    weight = engine.decoder.weights.lm_head
    identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=engine.device)
    return weight.matmul_fp32(identity).T.contiguous()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    kinds = {"eagle3": train_eagle3, "medusa": train_medusa}
    parser.add_argument("--kind", choices=kinds, nargs="+", default=["eagle3"])
    parser.add_argument("--tokens", type=int, default=30_000, help="that the model writes")
    parser.add_argument("--write-minutes", type=float, default=math.inf, help="at most")
    parser.add_argument("--max-tokens", type=int, default=160, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0.7, help="of every other answer")
    parser.add_argument("--rows", type=int, default=16, help="answers at a time")
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0], help="for each kind")
    parser.add_argument("--max-steps", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=4, help="conversations of a step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--passes", type=int, default=3, help="of an EAGLE-3 head")
    parser.add_argument("--heads", type=int, default=3, help="number of Medusa heads")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu", help="of the model and of the training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    path = default_store().resolve(args.model)
    ctx_size_tokens = min(512, Model.open(path).config.max_context_tokens)
    config = EngineConfig(
        device=args.device,
        ctx_size_tokens=ctx_size_tokens,
        cache_tokens=args.rows * ctx_size_tokens,
        max_num_seqs=args.rows,
        num_threads=args.threads,
    )
    engine, tokenizer = build_engine(path, config), Tokenizer.load(path)
    texts, num_layers = Writer(engine, tokenizer, args).texts(), engine.decoder.config.num_layers
    random.Random(args.seed).shuffle(texts)
    recorded = record(engine, texts, (2, num_layers // 2, num_layers - 3))
    torch.set_num_threads(args.threads or engine.info.num_threads)
    torch.manual_seed(args.seed)
    for kind, minutes in zip(args.kind, itertools.cycle(args.minutes), strict=False):
        out = args.out if len(args.kind) == 1 else args.out / kind
        kinds[kind](engine, recorded, out, minutes, args)
        print(f"saved {out}")


if __name__ == "__main__":
    main()
