"""`swiftchat score`: the logprobs and the perplexity of a text."""

import json as json_module
import math
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import options_of
from swiftchat.chat.options.completion import complete_models
from swiftchat.chat.options.option_types import UserPath, Whole
from swiftchat.engine.api.params import MAX_COUNT, MAX_LOGPROBS

if TYPE_CHECKING:
    from swiftchat.chat.model.chat_model import ChatModel
    from swiftchat.engine.api.score import Score

MODEL = click.Option(
    ["-m", "--model"],
    envvar="SWIFTCHAT_MODEL",
    shell_complete=complete_models,
    help="Name, OWNER/NAME, directory or .gguf file.",
)
SCHEMA = 1


@click.command(params=[MODEL, *options_of("score")])
@click.argument("file", type=UserPath())
@click.option(
    "--context",
    type=Whole(2, MAX_COUNT),
    metavar="N",
    help="Tokens that the model reads at a time; default: its context.",
)
@click.option(
    "--stride",
    type=Whole(1, MAX_COUNT),
    metavar="N",
    help="New tokens of each further context; default: half of it.",
)
@click.option(
    "--logprobs",
    type=Whole(0, MAX_LOGPROBS),
    is_flag=False,
    flag_value=0,
    metavar="[N]",
    help="In --json, each token's logprob, with N (0) alternatives.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def score(
    file: str,
    context: int | None,
    stride: int | None,
    logprobs: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the perplexity of FILE (- is stdin) for a model.

    Every token but the first is scored: nats is the sum of -log(probability), perplexity is
    exp(nats / tokens). The text is encoded like a user's input, without a chat template; a model
    that begins texts with a control token gets it.

    A text longer than the context is read in overlapping parts: each scores the next --stride
    tokens, with the tokens before them as context.
    """
    from swiftchat.chat.attachments.user_text import read_text
    from swiftchat.chat.model.chat_model import chat_model_for
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.precedence import check_connect
    from swiftchat.chat.terminal.status_line import StatusLine
    from swiftchat.engine.api.score import score as score_ids
    from swiftchat.errors import UsageError

    check_connect(click.get_current_context(), options)
    if logprobs is not None and not as_json:
        raise UsageError("--logprobs needs JSON", "add --json")
    text = read_text(file).told()
    config = ChatConfig(**options)
    config.check()
    status = StatusLine(may_erase=True, is_quiet=config.quiet)
    with chat_model_for(config) as chat_model:
        ids = chat_model.prompts.encode_plain(text).ids
        with status.waiting("loading the model"):
            chat_model.wait_ready()
        with status.waiting("scoring"):
            found = score_ids(
                chat_model.engine,
                ids,
                context=context,
                stride=stride,
                num_top=logprobs or 0,
                on_progress=lambda done: status.show("scoring", done, len(ids) - 1),
            )
        report = _report(chat_model, found, text)
        if logprobs is not None:
            from swiftchat.chat.render.logprobs import entries

            pairs = zip(ids[1:], found.logprobs, strict=True)
            report["logprobs"] = entries(pairs, chat_model.tokenizer)
    if as_json:
        print(json_module.dumps(report, ensure_ascii=False))
        return
    print(f"tokens         {report['tokens']}")
    print(f"nats           {found.nats:.4f}")
    print(f"perplexity     {found.perplexity:.4f}")
    print(f"bits per byte  {report['bits_per_byte']:.4f}")


def _report(chat_model: "ChatModel", found: "Score", text: str) -> dict[str, Any]:
    num_bytes = len(text.encode("utf-8", "replace"))
    perplexity = found.perplexity
    return {
        "schema": SCHEMA,
        "model": chat_model.name,
        "tokens": len(found.logprobs),
        "bytes": num_bytes,
        "nats": found.nats,
        "perplexity": perplexity if math.isfinite(perplexity) else None,
        "bits_per_byte": found.nats / math.log(2) / num_bytes,
    }
