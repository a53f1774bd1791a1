"""Train an EAGLE-3 head or Medusa heads for a small model, from text that it writes itself.

    python benchmarks/train_heads.py MODEL OUT [--kind eagle3|medusa] [--tokens 30000] [--minutes 5]

MODEL is a model directory or a GGUF file; the engine runs it on the CPU. OUT is a new folder for
`--draft`. The model answers prompts of a fixed list; the heads learn the distributions that the LM
head gave in these steps, over the most frequent ids, from the hidden states.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.model.hidden_states import LAST_NORM
from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.engine.schedule.scheduler import Sequence as TokenSequence
from swiftchat.engine.speculation.proposer import ObservedRow
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.engine.speculation.step_costs import StepCosts
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.formats.safetensors import create_safetensors
from swiftchat.weights.model.directory import Model
from swiftchat.weights.store import default_store

_REQUESTS = (
    "Explain {} to a child.",
    "What are the most important facts about {}?",
    "Write a short story about {}.",
    "Give me five tips about {}.",
    "Write an email to a friend about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a Python function that has to do with {}, and explain it.",
    "Summarize the history of {}.",
    "Write a poem about {}.",
    "Make a table of three examples of {}.",
)
_TOPICS = (
    *("rivers", "bread", "chess", "volcanoes", "the moon", "gardens", "trains", "money", "sleep"),
    *("music", "bees", "maps", "winter", "friendship", "football", "prime numbers", "coffee"),
    *("the sea", "photography", "dinosaurs", "bridges", "languages", "exercise", "computers"),
    *("elections", "painting", "cats", "electricity", "the weather", "markets", "tea", "novels"),
)
_DTYPES = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


@dataclass
class Recorded:
    """An answered prompt: the joined hidden states of its tokens.

    `normed` are those that the LM head read, of the tokens from `answer` on.
    """

    tokens: list[int]
    answer: int = 0
    joined: "Rows" = field(default_factory=lambda: Rows())
    normed: "Rows" = field(default_factory=lambda: Rows())


class Rows:
    """Rows in fp16 in one large tensor: many small ones would fragment the memory."""

    def __init__(self) -> None:
        self._memory, self._num_rows = torch.empty(0, 0), 0

    def __len__(self) -> int:
        return self._num_rows

    @property
    def values(self) -> Tensor:
        return self._memory[: self._num_rows]

    def append(self, rows: Tensor) -> None:
        end = self._num_rows + len(rows)
        if end > len(self._memory):
            grown = torch.empty(max(256, 2 * end), rows.shape[1], dtype=torch.float16)
            if self._num_rows:
                grown[: self._num_rows] = self.values
            self._memory = grown
        self._memory[self._num_rows : end] = rows
        self._num_rows = end


class Recorder:
    """A proposer that proposes nothing and keeps what it observes."""

    name = "recorder"
    step_s = 1.0

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers, self.hidden_layers = layers, (*dict.fromkeys(layers), LAST_NORM)
        self.recorded: dict[int, Recorded] = {}

    def observe(self, row: ObservedRow) -> None:
        found = self.recorded.get(row.sequence.id)
        if found is None:
            found = self._begun(row.sequence.tokens, row.position)
            self.recorded[row.sequence.id] = found
        # A preempted answer would be computed again; the cache has room for all of them.
        assert row.position == len(found.joined)
        found.joined.append(torch.cat([row.hidden[layer] for layer in self._layers], 1))
        if len(row.hidden[LAST_NORM]):
            found.answer = found.answer or row.last_position
            found.normed.append(row.hidden[LAST_NORM])

    def _begun(self, tokens: list[int], num_cached: int) -> Recorded:
        """Return a new answer, with the hidden states of its tokens from the prefix cache."""
        new = Recorded(tokens)
        if num_cached:
            start = tokens[:num_cached]
            others = self.recorded.values()
            known = (one for one in others if len(one.joined) >= num_cached)
            same = next(one for one in known if one.tokens[:num_cached] == start)
            new.joined.append(same.joined.values[:num_cached])
        return new

    def propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        return []

    def forget(self, sequence: TokenSequence) -> None:
        """Do nothing: the hidden states are kept for the training."""


def generate(
    engine: Engine, tokenizer: Tokenizer, layers: Sequence[int], args: argparse.Namespace
) -> list[Recorded]:
    """Let the model answer prompts until it has written `args.tokens` tokens."""
    recorder = Recorder(layers)
    engine.speculation = Speculation(
        StepCosts(0.2), 1024, engine.ctx_size_tokens, measures=False, draft=recorder
    )
    texts = [request.format(topic) for request, topic in itertools.product(_REQUESTS, _TOPICS)]
    random.Random(args.seed).shuffle(texts)
    params = SamplingParams(
        temperature=args.temperature,
        top_p=0.95,
        max_tokens=args.max_tokens,
        stop_ids=tuple(tokenizer.eos_ids),
        speculate="draft",
    )
    waiting = list(enumerate(itertools.islice(itertools.cycle(texts), 100_000)))[::-1]
    started = time.monotonic()
    while True:
        num_tokens = sum(len(one.normed) for one in recorder.recorded.values())
        while num_tokens < args.tokens and len(engine.scheduler.running) < args.rows:
            key, text = waiting.pop()
            engine.add(key, list(tokenizer.prompt([{"role": "user", "content": text}]).ids), params)
            engine.step()
        if not engine.has_work:
            break
        engine.step()
    seconds = time.monotonic() - started
    print(
        f"generated {num_tokens} tokens in {seconds:.0f} s ({num_tokens / seconds:.0f}/s)",
        flush=True,
    )
    return list(recorder.recorded.values())


@dataclass(frozen=True)
class Examples:
    """Conversations of one training step, padded to n tokens.

    Token i has the joined hidden states `joined[:, i]` and the next id `following[:, i]`; its
    position is i. `labels[:, i]` are the model's hidden states from which that id was sampled,
    where `is_answer`.
    """

    joined: Tensor
    following: Tensor
    labels: Tensor
    is_answer: Tensor

    @classmethod
    def of(cls, some: Sequence[Recorded]) -> "Examples":
        length = max(len(one.tokens) for one in some) - 1
        widths = some[0].joined.values.shape[1], some[0].normed.values.shape[1]
        joined, labels = (torch.zeros(len(some), length, width) for width in widths)
        following = torch.zeros(len(some), length, dtype=torch.int64)
        is_answer = torch.zeros(len(some), length, dtype=torch.bool)
        for row, one in enumerate(some):
            ends = slice(None), slice(one.answer, None)
            states, normed = one.joined.values, one.normed.values
            following[row, : len(one.tokens) - 1] = torch.tensor(one.tokens[1:])
            for into, values, end in ((joined, states, ends[0]), (labels, normed, ends[1])):
                room = into[row, end]
                room[: len(values)] = values[: len(room)]
            is_answer[row, one.answer : one.answer + len(normed)] = True
        return cls(joined, following, labels, is_answer)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)


class SelfAttention(nn.Module):
    """Attention whose keys and values come from the first pass and from the token's own chain."""

    def __init__(self, config: dict[str, Any], cos_sin: Tensor) -> None:
        super().__init__()
        width, self._dim = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._groups, self._cos_sin = heads // kv_heads, cos_sin
        self.q_proj = nn.Linear(2 * width, heads * self._dim, bias=False)
        self.k_proj = nn.Linear(2 * width, kv_heads * self._dim, bias=False)
        self.v_proj = nn.Linear(2 * width, kv_heads * self._dim, bias=False)
        self.o_proj = nn.Linear(heads * self._dim, width, bias=False)

    def forward(self, x: Tensor, passes: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attend in pass s = len(passes) of a chain, and append this pass's keys and values.

        In pass s token i ends a chain of s tokens: it sees the keys of pass 0 up to token i − s,
        and those of pass r of token i − s + r.
        """
        length, s = x.shape[1], len(passes)
        q, k = self._rotate(self._heads(self.q_proj(x))), self._rotate(self._heads(self.k_proj(x)))
        k, v = (t.repeat_interleave(self._groups, 1) for t in (k, self._heads(self.v_proj(x))))
        passes.append((k, v))
        keys, values = passes[0]
        mask = torch.ones(length, length, dtype=torch.bool).tril(-s)
        scores = [(q @ keys.transpose(2, 3)).masked_fill(~mask, -math.inf)]
        chain = [tuple(t.roll(s - r, 2) for t in passes[r]) for r in range(1, s + 1)]
        scores += [(q * own).sum(3, keepdim=True) for own, _ in chain]
        weights = (torch.cat(scores, 3) / math.sqrt(self._dim)).softmax(3)
        out = weights[..., :length] @ values
        for r, (_, own) in enumerate(chain):
            out = out + weights[..., length + r, None] * own
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self._dim)).transpose(1, 2)

    def _rotate(self, x: Tensor) -> Tensor:
        cos, sin = self._cos_sin[: x.shape[2]].chunk(2, 1)
        first, second = x.chunk(2, 3)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], 3)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    def __init__(self, config: dict[str, Any], cos_sin: Tensor) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.self_attn = SelfAttention(config, cos_sin)
        self.mlp = MLP(width, config["intermediate_size"])

    def forward(self, x: Tensor, embedded: Tensor, passes: list[tuple[Tensor, Tensor]]) -> Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(x)], 2)
        x = x + self.self_attn(both, passes)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    """The head of `config`; its state dict has the names of the files."""

    def __init__(self, config: dict[str, Any], num_joined: int) -> None:
        super().__init__()
        width = config["hidden_size"]
        rope = RopeConfig.from_hf(config, config["head_dim"])
        positions = config["max_position_embeddings"]
        cos_sin = cos_sin_table(rope, config["head_dim"], positions, torch.device("cpu"))
        self.fc = nn.Linear(num_joined, width, bias=False)
        self.midlayer = MidLayer(config, cos_sin)
        self.norm = RMSNorm(width, config["rms_norm_eps"])
        self.lm_head = nn.Linear(width, config["draft_vocab_size"], bias=False)

    def losses(
        self, batch: Examples, embedded: Tensor, targets: Tensor, num_passes: int
    ) -> list[Tensor]:
        """Return the loss of each pass; in pass s > 0 the head reads its own hidden states.

        `embedded` are the embeddings of `batch.following`, `targets` the probabilities of the ids
        after these, for the tokens `[:, :-1]`.
        """
        x, passes, found = self.fc(batch.joined), list[tuple[Tensor, Tensor]](), []
        for s in range(num_passes):
            x = self.midlayer(x, embedded, passes)
            is_scored = batch.is_answer[:, 1:].clone()
            is_scored[:, :s] = False
            logits = self.lm_head(self.norm(x[:, :-1][is_scored]))
            found.append(cross_entropy(logits, targets[is_scored]))
            x = x.roll(1, 1)
        return found


class Medusa(nn.Module):
    """Heads of one residual block each, before the LM head of the model."""

    def __init__(self, num_heads: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_heads))
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def losses(self, batch: Examples, targets: Tensor, lm_head: Tensor) -> list[Tensor]:
        """Return the loss of each head; head h predicts the id h + 2 tokens after its own."""
        found = []
        for h, block in enumerate(self.blocks):
            x = batch.labels[:, : -h - 1]
            x = x + F.silu(block(x))
            is_scored = batch.is_answer[:, : -h - 1] & batch.is_answer[:, h + 1 :]
            own = targets[:, h:]
            found.append(cross_entropy(x[is_scored] @ lm_head.T, own[is_scored]))
        return found


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy to distributions, in nats, and record the agreement."""
    agreement.append(float((logits.argmax(1) == targets.argmax(1)).float().mean()))
    return -(targets * logits.log_softmax(1)).sum(1).mean()


agreement: list[float] = []  # of the best ids, for each loss since the last report


def train(
    module: nn.Module,
    recorded: list[Recorded],
    losses: Callable[[Examples], list[Tensor]],
    args: argparse.Namespace,
) -> None:
    """Minimize the sum of the losses for `args.minutes`; print the agreement of each."""
    started, limit = time.monotonic(), 60 * args.minutes
    optimizer = torch.optim.AdamW(module.parameters(), lr=args.rate, weight_decay=0.01)
    chance, reported = random.Random(args.seed), started
    for number in itertools.count():
        batch = Examples.of(chance.sample(recorded, min(args.batch, len(recorded))))
        done = max((time.monotonic() - started) / limit, number / args.max_steps)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (number + 1) / 20) * (1 - done)
        found = losses(batch)
        optimizer.zero_grad()
        torch.stack(found).sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        if time.monotonic() - reported > 20 or done == 0:
            reported = time.monotonic()
            means = [sum(agreement[i :: len(found)]) for i in range(len(found))]
            rates = [mean * len(found) / len(agreement) for mean in means]
            agreement.clear()
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
            writer.write(key, tensor.detach().numpy())


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
    targets, table = probabilities(lm_head[ids], model.logit_scale), engine.decoder.weights.embed

    def losses(batch: Examples) -> list[Tensor]:
        embedded = table.rows(batch.following.flatten()).float().unflatten(0, batch.following.shape)
        return head.losses(batch, embedded.clone(), targets(batch), args.passes)

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
    targets = probabilities(lm_head[ids], model.logit_scale)
    train(heads, recorded, lambda batch: heads.losses(batch, targets(batch), lm_head[ids]), args)
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
