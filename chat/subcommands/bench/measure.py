"""Measurements of `swiftchat bench`: start an engine, run generations, compute rates."""

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

from swiftchat.chat.subcommands.bench.costs import Costs
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.engine.api.client import EngineClient
    from swiftchat.engine.api.params import EngineConfig
    from swiftchat.engine.api.protocol import Finished
    from swiftchat.weights.architectures.parts.model import ModelConfig

_FIRST_ID = 3  # smaller ids are control tokens in most vocabularies


@dataclass(frozen=True)
class Workload:
    """Prompt and answer lengths in tokens, context lengths, batch sizes, and repetitions."""

    prompt_tokens: int
    answer_tokens: int
    contexts: Sequence[int]
    batches: Sequence[int]
    runs: int

    @property
    def max_context_tokens(self) -> int:
        return max(self.prompt_tokens, *self.contexts) + self.answer_tokens


def measure(config: "EngineConfig", path: Path, workload: Workload) -> dict[str, Any]:
    """Run a workload on a new engine; return the dictionary that `bench --json` prints.

    `path` is the model; it is ignored if `config.dummy` is given. Raises `UsageError` if the
    workload exceeds the context.
    """
    prompt, answer = workload.prompt_tokens, workload.answer_tokens
    with _started(config, path) as (runner, start_times):
        info = runner.client.wait_ready()
        if workload.max_context_tokens > info.ctx_size_tokens:
            raise UsageError(
                f"{workload.max_context_tokens} tokens exceed the context of "
                f"{info.ctx_size_tokens}",
                "choose a smaller --context, --prompt-tokens or --answer-tokens",
            )
        for batch in workload.batches:
            runner.measure(16, 4, batch)  # the engine may prepare for a new batch size
        prefill = runner.medians(workload.runs, prompt, 1, 1)
        rows = [
            (context, batch, runner.medians(workload.runs, max(context, 1), answer, batch))
            for context in workload.contexts
            for batch in workload.batches
        ]
        ceiling = runner.client.stats(measure=True).get("bandwidth_ceiling_bytes_per_s")
    costs = Costs(runner.shape, info)
    decode = []
    for context, batch, times in rows:
        step_bytes = costs.step_bytes(max(context, 1), answer, batch)
        bytes_per_s = step_bytes / times["step_ms"] * 1e3
        decode.append(
            {
                "context": context,
                "batch": batch,
                **times,
                "step_bytes": step_bytes,
                "bytes_per_s": bytes_per_s,
                "fraction_of_bandwidth_ceiling": bytes_per_s / ceiling if ceiling else None,
            }
        )
    tflop_per_s = costs.prefill_flop(prompt) / prefill["prefill_s"] / 1e12
    return {
        "model": path.name if config.dummy is None else config.dummy,
        "dummy": config.dummy is not None,
        "device": info.device,
        "tp": info.tp,
        "pp": info.pp,
        "dtype": info.dtype,
        "kv_dtype": info.kv_dtype,
        "threads": info.num_threads,
        "parameters": info.num_parameters,
        "weights_bytes": info.weights_bytes,
        **start_times,
        "load_s": info.load_s,
        "bandwidth_ceiling_bytes_per_s": ceiling,
        "prefill": {"tokens": prompt, **prefill, "tflop_per_s": tflop_per_s},
        "decode": decode,
    }


class _Runner:
    """Runs generations with prompts that never repeat, so that the prefix cache is not used."""

    def __init__(self, client: "EngineClient", shape: "ModelConfig") -> None:
        self.client = client
        self.shape = shape
        self._num_prompts = 0

    def medians(self, runs: int, prompt: int, answer: int, batch: int) -> dict[str, float]:
        """Return the medians of `measure` over several runs, and the resulting tokens/s."""
        measured = [self.measure(prompt, answer, batch) for _ in range(runs)]
        times = {key: statistics.median(m[key] for m in measured) for key in measured[0]}
        rates = {"prefill_tps": prompt * batch / times["prefill_s"]}
        if "step_ms" in times:
            rates["decode_tps"] = batch / times["step_ms"] * 1e3
        return times | rates

    def measure(self, prompt: int, answer: int, batch: int) -> dict[str, float]:
        """Return the times of one run of `batch` prompts and their answers.

        Several prompts are prefilled first and then answered from the prefix cache, so that all
        answers begin in the same step. `ttft_s` is measured by this client, the other times by the
        engine. An answer of one token has no `step_ms`.
        """
        prompts = [self._new_prompt(prompt) for _ in range(batch)]
        ends, ttft_s = self._generate(prompts, answer if batch == 1 else 1)
        times = {"ttft_s": ttft_s, "prefill_s": max(end.prefill_s for end in ends)}
        if answer > 1:
            if batch > 1:
                ends, _ = self._generate(prompts, answer)
            num_decoded = sum(end.completion_tokens - 1 for end in ends)
            times["step_ms"] = max(end.decode_s for end in ends) / num_decoded * batch * 1e3
        return times

    def _generate(
        self, prompts: Sequence[Sequence[int]], length: int
    ) -> "tuple[list[Finished], float]":
        """Return the final events, and the seconds until every answer has its first token."""
        from swiftchat.engine.api.params import SamplingParams
        from swiftchat.engine.api.protocol import Finished, Tokens

        params = SamplingParams(temperature=0, max_tokens=length, speculate="off")
        began, last_s, ends = time.perf_counter(), 0.0, []
        for generation in [self.client.generate(prompt, params) for prompt in prompts]:
            is_first = True
            for event in generation:
                if isinstance(event, Tokens) and is_first:
                    last_s, is_first = time.perf_counter() - began, False
                elif isinstance(event, Finished):
                    ends.append(event)
        return ends, last_s

    def _new_prompt(self, length: int) -> list[int]:
        self._num_prompts += 1
        vocab_size = self.shape.vocab_size
        ids = range(min(_FIRST_ID, vocab_size - 1), vocab_size)
        return random.Random(self._num_prompts).choices(ids, k=length)


@contextmanager
def _started(
    config: "EngineConfig", path: Path
) -> "Iterator[tuple[_Runner, dict[str, float | None]]]":
    """Start a warmed-up engine; yield its runner, and the seconds of start and compilation.

    If the engine compiles kernels, a first engine fills an empty cubin cache for the second one.
    """

    def start() -> "tuple[_Runner, float]":
        from swiftchat.engine.api.client import EngineClient

        began = time.perf_counter()
        client = EngineClient(config, path).start()
        try:
            client.wait_ready()
            start_s = time.perf_counter() - began
            runner = _Runner(client, _shape(path, config.dummy))
            runner.measure(16, 4, 1)  # the first pass reads the weights from disk
        except BaseException:
            client.close()
            raise
        return runner, start_s

    warm_s = None
    with _empty_cache():
        runner, start_s = start()
        try:
            cold_s = runner.client.stats().get("compile_s")
            if cold_s is not None:
                runner.client.close()
                runner, start_s = start()
                warm_s = runner.client.stats().get("compile_s")
            times = {"start_s": start_s, "compile_cold_s": cold_s, "compile_warm_s": warm_s}
            yield runner, times
        finally:
            runner.client.close()


def _shape(path: Path, dummy: str | None) -> "ModelConfig":
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.model.dummy import dummy_config

    return Model.open(path).config if dummy is None else dummy_config(dummy)


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Give all engines that start within the context one new, empty cache folder."""
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
