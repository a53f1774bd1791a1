"""The table of options: flags, variables, files, roles, `/set`, requests and help come from it.

An option is a field here or of `InputOptions`, and used somewhere else. `chat_options.py` derives
the lists of options.
"""

from dataclasses import dataclass
from typing import Literal

import click

from swiftchat.chat.options.completion import (
    complete_files,
    complete_models,
    complete_shapes,
)
from swiftchat.chat.options.duration import Duration
from swiftchat.chat.options.input_options import InputOptions
from swiftchat.chat.options.option_types import (
    MAX_RANKS,
    Colors,
    NumberOrAuto,
    UserPath,
    Whole,
)
from swiftchat.chat.options.size import Size
from swiftchat.chat.options.spec import choice, flag, many, number, once, option, texts
from swiftchat.chat.terminal.theme import THEMES
from swiftchat.engine.api.params import (
    EARLY_STOPPING,
    LOOP_STOPS,
    MAX_COUNT,
    MAX_LOGPROBS,
    MAX_SAMPLES,
    SPECULATE,
    Range,
)

_AT_LEAST_1 = Range("between 1 and 2^31 - 1", 1, MAX_COUNT)
_MAX_THREADS = 4096
_MAX_LAYERS = 1000
_COMMANDS = ("score", "embed", "batch", "do")
_ENGINES = (*_COMMANDS, "serve")
_MEASURED = (*_ENGINES, "bench")


