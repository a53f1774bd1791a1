"""`swiftchat bench`: measure the speed of a model with the engine that a chat uses."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from swiftchat.chat.options.chat_options import options_of
from swiftchat.chat.options.completion import complete_models
from swiftchat.chat.options.option_types import MAX_AT_A_TIME, UserPath, Whole
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

_MAX_TOKENS = 10**7
_MAX_RUNS = 1000
_EXTRA_TOKENS = 128  # of cache for each answer: its first and its last block are partly used


@click.command(
    params=[
        click.Option(
            ["-m", "--model"],
            help="Name, OWNER/NAME, directory or .gguf file.",
            shell_complete=complete_models,
        ),
        *options_of("bench"),
    ]
)
@click.option(
    "--prompt-tokens",
    type=Whole(1, _MAX_TOKENS),
    default=512,
    show_default=True,
    help="Prompt length of the prefill measurement.",
)
@click.option(
    "--answer-tokens",
    type=Whole(2, _MAX_TOKENS),
    default=128,
    show_default=True,
    help="Length of each answer.",
)
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=Whole(0, _MAX_TOKENS),
    default=(0, 1024),
    show_default=True,
    help="Measure decoding after this many tokens (repeatable).",
)
@click.option(
    "--batch",
    "batches",
    multiple=True,
    type=Whole(1, MAX_AT_A_TIME),
    default=(1, 4),
    show_default=True,
    help="Measure this many answers at once (repeatable).",
)
@click.option(
    "--runs",
    type=Whole(1, _MAX_RUNS),
    default=3,
    show_default=True,
    help="Repetitions; the medians are printed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot",
    type=UserPath(),
    metavar="terminal|FILE.png",
    help="Also plot tokens/s against context length.",
)
def bench(
    model: str | None,
    prompt_tokens: int,
    answer_tokens: int,
    contexts: Sequence[int],
    batches: Sequence[int],
    runs: int,
    as_json: bool,
    plot: str | None,
    **options: Any,
) -> None:
    """Measure a model's speed on this machine: start, prefill, decode.

    Decode speed excludes the first token of an answer. TB/s counts the bytes that a decode step
    has to read: weights, and the KV cache of all answers; the last column relates it to the
    measured bandwidth ceiling of the device. With several GPUs both are per GPU. A plot needs
    more contexts:

    \b
    swiftchat bench --plot terminal --context 0 --context 1000 --context 2000 --context 4000
    """
    from swiftchat.chat.model.find import find_model
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.subcommands.bench.measure import Workload, measure
    from swiftchat.chat.subcommands.bench.plot import draw

    dummy = options["dummy"]
    if dummy is not None and model is not None:
        raise UsageError("--model and --dummy exclude each other", "give one of them")
    if plot is not None:
        _check_plot(plot, as_json)
    workload = Workload(prompt_tokens, answer_tokens, contexts, batches, runs)
    config = ChatConfig(**options).engine()
    engine_config = replace(
        config,
        cache_tokens=(max(batches) + 1) * (workload.max_context_tokens + _EXTRA_TOKENS),
        max_num_seqs=max(config.max_num_seqs, *batches),
    )
    path = Path() if dummy is not None else find_model(model, offline=False, quiet=as_json)
    results = measure(engine_config, path, workload)
    print(json.dumps(results, indent=2) if as_json else _table(results))
    if plot is not None:
        draw(results, plot)


def _check_plot(plot: str, as_json: bool) -> None:
    from swiftchat.chat.subcommands.bench.plot import TERMINAL, check_target

    check_target(plot)
    if as_json and plot == TERMINAL:
        raise UsageError("--plot terminal cannot be combined with --json", "use --plot FILE.png")


def _table(results: dict[str, Any]) -> str:
    prefill = results["prefill"]
    cold_s, warm_s = results["compile_cold_s"], results["compile_warm_s"]
    ceiling = results["bandwidth_ceiling_bytes_per_s"]
    lines = [
        f"{sanitize(results['model'])} · {sanitize(_devices(results))} · {results['dtype']} · "
        f"{results['threads']} threads · weights {results['weights_bytes'] / 1e6:.0f} MB",
        f"start {results['start_s']:.2f} s, of which loading {results['load_s']:.2f} s",
    ]
    if cold_s is not None:
        cached = f"with cached kernels {_number(warm_s, 2)} s"
        lines.append(f"kernel compilation {_number(cold_s, 2)} s, {cached}")
    if ceiling:
        lines.append(f"bandwidth ceiling {ceiling / 1e12:.2f} TB/s (measured)")
    lines += [
        f"prefill of {prefill['tokens']} tokens: {prefill['prefill_tps']:.0f} tok/s, "
        f"{_number(prefill['tflop_per_s'], 2)} TFLOP/s, "
        f"first token after {prefill['ttft_s'] * 1e3:.0f} ms",
        f"{'context':>8} {'batch':>6} {'ms/step':>8} {'tok/s':>9} {'TB/s':>7} "
        f"{'of bandwidth ceiling':>21}",
    ]
    for row in results["decode"]:
        fraction = row["fraction_of_bandwidth_ceiling"]
        lines.append(
            f"{row['context']:8} {row['batch']:6} {row['step_ms']:8.2f} {row['decode_tps']:9.1f} "
            f"{_number(row['bytes_per_s'] and row['bytes_per_s'] / 1e12, 3):>7} "
            f"{f'{fraction:.0%}' if fraction else '–':>21}"
        )
    return "\n".join(lines)


def _devices(results: dict[str, Any]) -> str:
    count, device = results["tp"] * results["pp"], results["device"]
    return device if count == 1 else f"{count} × {device}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
