"""Tokens declared in the files beside a vocabulary, with the ids that transformers gives them."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.huggingface.checks import MAX_IDS

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_CONFIG, _MAP, _IDS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_MAX_TOKEN_CHARACTERS = 1 << 12
MAX_ADDED_TOKENS = 1 << 14
_EXTRA, _OLDER_EXTRA = "extra_special_tokens", "additional_special_tokens"
_NO_ID, _TEXT = -1, -2  # of tokens that have not been numbered: objects, texts
_FLAGS = ("lstrip", "rstrip", "single_word", "special")


@dataclass(frozen=True)
class DeclaredTokens:
    """The tokens that `tokenizer_config.json` and the files beside it declare.

    `by_id` are those with an id in `added_tokens_decoder`, or else in `added_tokens.json` and
    `tokenizer.json`. `named` maps roles (`bos_token`, `image_token`, …) to tokens, the standard
    roles first. `extra` are the other control tokens. `unmarked` are the texts of
    `added_tokens.json`, which does not say what its tokens are.
    """

    by_id: Mapping[int, AddedToken]
    named: Mapping[str, AddedToken]
    extra: tuple[AddedToken, ...]
    unmarked: frozenset[str] = frozenset()

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        special_tokens_map: Mapping[str, Any],
        added_tokens: Mapping[str, Any],
        own: Iterable[AddedToken] = (),
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> "DeclaredTokens":
        """Read the parsed files of these names.

        `own` are the tokens that `tokenizer.json` adds, with the ids in that file; `defaults` are
        named tokens of the class. As in transformers, `added_tokens_decoder` makes the two older
        files ineffective; without it `special_tokens_map.json` prevails. Raises `BadModelFile`
        naming the wrong field.
        """
        has_decoder = "added_tokens_decoder" in config
        named, extra = _control_tokens(defaults, config, {} if has_decoder else special_tokens_map)
        names = {token.content for token in named.values()}
        unmarked: frozenset[str] = frozenset()
        if has_decoder:
            by_id = _decoder(config, names)
        else:
            roles = (token for role, token in named.items() if role in _ROLES)
            by_id = _legacy(added_tokens, {token.content for token in (*roles, *extra)})
            unmarked = frozenset(token.content for token in by_id.values())
            by_id |= {token.id: token for token in own}
            by_id |= {
                token_id: replace(token, special=True)
                for token_id, token in by_id.items()
                if token.content in names
            }
        written = {token.content: token for token in by_id.values()}
        named = {
            role: replace(written.get(token.content, token), special=True)
            for role, token in named.items()
        }
        return cls(by_id, named, extra, unmarked)

    @property
    def texts(self) -> set[str]:
        """The texts of all declared tokens."""
        return {
            token.content for token in (*self.by_id.values(), *self.named.values(), *self.extra)
        }

    def added_to(
        self,
        tokens: Iterable[AddedToken],
        vocab: Mapping[str, int],
        ordinary: Container[str] = (),
    ) -> tuple[AddedToken, ...]:
        """Return `tokens`, which the vocabulary's own file adds, and the declared ones, numbered.

        A declared token that is neither in `vocab` nor in `tokens` gets the next id, whatever id
        the file gives it.

        A token is a control token if a file marks it. BOS and EOS are, even if it denies that, and
        so are the tokens of `added_tokens.json`, which marks none, except runs of blanks (CodeGen).
        A token without a mark that ordinary text becomes, because it is a single symbol or in
        `ordinary`, is none: text must not lose it.
        """
        by_id = [self.by_id[token_id] for token_id in sorted(self.by_id)]
        first = (*tokens, *by_id)
        known = {token.content for token in first}
        marked = {token.content for token in first if token.special}
        likely = {self.named[role].content for role in _ROLES[:2] if role in self.named}
        likely |= {content for content in self.unmarked if content.strip()}
        # A text and an object with flags are different: the later one changes the flags.
        more = dict.fromkeys((*self.named.values(), *self.extra))
        found = numbered((*first, *(t for t in more if t.content not in known)), vocab)
        listed = {token.content for token in more}

        def is_special(token: AddedToken) -> bool:
            content = token.content
            if len(content) == 1 or content in ordinary:
                return content in marked and content not in listed
            return token.special or content in likely

        return tuple(replace(token, special=is_special(token)) for token in found)


NONE_DECLARED = DeclaredTokens({}, {}, ())


def numbered(tokens: Iterable[AddedToken], vocab: Mapping[str, int]) -> tuple[AddedToken, ...]:
    """Return the tokens as `tokenizers` adds them to `vocab` one after the other.

    A token has its id in `vocab`, or the next one after the vocabulary and the tokens before it.
    (In a vocabulary with gaps that may be the id of another token, which is left out here.) One
    that is added again changes the flags, but stays a control token.
    """
    found: dict[str, AddedToken] = {}
    next_id = len(vocab)
    taken: set[int] | None = None
    for token in tokens:
        if not token.content:
            continue
        before = found.get(token.content)
        token_id = vocab.get(token.content) if before is None else before.id
        if token_id is None:
            taken = set(vocab.values()) if taken is None else taken
            while next_id in taken:
                next_id += 1
            token_id = next_id
        special = token.special or (before is not None and before.special)
        found[token.content] = replace(token, id=token_id, special=special)
        next_id = max(next_id, token_id + 1)
    return tuple(found.values())


def added_token(entry: Mapping[str, Any], file: str, field: str) -> AddedToken:
    """Read the added token at `field` of `file`, without its id; raises `BadModelFile`."""
    content = entry.get("content")
    if not isinstance(content, str) or len(content) > _MAX_TOKEN_CHARACTERS:
        raise BadModelFile(f"{file}: {field}.content is not a string, or too long")
    flags = {name: _flag(entry, name, file, field) or False for name in _FLAGS}
    normalized = _flag(entry, "normalized", file, field)
    if normalized is None:
        normalized = not flags["special"]
    return AddedToken(_NO_ID, content, normalized=normalized, **flags)


def _flag(entry: Mapping[str, Any], name: str, file: str, field: str) -> bool | None:
    value = entry.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadModelFile(f"{file}: {field}.{name} is not true or false")
    return value


def _token(value: object, file: str, field: str) -> AddedToken:
    """Read a control token, written as a text or as an object."""
    if isinstance(value, str):
        token = added_token({"content": value, "special": True}, file, field)
        return replace(token, id=_TEXT)
    if not isinstance(value, Mapping):
        raise BadModelFile(f"{file}: {field} is neither a string nor an added token")
    return added_token({**value, "special": True}, file, field)


def _control_tokens(
    defaults: Mapping[str, str], config: Mapping[str, Any], special_tokens_map: Mapping[str, Any]
) -> tuple[dict[str, AddedToken], tuple[AddedToken, ...]]:
    """Return the named and the other control tokens, in the order in which transformers adds them.

    `extra_special_tokens` are names and tokens, or a list like `additional_special_tokens`, its
    older name. A list in `special_tokens_map` continues that in `config`.
    """
    fields = {**defaults, **config}
    if not fields.get(_EXTRA) and _OLDER_EXTRA in fields:
        fields[_EXTRA] = fields.pop(_OLDER_EXTRA)
    own = {
        role: fields.pop(role)
        for role, value in config.items()
        if _is_own_role(role) and isinstance(value, str)
    }
    own |= _popped_names(fields, _CONFIG)
    listed = [*_list(fields, _CONFIG), *_list(special_tokens_map, _MAP)]
    fields |= special_tokens_map
    if isinstance(special_tokens_map.get(_EXTRA), list):
        fields[_EXTRA] = listed
    own |= _popped_names(fields, _MAP)
    if _EXTRA not in fields:
        fields[_EXTRA] = fields.get(_OLDER_EXTRA)
    own = {role: value for role, value in fields.items() if _is_own_role(role, value)} | own
    named = {role: fields[role] for role in _ROLES if fields.get(role) is not None} | own
    file = f"{_CONFIG} or {_MAP}" if special_tokens_map else _CONFIG
    extra = _list(fields, file)
    return (
        {role: _token(value, file, role) for role, value in named.items()},
        tuple(_token(value, file, f"{_EXTRA}[{n}]") for n, value in enumerate(extra)),
    )


def _is_own_role(role: str, value: object = "") -> bool:
    """Return whether a field names a token in a role of the model's own, and is not an option."""
    is_token = isinstance(value, str) or (isinstance(value, Mapping) and "content" in value)
    return role.endswith("_token") and role not in _ROLES and is_token