@dataclass(frozen=True)
class Options(InputOptions):
    """The options of `swiftchat chat`; None leaves the choice to the model."""

    max_tokens: int | None = number(
        "Maximum length of an answer in tokens.",
        "num_predict",
        "n_predict",
        short="-n",
        limits=_AT_LEAST_1,
        section="Answer",
    )
    min_tokens: int | None = number("Minimum length of an answer in tokens.", "min_new_tokens")
    loop_stop: str | None = choice(
        LOOP_STOPS, "End an answer that repeats the same 40 tokens five times (on)."
    )
    stop: tuple[str, ...] = texts("Stop before this text (repeatable).")
    ban: tuple[str, ...] = texts("Never write this text (repeatable).")
    logit_bias: tuple[str, ...] = texts(
        "Add -100 to 100 to the logit of a token (repeatable).", metavar="TEXT=NUMBER"
    )
    temperature: float | None = number(
        "Randomness of the answer; 0 is greedy.", "temp", in_model="temperature"
    )
    top_n_sigma: float | None = number(
        "Sample from logits within n standard deviations of the highest; 0 is off."
    )
    top_k: int | None = number(
        "Sample from the k most probable tokens; 0 is off.", in_model="top_k"
    )
    typical_p: float | None = number(
        "Locally typical sampling with probability p; 1 is off.", "typ_p", "typical"
    )
    min_p: float | None = number(
        "Minimum probability relative to the most probable token; 0 is off.", in_model="min_p"
    )
    top_p: float | None = number("Nucleus sampling with probability p; 1 is off.", in_model="top_p")
    xtc_probability: float | None = number(
        "How often XTC excludes the most probable tokens; 0 is off."
    )
    xtc_threshold: float | None = number(
        "Least probability of the tokens of which XTC leaves only the last (0.1)."
    )
    top_p_decay: float | None = number("Multiply top-p by this after each token; 1 is off.")
    top_p_min: float | None = number("Lower bound of top-p with --top-p-decay.")
    top_p_reset: tuple[str, ...] = texts("Text that resets the decay of top-p (repeatable).")
    repeat_penalty: float | None = number(
        "Penalize repeated tokens; 1 is off.", "repetition_penalty", in_model="repetition_penalty"
    )
    presence_penalty: float | None = number(
        "Subtract this once from the logit of tokens that occurred."
    )
    frequency_penalty: float | None = number("Subtract this from the logit for each occurrence.")
    repeat_last_n: int | None = number(
        "The penalties look at the last N tokens; -1 is all, 0 none.", "penalty_last_n"
    )
    dry_multiplier: float | None = number("Penalty of repeated sequences (DRY); 0 is off.")
    dry_base: float | None = number("Growth of the DRY penalty with each repeated token (1.75).")
    dry_allowed_length: int | None = number("Longest repetition without a DRY penalty (2).")
    dry_breaker: tuple[str, ...] = texts(
        "Text that ends a repetition for DRY (repeatable); none: no such text.",
        "dry_sequence_breaker",
    )
    no_repeat_ngram: int | None = number(
        "No sequence of this many tokens occurs twice; 0 is off.", "no_repeat_ngram_size"
    )
    seed: int | None = number("Seed; makes an answer repeatable.")
    samples: int = option(
        env=False,
        type=Whole(1, MAX_SAMPLES),
        default=1,
        metavar="N",
        commands=("batch",),
        help="With -p and batch: N answers at the same time, with consecutive seeds.",
    )
    beams: int | None = number("Beam search with this many beams.", "num_beams")
    length_penalty: float | None = number(
        "Beam search: above 0 favors longer answers (1).", of_beams=True
    )
    early_stopping: str | None = choice(
        EARLY_STOPPING, "Beam search: end at the first N answers (false).", of_beams=True
    )
    diversity_rate: float | None = number(
        "Beam search: above 0 the beams differ more; 0 is off.", of_beams=True
    )
    speculate: str | None = choice(
        SPECULATE, "Speculative decoding: verify proposed tokens, faster."
    )
    speculate_tokens: int | None = number(
        "At most so many proposed tokens (15; CPU: 8).", "draft_max"
    )
    logprobs: int | None = number(
        "Logprobs of each token and of N alternatives (5).",
        env=False,
        is_saved=False,
        is_flag=False,
        flag_value=5,
        metavar="[N]",
    )
    prompt_logprobs: int | None = option(
        env=False,
        type=Whole(0, MAX_LOGPROBS),
        is_flag=False,
        flag_value=5,
        metavar="[N]",
        help="Logprobs of the tokens of the prompt, in --json.",
    )

    tools: str | None = option(
        env=False,
        in_file=True,
        is_flag=False,
        flag_value="all",
        metavar="[NAMES]",
        help="Give the model built-in tools: all, or such as read,list; see swiftchat help tools.",
        section="Tools",
    )
    mcp: tuple[str, ...] = many(
        env=False,
        in_file=True,
        metavar="COMMAND|FILE|URL",
        help="Give the model the tools of this MCP server (repeatable).",
    )
    mcp_optional: bool = flag(
        env=False, in_file=True, help="Answer -p also if an MCP server does not start."
    )
    allow_tool: tuple[str, ...] = many(
        env=False,
        in_file=True,
        metavar="NAME|all",
        help="Call this tool without asking (repeatable).",
    )
    max_tool_rounds: int = option(
        type=Whole(1, 100),
        default=8,
        metavar="N",
        help="How often the model may call tools for one answer.",
    )

    schema: str | None = once(
        env=False,
        commands=("batch",),
        metavar="JSON|FILE",
        shell_complete=complete_files,
        help="Answer with JSON that matches this JSON schema.",
        section="Format",
    )
    json_object: bool = flag(env=False, commands=("batch",), help="Answer with a JSON object.")
    regex: str | None = once(
        env=False,
        commands=("batch",),
        metavar="REGEX",
        help="Answer with text that matches this.",
    )
    grammar: str | None = once(
        env=False,
        commands=("batch",),
        metavar="TEXT|FILE",
        shell_complete=complete_files,
        help="Answer with text of this grammar (Lark or GBNF).",
    )
    no_schema_prompt: bool = flag(
        env=False, commands=("batch",), help="Do not show the schema to the model."
    )

    json: bool = flag(env=False, help="Print one JSON object instead of text.", section="Output")
    stream_json: bool = flag(env=False, help="Print JSON lines while the answer is generated.")
    extract: bool = flag("-x", env=False, help="Print only the answer's code blocks.")
    raw: bool = flag(help="Print the model's text as is: no Markdown, reasoning included.")
    color: str = option(
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="always renders and colors even into a pipe.",
    )
    theme: str = option(
        type=click.Choice(THEMES),
        default="auto",
        help="Colors; auto asks the terminal for its background.",
    )
    colors: str | None = option(
        type=Colors(), help="Colors of parts, as question=bold blue,code=red."
    )
    accessible: bool = flag(help="For screen readers: no redrawing, speaker labels.")
    announce: str = option(
        type=click.Choice(["auto", "off"]),
        default="auto",
        help="Title, prompt marks, a bell after long answers, if the terminal takes them.",
    )
    editing_mode: str = option(
        type=click.Choice(["emacs", "vi"]), default="emacs", help="Keys of the input line."
    )
    stats: bool = flag(help="Print speed and token counts on stderr.")
    quiet: bool = flag("-q", commands=_ENGINES, help="No banner, no progress.")
    debug: bool = flag(help="Print tracebacks; with -p also the time of each phase of the start.")

    draft: str | None = option(
        metavar="MODEL",
        engine="draft",
        commands=("serve",),
        shell_complete=complete_models,
        help="Small model with the same vocabulary, or heads, that propose tokens.",
        section="Machine",
    )
    ctx_size: int | None = number(
        "Context in tokens; default: the model's, if it fits.",
        "num_ctx",
        limits=_AT_LEAST_1,
        engine="ctx_size_tokens",
        commands=_ENGINES,
    )
    device: str = option(
        commands=_MEASURED, default="auto", engine="device", help="auto, cpu, cuda or cuda:N."
    )
    tp: int | Literal["auto"] = option(
        commands=_MEASURED,
        type=NumberOrAuto(1, MAX_RANKS),
        default=1,
        engine="tp",
        help="Tensor parallelism over N GPUs; auto: as few as the model needs.",
    )
    pp: int = option(
        commands=_MEASURED,
        type=Whole(1, MAX_RANKS),
        default=1,
        metavar="N",
        engine="pp",
        help="Pipeline parallelism: N stages of --tp GPUs each, for GPUs with slow links.",
    )
    gpu_memory: int | None = option(
        commands=_MEASURED,
        type=Size(),
        engine="gpu_memory_bytes",
        help="Maximum GPU memory; default: what is free.",
    )
    cpu_experts: int | Literal["auto"] = option(
        commands=_MEASURED,
        type=NumberOrAuto(0, _MAX_LAYERS),
        default="auto",
        engine="cpu_experts",
        help="Layers whose experts are in main memory; auto: as few as the GPU requires.",
    )
    dtype: str | None = option(
        commands=_MEASURED,
        type=click.Choice(["bfloat16", "float16", "float32"]),
        engine="dtype",
        help="Compute type; default: the type of the weights.",
    )
    kv_dtype: str = option(
        commands=_MEASURED,
        type=click.Choice(["auto", "int8", "fp8", "int5"]),
        default="auto",
        engine="kv_dtype",
        help="KV cache type: 8 bits allow twice the context, int5 nearly three times.",
    )
    cache_max_bytes: int | None = option(
        type=Size(),
        engine="cache_max_bytes",
        commands=("serve",),
        help="Maximum size of the KV cache on disk; 0: none; default: 8GiB or 5 % of the disk,"
        " whichever is less.",
    )
    swap_size: int = option(
        type=Size(),
        default=0,
        engine="swap_bytes",
        commands=("serve",),
        help="Main memory for KV blocks that a GPU has no room for; default: 0.",
    )
    threads: int | None = number(
        "CPU threads.",
        "num_thread",
        limits=Range(f"between 1 and {_MAX_THREADS}", 1, _MAX_THREADS),
        engine="num_threads",
        commands=_MEASURED,
    )
    dummy: str | None = option(
        commands=_MEASURED,
        env=False,
        metavar="NAME|CONFIG.JSON",
        engine="dummy",
        shell_complete=complete_shapes,
        help="Random weights in this shape; only the tokenizer of a model is used.",
    )
    connect: str | None = option(
        metavar="HOST:PORT|PATH|URL",
        commands=_COMMANDS,
        help="Use a running engine, or a model of serve --openai; see swiftchat help hosts.",
    )
    token_file: str | None = option(
        type=UserPath(), commands=_COMMANDS, help="File with the token of that engine."
    )
    keep_alive: float | None = option(
        type=Duration(),
        commands=_ENGINES,
        help="Leave the engine running until it is not used for this time: 90s, 10m, 2h.",
    )
    no_attach: bool = flag(
        commands=_COMMANDS, help="Load the model even if a running engine has it."
    )
    offline: bool = flag(commands=_ENGINES, help="Never use the network.")
