"""The options about what a model is asked: its inputs, their template, and the conversation."""

from dataclasses import dataclass

import click

from swiftchat.chat.options.completion import (
    complete_files,
    complete_models,
    complete_roles,
    complete_sessions,
    complete_templates,
    complete_variables,
)
from swiftchat.chat.options.option_types import (
    ModelOption,
    OptionalPath,
    TemplateArgument,
    TextsOption,
    UserPath,
    Whole,
)
from swiftchat.chat.options.spec import choice, flag, many, number, once, option
from swiftchat.engine.api.params import (
    MAX_COUNT,
    OVERFLOWS,
    POOLINGS,
)


@dataclass(frozen=True)
class InputOptions:
    """The first sections of the table of options: "Input" and "Conversations"."""

    compared: tuple[str, ...] = ()  # models that answer after `model`
    opening: str = ""  # the prompt of the role
    parallel: int | None = None  # answers at a time, of `batch`

    model: str | None = option(
        "-m",
        kind=ModelOption,
        is_saved=True,
        help="Name, directory or .gguf file; twice: both answer.",
        shell_complete=complete_models,
        section="Input",
    )
    lora: tuple[str, ...] = many(
        kind=TextsOption,
        commands=("batch", "serve"),
        metavar="DIR[=SCALE]",
        shell_complete=complete_files,
        help="Use a LoRA adapter (repeatable); see swiftchat help adapters.",
    )
    soft_prompt: str | None = once(
        type=UserPath(),
        metavar="DIR",
        shell_complete=complete_files,
        help="Put a soft prompt before the prompt: prefix, prompt or p-tuning.",
    )
    prompt: str | None = once("-p", env=False, help="Answer this prompt and exit; - reads stdin.")
    interactive: bool = flag("-i", env=False, help="Continue interactively after -p.")
    file: tuple[str, ...] = many(
        "-f",
        env=False,
        metavar="FILE|URL",
        shell_complete=complete_files,
        help="Put a file or page before the prompt (repeatable).",
    )
    knowledge: str | None = once(
        type=OptionalPath(),
        metavar="DIR|none",
        is_saved=True,
        shell_complete=complete_files,
        help="Put passages of a folder's texts before each question.",
    )
    knowledge_tokens: int = option(
        type=Whole(64, MAX_COUNT),
        default=1500,
        metavar="N",
        help="At most so many tokens of them, and a quarter of the context.",
    )
    knowledge_model: str | None = once(
        metavar="MODEL",
        is_saved=True,
        shell_complete=complete_models,
        help="Find them by embeddings of this model, too, not by words alone.",
    )
    knowledge_pooling: str | None = option(
        type=click.Choice(POOLINGS),
        is_saved=True,
        help="Mean (default), sum, or the last one, of its hidden states.",
    )
    system: str | None = once("-s", commands=("batch",), help="System prompt.")
    system_file: str | None = once(
        type=UserPath(), commands=("batch",), help="Read the system prompt from a file."
    )
    role: str | None = once(
        env=False,
        metavar="NAME",
        shell_complete=complete_roles,
        help="Prompt and options of a role; swiftchat help roles.",
    )
    variables: tuple[str, ...] = many(
        "-v",
        "--var",
        env=False,
        metavar="NAME=VALUE",
        shell_complete=complete_variables,
        help="Value of a variable of the role (repeatable).",
    )
    no_template: bool = flag(
        env=False, commands=("batch",), help="Complete the prompt as plain text."
    )
    template: str | None = once(
        metavar="NAME|FILE",
        is_saved=True,
        commands=("batch", "serve"),
        shell_complete=complete_templates,
        help="Chat template: one of the model's, a built-in one (chatml, llama-2 …), a file.",
    )
    think: str = option(
        type=click.Choice(["auto", "on", "off", "low", "medium", "high", "max"]),
        default="auto",
        commands=("batch", "do", "serve"),
        help="Let the model think first, or how long: what its template can set.",
    )
    reasoning_budget: int | None = number(
        "End the model's thinking after N tokens; 0: it does not think. -n counts the rest.",
        "thinking_budget",
        commands=("batch", "serve"),
    )
    reasoning_budget_message: str | None = once(
        metavar="TEXT",
        commands=("batch", "serve"),
        help="Write this at the end of thinking that --reasoning-budget ends.",
    )
    template_arg: tuple[str, ...] = many(
        kind=TextsOption,
        type=TemplateArgument(),
        metavar="KEY=VALUE",
        commands=("batch", "serve"),
        help="Variable of the chat template, as JSON or text (repeatable).",
    )

    continue_: bool = flag(
        "-c",
        "--continue",
        env=False,
        help="Continue the last chat; with -p also a one-shot.",
        section="Conversations",
    )
    session: str | None = once(
        env=False,
        metavar="ID|NAME",
        help="Continue this conversation.",
        shell_complete=complete_sessions,
    )
    no_save: bool = flag(help="Do not save this conversation.")
    overflow: str | None = choice(OVERFLOWS, "What happens when the context is full (error).")
    overflow_keep: int | None = number(
        "First tokens that a sliding context keeps; default: the system prompt.",
        "num_keep",
        "n_keep",
    )
