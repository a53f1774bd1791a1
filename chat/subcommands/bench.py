"""`swiftchat bench`: how fast a model runs here, measured through the same engine as a chat."""

import json as json_module
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.completion import complete_models, complete_shapes
from swiftchat.chat.options.num_ranks import RankCount
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.engine.api.client import EngineClient
    from swiftchat.engine.api.params import EngineConfig, NumRanks
    from swiftchat.engine.api.protocol import EngineInfo, Finished
    from swiftchat.weights.architectures.config import ModelConfig

_SLACK_TOKENS = 128  # of cache for each answer: the blocks it begins and ends in
_FIRST_ID = 3  # what lies below is control tokens in most vocabularies


@click.command()
@click.option(
    "-m",
    "--model",
    help="Name, OWNER/NAME, directory or .gguf file.",
    shell_complete=complete_models,
)
@click.option(
    "--dummy",
    metavar="NAME|CONFIG.JSON",
    shell_complete=complete_shapes,
    help="Random weights in this shape instead of a model.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Length of the prompt read.",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(2),
    default=128,
    show_default=True,
    help="Length of the answer.",
)
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=click.IntRange(0),
    default=(0, 1024),
    show_default=True,
    help="Decode after so many tokens (repeatable).",
)
@click.option(
    "--batch",
    "batches",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 4),
    show_default=True,
    help="Answers at once (repeatable).",
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Repetitions; medians are shown.",
)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--tp",
    type=RankCount(),
    default=1,
    help="Divide the model among so many GPUs; auto: the fewest that hold it.",
)
@click.option(
    "--pp",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Give the layers to N stages of --tp GPUs each.",
)
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]))
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "int8", "fp8"]),
    default="auto",
    help="Keep keys and values in this.",
)
@click.option("--threads", type=int, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--plot", metavar="terminal|FILE.png", help="Draw tokens/s over the contexts too.")
def bench(
    model: str | None,
    dummy: str | None,
    prompt_tokens: int,
    answer_tokens: int,
    contexts: Sequence[int],
    batches: Sequence[int],
    runs: int,
    device: str,
    tp: "NumRanks",
    pp: int,
    dtype: str | None,
    kv_dtype: str,
    threads: int | None,
    as_json: bool,
    plot: str | None,
) -> None:
    """Measure a model's speed on this machine: loading, reading a prompt, answering.

    An answer's speed is that of its tokens after the first. TB/s is what a step must read at
    least (weights, and keys and values of all contexts), also as a share of what the device
    reads at most; of several GPUs, on each. More contexts make a better plot:

    \b
    swiftchat bench --plot terminal --context 0 --context 1000 --context 2000 --context 4000
    """
    from swiftchat.chat.model.find import find_model
    from swiftchat.chat.subcommands.bench_plot import TERMINAL, check_target, draw
    from swiftchat.engine.api.params import EngineConfig

    if dummy is not None and model is not None:
        raise UsageError("--model and --dummy were both given", "choose one")
    if plot is not None:
        check_target(plot)
        if as_json and plot == TERMINAL:
            raise UsageError("--json leaves no place for --plot terminal", "--plot FILE.png")
    longest = max(prompt_tokens, *contexts) + answer_tokens
    engine_config = EngineConfig(
        device=device,
        tp=tp,
        pp=pp,
        dtype=dtype,
        kv_dtype=kv_dtype,
        num_threads=threads,
        dummy=dummy,
        cache_tokens=(max(batches) + 1) * (longest + _SLACK_TOKENS),
        max_num_seqs=max(EngineConfig.max_num_seqs, *batches),
    )
    path = Path() if dummy is not None else find_model(model, offline=False, quiet=as_json)
    with _started(engine_config, path) as (client, shape, start):
        info = client.wait_ready()
        if longest > info.ctx_size_tokens:
            raise UsageError(
                f"{longest} tokens are longer than the context of {info.ctx_size_tokens}",
                "choose a smaller --context, --prompt-tokens or --answer-tokens",
            )
        runner = _Runner(client, shape)
        for batch in batches:
            runner.measure(16, 4, batch)  # a batch of a new size may have to be prepared for
        prefill = runner.median(runs, prompt_tokens, 1, 1)
        rows = [
            (context, batch, runner.median(runs, max(context, 1), answer_tokens, batch))
            for context in contexts
            for batch in batches
        ]
        ceiling = client.stats(measure=True).get("bandwidth_ceiling_bytes_per_s")
    costs = _Costs(shape, info)
    flop = costs.prefill_flop(prompt_tokens)
    results: dict[str, Any] = {
        "model": path.name if dummy is None else dummy,
        "dummy": dummy is not None,
        "device": info.device,
        "tp": info.tp,
        "pp": info.pp,
        "dtype": info.dtype,
        "kv_dtype": info.kv_dtype,
        "threads": info.num_threads,
        "parameters": info.num_parameters,
        "weights_bytes": info.weights_bytes,
        **start,
        "load_s": info.load_s,
        "bandwidth_ceiling_bytes_per_s": ceiling,
        "prefill": {
            "tokens": prompt_tokens,
            **prefill,
            "tflop_per_s": flop / prefill["prefill_s"] / 1e12,
        },
        "decode": [],
    }
    for context, batch, row in rows:
        step_bytes = costs.step_bytes(max(context, 1), answer_tokens, batch)
        bytes_per_s = step_bytes / row["step_ms"] * 1e3
        results["decode"].append(
            {
                "context": context,
                "batch": batch,
                **row,
                "step_bytes": step_bytes,
                "bytes_per_s": bytes_per_s,
                "share_of_ceiling": bytes_per_s / ceiling if ceiling else None,
            }
        )
    print(json_module.dumps(results, indent=2) if as_json else _table(results))
    if plot is not None:
        draw(results, plot)


def _shape(path: Path, dummy: str | None) -> "ModelConfig":
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.model.dummy import dummy_config

    return Model.open(path).config if dummy is None else dummy_config(dummy)


@contextmanager
def _started(
    config: "EngineConfig", path: Path
) -> "Iterator[tuple[EngineClient, ModelConfig, dict[str, Any]]]":
    """A warm engine, its model's shape, and the seconds of starting and of compiling kernels.

    Where kernels are compiled, a first engine finds an empty cache and fills it for the second.
    """
    from swiftchat.engine.api.client import EngineClient

    def start() -> "tuple[EngineClient, ModelConfig, float]":
        began = time.perf_counter()
        client = EngineClient(config, path).start()
        try:
            client.wait_ready()
            start_s = time.perf_counter() - began
            shape = _shape(path, config.dummy)
            _Runner(client, shape).measure(16, 4, 1)  # the first pass reads the weights in
        except BaseException:
            client.close()
            raise
        return client, shape, start_s

    cold_s = warm_s = None
    with _empty_cache():
        client, shape, start_s = start()
        try:
            cold_s = client.stats().get("compile_s")
            if cold_s is not None:
                client.close()
                client, shape, start_s = start()
                warm_s = client.stats().get("compile_s")
            times = {"start_s": start_s, "compile_cold_s": cold_s, "compile_warm_s": warm_s}
            yield client, shape, times
        finally:
            client.close()


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Engines started within find no compiled kernels but those of each other."""
    name = "XDG_CACHE_HOME"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory(prefix="swiftchat-bench-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


class _Runner:
    """Runs generations whose prompts no other run has had, so that nothing is reused."""

    num_prompts = 0  # of all runners, so that their prompts differ

    def __init__(self, client: "EngineClient", shape: "ModelConfig") -> None:
        self._client = client
        self._vocab_size = shape.vocab_size

    def median(self, runs: int, prompt: int, answer: int, batch: int) -> dict[str, float]:
        """Medians of `measure` over the runs, and the tokens a second that follow from them."""
        measured = [self.measure(prompt, answer, batch) for _ in range(runs)]
        times = {key: statistics.median(m[key] for m in measured) for key in measured[0]}
        rates = {"prefill_tps": prompt * batch / times["prefill_s"]}
        if "step_ms" in times:
            rates["decode_tps"] = batch / times["step_ms"] * 1e3
        return times | rates

    def measure(self, prompt: int, answer: int, batch: int) -> dict[str, float]:
        """How long one run of `batch` prompts and their answers takes.

        Several prompts are read first and then answered from the cache: so all answers begin in
        the same step, and none is slowed by another's prompt. `ttft_s` is seen from here, the
        other times are the engine's own. An answer of one token has no `step_ms`.
        """
        prompts = [self._prompt(prompt) for _ in range(batch)]
        ends, ttft_s = self._generate(prompts, answer if batch == 1 else 1)
        times = {"ttft_s": ttft_s, "prefill_s": max(end.prefill_s for end in ends)}
        if answer > 1:
            if batch > 1:
                ends, _ = self._generate(prompts, answer)
            decoded = sum(end.completion_tokens - 1 for end in ends)
            times["step_ms"] = max(end.decode_s for end in ends) / decoded * batch * 1e3
        return times

    def _generate(
        self, prompts: Sequence[Sequence[int]], length: int
    ) -> "tuple[list[Finished], float]":
        """How the generations ended, and the seconds until the last of them began."""
        from swiftchat.engine.api.params import SamplingParams
        from swiftchat.engine.api.protocol import Finished, Tokens

        params = SamplingParams(temperature=0, max_tokens=length)
        began, last_s, ends = time.perf_counter(), 0.0, []
        for generation in [self._client.generate(prompt, params) for prompt in prompts]:
            is_first = True
            for event in generation:
                if isinstance(event, Tokens) and is_first:
                    last_s, is_first = time.perf_counter() - began, False
                elif isinstance(event, Finished):
                    ends.append(event)
        return ends, last_s

    def _prompt(self, length: int) -> list[int]:
        _Runner.num_prompts += 1
        ids = range(min(_FIRST_ID, self._vocab_size - 1), self._vocab_size)
        return random.Random(_Runner.num_prompts).choices(ids, k=length)


@dataclass(frozen=True)
class _Costs:
    """What a model must compute and read at least."""

    shape: "ModelConfig"
    info: "EngineInfo"

    def prefill_flop(self, tokens: int) -> float:
        """Multiplications and additions for a prompt; logits only of its last token."""
        shape = self.shape
        a_token = 2 * (self._layers() + shape.experts_per_token * self._layers(of_an_expert=True))
        # Each query with each key it sees, and each weight with its value.
        a_pair = 4 * shape.num_layers * shape.num_heads * shape.head_dim
        seen = sum(map(self._seen, range(1, tokens + 1)))
        return tokens * a_token + a_pair * seen + 2 * shape.vocab_size * shape.hidden_size

    def step_bytes(self, prompt: int, answer: int, batch: int) -> float:
        """Bytes that a rank reads in a decode step, the mean over the tokens after the first.

        Of several stages, which read one after the other, a rank of each.
        """
        shape, info = self.shape, self.info
        item_bytes = 4 if info.dtype == "float32" else 2
        contexts = [self._seen(prompt + i) for i in range(1, answer)]
        kv_bytes = info.cache_bytes / info.cache_tokens * statistics.mean(contexts)
        unused = shape.num_experts - shape.experts_per_token  # where all tokens choose the same
        left_out = unused * self._layers(of_an_expert=True)
        # Weights and cache are a rank's, and every rank has a part of what is left out.
        read_bytes = info.weights_bytes - info.table_bytes - left_out * item_bytes / info.tp
        return read_bytes + batch * kv_bytes

    def _layers(self, of_an_expert: bool = False) -> int:
        """Numbers in all layers' matrices: in those for every token, or in those of one expert."""
        from swiftchat.weights.architectures.tensors import canonical_shapes, layer_tensors

        sizes = canonical_shapes(self.shape)
        return sum(
            sizes[name][-2] * sizes[name][-1]
            for layer in range(self.shape.num_layers)
            for name in layer_tensors(self.shape, layer)
            if name.startswith("expert") == of_an_expert
            and not name.endswith("_bias")
            and len(sizes[name]) > 1
        )

    def _seen(self, context: int) -> int:
        window = self.shape.sliding_window
        return context if window is None else min(context, window)


def _table(results: dict[str, Any]) -> str:
    prefill = results["prefill"]
    cold_s, warm_s = results["compile_cold_s"], results["compile_warm_s"]
    ceiling = results["bandwidth_ceiling_bytes_per_s"]
    lines = [
        f"{sanitize(results['model'])} · {sanitize(_devices(results))} · {results['dtype']} · "
        f"{results['threads']} threads · weights {results['weights_bytes'] / 1e6:.0f} MB",
        f"start {results['start_s']:.2f} s, of which loading {results['load_s']:.2f} s",
        *(
            [f"compiling kernels {_number(cold_s, 2)} s, from the cache {_number(warm_s, 2)} s"]
            if cold_s is not None
            else []
        ),
        *([f"the device reads {ceiling / 1e12:.2f} TB/s at most"] if ceiling else []),
        f"prompt of {prefill['tokens']} tokens: {prefill['prefill_tps']:.0f} tok/s, "
        f"{_number(prefill['tflop_per_s'], 2)} TFLOP/s, "
        f"first token after {prefill['ttft_s'] * 1e3:.0f} ms",
        f"{'context':>8} {'batch':>6} {'ms/step':>8} {'tok/s':>9} {'TB/s':>7} {'of ceiling':>11}",
    ]
    for row in results["decode"]:
        share = row["share_of_ceiling"]
        lines.append(
            f"{row['context']:8} {row['batch']:6} {row['step_ms']:8.2f} {row['decode_tps']:9.1f} "
            f"{_number(row['bytes_per_s'] and row['bytes_per_s'] / 1e12, 3):>7} "
            f"{f'{share:.0%}' if share else '–':>11}"
        )
    return "\n".join(lines)


def _devices(results: dict[str, Any]) -> str:
    count, device = results["tp"] * results["pp"], results["device"]
    return device if count == 1 else f"{count} × {device}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    bench()