def _popped_names(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """Take an object of names and tokens out of `fields`."""
    if not isinstance(fields.get(_EXTRA), Mapping):
        return {}
    names: Mapping[str, Any] = fields.pop(_EXTRA)
    if len(names) > MAX_ADDED_TOKENS:
        raise BadModelFile(f"{file}: {_EXTRA} is too long")
    return dict(names)


def _list(fields: Mapping[str, Any], file: str) -> list[Any]:
    values = fields.get(_EXTRA) or []
    if isinstance(values, Mapping):
        return []
    if not isinstance(values, list) or len(values) > MAX_ADDED_TOKENS:
        raise BadModelFile(f"{file}: {_EXTRA} is not a list of tokens, or too long")
    return values


def _decoder(config: Mapping[str, Any], names: Container[str]) -> dict[int, AddedToken]:
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or len(decoder) > MAX_ADDED_TOKENS:
        raise BadModelFile(f"{_CONFIG}: added_tokens_decoder is not an object, or too long")
    found = {}
    for key, entry in decoder.items():
        is_id = key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < MAX_IDS
        if not is_id or not isinstance(entry, dict):
            raise BadModelFile(f"{_CONFIG}: added_tokens_decoder has an invalid entry {key[:40]!r}")
        content = entry.get("content")
        if isinstance(content, str) and content in names:
            entry = {**entry, "special": True}
        found[int(key)] = added_token(entry, _CONFIG, f"added_tokens_decoder.{key}")
    return found


def _legacy(ids: Mapping[str, Any], control: Container[str]) -> dict[int, AddedToken]:
    """Return the tokens of `added_tokens.json`.

    Those with no other declaration are matched after normalization.
    """
    found = {}
    for content, token_id in ids.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_IDS:
            raise BadModelFile(f"{_IDS}: {content[:40]!r} has no valid id")
        entry = {"content": content, "special": content in control}
        found[token_id] = added_token(entry, _IDS, content[:40])
    return found
