"""The tokens that a text is encoded between: the `post_processor` of `tokenizer.json`, or flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.huggingface.checks import MAX_IDS, parts, reject, reject_kind, short
from swiftchat.tokenizer.huggingface.declared_tokens import DeclaredTokens

Ids = tuple[int, ...]
_MAX_END_TOKENS = 64


def end_ids(spec: Any) -> tuple[Ids, Ids]:
    """Return the ids that `post_processor` puts before and after one text.

    Raises `BadModelFile` naming the wrong field.
    """
    before: Ids = ()
    after: Ids = ()
    for field, part in parts(spec, "post_processor", "processors"):
        kind = part.get("type")
        if kind == "TemplateProcessing":
            first, last = _template(part, field)
        elif kind in ("BertProcessing", "RobertaProcessing"):
            first, last = (_pair(part, "cls", field),), (_pair(part, "sep", field),)
        elif kind == "ByteLevel":  # changes offsets only
            continue
        else:
            reject_kind(f"{field}.type", kind)
        before, after = first + before, after + last
    if len(before) + len(after) > _MAX_END_TOKENS:
        reject("post_processor", f"adds more than {_MAX_END_TOKENS} tokens")
    return before, after


def with_configured_ends(
    pipeline: TokenizerPipeline, config: Mapping[str, Any], declared: DeclaredTokens
) -> TokenizerPipeline:
    """Return the pipeline of a vocabulary without a post-processor.

    `add_bos_token` and `add_eos_token` in `config` add the tokens that are declared as such.
    """
    ids = dict(pipeline.vocab) | {token.content: token.id for token in pipeline.added_tokens}

    def added(role: str) -> Ids:
        if config.get(f"add_{role}") is not True or role not in declared.named:
            return ()
        return (ids[declared.named[role].content],)

    return replace(pipeline, before=added("bos_token"), after=added("eos_token"))


def _template(part: Mapping[str, Any], field: str) -> tuple[Ids, Ids]:
    pieces, tokens = part.get("single"), part.get("special_tokens") or {}
    if not isinstance(pieces, list) or not isinstance(tokens, dict):
        reject(field, "has no list `single`, or `special_tokens` is not an object")
    sides: list[Ids] = [()]
    for number, piece in enumerate(pieces):
        place = f"{field}.single[{number}]"
        match piece:
            case {"Sequence": {"id": "A"}}:
                sides.append(())
            case {"SpecialToken": {"id": str() as name}} if isinstance(tokens.get(name), dict):
                sides[-1] += _ids(tokens[name].get("ids"), f"{field}.special_tokens.{name[:40]}")
            case _:
                reject(place, "is neither the text A nor one of special_tokens")
    if len(sides) != 2:
        reject(f"{field}.single", "does not have the text A once")
    return sides[0], sides[1]


def _ids(values: Any, field: str) -> Ids:
    if not isinstance(values, list) or len(values) > _MAX_END_TOKENS:
        reject(f"{field}.ids", "is not a list of ids, or too long")
    return tuple(_id(value, f"{field}.ids") for value in values)


def _pair(part: Mapping[str, Any], name: str, field: str) -> int:
    value = part.get(name)
    if not isinstance(value, list) or len(value) != 2:
        reject(f"{field}.{name}", "is not a pair of a token and its id")
    return _id(value[1], f"{field}.{name}")


def _id(value: Any, field: str) -> int:
    if type(value) is not int or not 0 <= value < MAX_IDS:
        reject(field, f"is {short(value)}, not an id")
    return value
