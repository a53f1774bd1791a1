"""The context of a prompt: what is left out of it, and what stays while its answer slides."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from swiftchat.chat.history.conversation import later_turns
from swiftchat.engine.api.params import DEFAULT_OVERFLOW_KEEP, SamplingParams
from swiftchat.errors import ContextOverflow, UsageError

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt

Ids = TypeVar("Ids", bound=Sized)
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Fitted(Generic[Ids]):
    """A prompt that fits, its messages, and how much of the oldest ones was left out of it."""

    prompt: Ids
    messages: Messages
    num_messages: int = 0
    num_tokens: int = 0


def fit_context(
    versions: Iterable[tuple[int, Messages]],
    encode: Callable[[Messages], Ids],
    ctx_size_tokens: int,
    overflow: str,
    room_tokens: int = 1,
) -> Fitted[Ids]:
    """Return the first version of the messages that leaves `room_tokens` for the answer.

    `versions` begin with all messages; each is preceded by the number of those that it leaves out.
    With overflow "error" no message is left out. Raises `ContextOverflow` if no version fits with
    one token of an answer.
    """
    remaining = iter(versions)
    _, messages = next(remaining)
    whole = prompt = encode(messages)
    num_messages = 0
    while overflow != "error" and len(prompt) + room_tokens > ctx_size_tokens:
        shorter = next(remaining, None)
        if shorter is None:
            break
        num_messages, messages = shorter
        prompt = encode(messages)
    if len(prompt) < ctx_size_tokens:
        return Fitted(prompt, messages, num_messages, max(0, len(whole) - len(prompt)))
    raise ContextOverflow(
        f"the conversation has {len(whole)} tokens, the context {ctx_size_tokens}, "
        "and an answer needs at least one",
        "shorten it, start a new one, use a larger --ctx-size, or --overflow drop-oldest",
    )


def check_fits(prompt: Sized, ctx_size_tokens: int) -> None:
    """Raise the error for a prompt that the engine would refuse as empty or too long."""
    if not len(prompt):
        raise UsageError("the prompt is empty", "type a message")
    if len(prompt) >= ctx_size_tokens:
        raise ContextOverflow(
            f"the prompt has {len(prompt)} tokens, the context only {ctx_size_tokens}"
        )


def fit_prompt(
    versions: Iterable[tuple[int, Messages]],
    encode: "Callable[[Messages], Prompt]",
    params: SamplingParams,
    ctx_size_tokens: int,
) -> "tuple[Fitted[Prompt], SamplingParams]":
    """Return the prompt that `params.overflow` allows, with room for an answer.

    Also return the parameters with the first tokens that stay if the context slides.
    """
    quarter = ctx_size_tokens // 4
    room = quarter
    if params.max_tokens is not None:
        room = min(params.max_tokens + (params.reasoning_budget or 0), quarter)
    fitted = fit_context(versions, encode, ctx_size_tokens, params.overflow, room)
    if params.overflow != "sliding" or params.overflow_keep is not None:
        return fitted, params
    num_kept = first_tokens(fitted, encode, ctx_size_tokens)
    return fitted, replace(params, overflow_keep=num_kept)


def message_versions(messages: Messages) -> Iterable[tuple[int, Messages]]:
    """Yield all messages, then with fewer and fewer turns, but always the system prompt."""
    start = next((i for i, one in enumerate(messages) if one["role"] != "system"), 0)
    system, rest = messages[:start], messages[start:]
    yield 0, messages
    for later in later_turns([one["role"] for one in rest]):
        yield later, [*system, *rest[later:]]


def first_tokens(
    fitted: "Fitted[Prompt]", encode: "Callable[[Messages], Prompt]", ctx_size_tokens: int
) -> int:
    """Return how many first tokens of a prompt a sliding context keeps by default.

    These are the system prompt and what the template writes around it, but not more than half of
    the context, and at least those that models attend to in any case (attention sinks).
    """
    system = [one for one in fitted.messages[:1] if one["role"] == "system"]
    # Two other questions differ in their first token.
    others = [encode([*system, {"role": "user", "content": text}]).ids for text in ("1", "a")]
    num_common = 0
    for tokens in zip(fitted.prompt.ids, *others, strict=False):
        if len(set(tokens)) > 1:
            break
        num_common += 1
    return min(max(num_common, DEFAULT_OVERFLOW_KEEP), ctx_size_tokens // 2)
