"""The section `Answer` of `--help`: the length of an answer and how its tokens are chosen."""

import click

from swiftchat.chat.options.option_types import Whole, option, parameter, texts
from swiftchat.engine.api.params import MAX_LOGPROBS, MAX_SAMPLES

ANSWER: tuple[click.Option, ...] = (
    parameter("max_tokens", "-n"),
    parameter("min_tokens"),
    texts("stop"),
    texts("ban"),
    texts("logit_bias"),
    parameter("temperature"),
    parameter("top_k"),
    parameter("typical_p"),
    parameter("min_p"),
    parameter("top_p"),
    parameter("top_p_decay"),
    parameter("top_p_min"),
    texts("top_p_reset"),
    parameter("repeat_penalty"),
    parameter("presence_penalty"),
    parameter("frequency_penalty"),
    parameter("repeat_last_n"),
    parameter("dry_multiplier"),
    parameter("dry_base"),
    parameter("dry_allowed_length"),
    texts("dry_breaker"),
    parameter("no_repeat_ngram"),
    parameter("seed"),
    option(
        "--samples",
        env=False,
        type=Whole(1, MAX_SAMPLES),
        default=1,
        metavar="N",
        help="With -p and batch: N answers at the same time, with consecutive seeds.",
    ),
    parameter("beams"),
    parameter("length_penalty"),
    parameter("early_stopping"),
    parameter("diversity_rate"),
    parameter("speculate"),
    parameter("speculate_tokens"),
    parameter("logprobs", env=False, is_flag=False, flag_value=5, metavar="[N]"),
    option(
        "--prompt-logprobs",
        env=False,
        type=Whole(0, MAX_LOGPROBS),
        is_flag=False,
        flag_value=5,
        metavar="[N]",
        help="Logprobs of the tokens of the prompt, in --json.",
    ),
)
