"""`swiftchat bench`: how fast a model runs here, measured through the same engine as a chat."""

import json as json_module
import statistics
import time
from collections.abc import Sequence
from typing import Any

import click

from swiftchat.chat.gate import visible


@click.command()
@click.option("-m", "--model", help="Name, OWNER/NAME, directory or .gguf file.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=512, show_default=True,
              help="Length of the prompt read.")  # fmt: skip
@click.option("--answer-tokens", type=click.IntRange(2), default=128, show_default=True,
              help="Length of the answer.")  # fmt: skip
@click.option("--context", "contexts", multiple=True, type=click.IntRange(0), default=(0, 1024),
              show_default=True, help="Also decode after so many tokens (repeatable).")  # fmt: skip
@click.option("--batch", "batches", multiple=True, type=click.IntRange(1), default=(1, 4),
              show_default=True, help="Answers at once (repeatable).")  # fmt: skip
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Repetitions; medians are shown.",
)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]))
@click.option("--threads", type=int, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def bench(model: str | None, prompt_tokens: int, answer_tokens: int, contexts: Sequence[int],
          batches: Sequence[int], runs: int, device: str, dtype: str | None, threads: int | None,
          as_json: bool) -> None:  # fmt: skip
    """Measure a model's speed on this machine: loading, reading a prompt, answering."""
    from swiftchat.chat.models import find_model
    from swiftchat.engine.client import EngineClient
    from swiftchat.engine.params import EngineConfig
    from swiftchat.weights.model import Model

    path = find_model(model, offline=False, quiet=as_json)
    longest = max(prompt_tokens, *contexts) + answer_tokens + 8
    config = EngineConfig(
        device=device, dtype=dtype, num_threads=threads,
        cache_tokens=(max(batches) + 1) * longest,
    )  # fmt: skip
    started = time.perf_counter()
    with EngineClient(config, path) as client:
        info = client.wait_ready()
        ready_s = time.perf_counter() - started
        runner = _Runner(client, Model.open(path).config.vocab_size)
        runner.measure(16, 4, 1)  # the first pass reads the weights in
        results: dict[str, Any] = {
            "model": path.name, "device": info.device, "dtype": info.dtype,
            "threads": info.num_threads, "weights_bytes": info.weights_bytes,
            "start_s": ready_s, "load_s": info.load_s,
            "prefill": runner.median(runs, prompt_tokens, 1, 1),
            "decode": [
                {"context": context, "batch": batch,
                 **runner.median(runs, max(context, 1), answer_tokens, batch)}
                for context in contexts for batch in batches
            ],
        }  # fmt: skip
    print(json_module.dumps(results, indent=2) if as_json else _table(results, prompt_tokens))


class _Runner:
    """Runs generations whose prompts no other run has had, so that nothing is reused."""

    def __init__(self, client: Any, vocab_size: int) -> None:
        self._client = client
        self._vocab_size = vocab_size
        self._num_prompts = 0

    def median(self, runs: int, prompt: int, answer: int, batch: int) -> dict[str, float]:
        """Medians of `measure` over the runs."""
        measured = [self.measure(prompt, answer, batch) for _ in range(runs)]
        return {key: statistics.median(m[key] for m in measured) for key in measured[0]}

    def measure(self, prompt: int, answer: int, batch: int) -> dict[str, float]:
        """One run: seconds to the first token, and tokens a second reading and answering.

        An answer of one token has no speed; `decode_tps` is left out then.
        """
        from swiftchat.engine.params import SamplingParams
        from swiftchat.engine.protocol import Finished

        params = SamplingParams(temperature=0, max_tokens=answer)
        generations = [self._client.generate(self._prompt(prompt), params) for _ in range(batch)]
        ends = [event for g in generations for event in g if isinstance(event, Finished)]
        prefill_s = max(end.prefill_s for end in ends)
        rates = {"ttft_s": prefill_s, "prefill_tps": prompt * batch / prefill_s}
        if answer > 1:
            decoded = sum(end.completion_tokens - 1 for end in ends)
            rates["decode_tps"] = decoded / max(end.decode_s for end in ends)
        return rates

    def _prompt(self, length: int) -> list[int]:
        self._num_prompts += 1
        salt = self._num_prompts * 7919
        return [3 + (salt + i * 104729) % (self._vocab_size - 3) for i in range(length)]


def _table(results: dict[str, Any], prompt_tokens: int) -> str:
    prefill = results["prefill"]
    lines = [
        f"{visible(results['model'])} · {results['device']} · {results['dtype']} · "
        f"{results['threads']} threads · weights {results['weights_bytes'] / 1e6:.0f} MB",
        f"start {results['start_s']:.2f} s, of which loading {results['load_s']:.2f} s",
        f"prompt of {prompt_tokens} tokens: {prefill['prefill_tps']:.0f} tok/s, "
        f"first token after {prefill['ttft_s'] * 1e3:.0f} ms",
        f"{'context':>8} {'batch':>6} {'tok/s':>8} {'GB/s of weights':>16}",
    ]
    for row in results["decode"]:
        rate = row["decode_tps"]
        gb_per_s = rate / row["batch"] * results["weights_bytes"] / 1e9
        lines.append(f"{row['context']:8} {row['batch']:6} {rate:8.1f} {gb_per_s:16.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    bench()
