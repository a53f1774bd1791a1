"""Text to ids and back, by the files of a model directory."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.tokenizer.added_tokens import AddedTokens
from swiftchat.tokenizer.bpe import BytePairEncoding
from swiftchat.tokenizer.byte_level import to_bytes, to_symbols
from swiftchat.tokenizer.json_form import JsonForm
from swiftchat.tokenizer.pretokenizer import cut
from swiftchat.tokenizer.stream import TokenStream
from swiftchat.tokenizer.word_cache import WordCache

if TYPE_CHECKING:
    from swiftchat.tokenizer.template import ChatTemplate

__all__ = ["Tokenizer"]

_LARGEST_FILE = 1 << 28
# What Python can hold in a string, for undecodable bytes, and UTF-8 cannot.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_NAMED_TOKENS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip

Ranges = Sequence[tuple[int, int]]


class Tokenizer:
    """A model's vocabulary; ids are those of the `tokenizers` library for the same file.

    `special_tokens` gives the ids of the control tokens, `named_tokens` the texts of those
    that have a part to play (`bos_token`, `eos_token`, …), `bos_id` and `eos_ids` the ids of
    two of them, `template` the source of the chat template, `vocab_size` the highest id + 1.
    """

    def __init__(
        self,
        form: JsonForm,
        named_tokens: Mapping[str, str],
        template: str | None,
        more_eos_ids: Iterable[int] = (),
    ) -> None:
        """Build from a checked `tokenizer.json`; `load` and `from_json` are the usual ways."""
        self.template = template
        self.named_tokens = dict(named_tokens)
        self.special_tokens = {t.content: t.id for t in form.added_tokens if t.special}
        ids = form.vocab | {token.content: token.id for token in form.added_tokens}
        self.vocab_size = max(ids.values()) + 1
        self.bos_id = ids.get(named_tokens.get("bos_token", ""))
        eos_id = ids.get(named_tokens.get("eos_token", ""))
        eos_ids = [*([] if eos_id is None else [eos_id]), *more_eos_ids]
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self._chat_template: ChatTemplate | None = None
        self._special_ids = frozenset(self.special_tokens.values())
        self._tokens = {token_id: token for token, token_id in ids.items()}
        self._bytes: dict[int, bytes] = {}
        self._is_nfc = form.is_nfc
        self._steps = form.steps
        self._byte_level = form.byte_level
        self._bpe = self._build_bpe(form)
        self._cache = WordCache(self._encode_word)
        tokens = [token for token in form.added_tokens if token.content]
        self._raw = AddedTokens((t for t in tokens if not t.normalized), str)
        self._normalized = AddedTokens((t for t in tokens if t.normalized), self._normalize)
        # Where they are found in their normal form they are written in it, too.
        self._tokens |= {t.id: self._normalize(t.content) for t in tokens if t.normalized}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load from a model directory, or a `tokenizer.json` with its neighbours.

        Raises `ModelNotFound` when there is no such file, `BadModelFile` when one is broken.
        """
        directory = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise ModelNotFound(f"{file.name} is missing in {directory}")
        config = _optional_object(directory / "tokenizer_config.json")
        template = directory / "chat_template.jinja"
        if template.is_file():
            config["chat_template"] = _read(template)
        generation = _optional_object(directory / "generation_config.json")
        return cls.from_json(_parse(file), config, generation)

    @classmethod
    def from_json(
        cls,
        spec: Any,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
    ) -> Self:
        """Build from the parsed `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`.

        Raises `BadModelFile` naming the field that is wrong.
        """  # noqa: E501
        config = config or {}
        named = {name: text for name in _NAMED_TOKENS if (text := _token_text(config, name))}
        more_eos = (generation_config or {}).get("eos_token_id")
        more_eos_ids = more_eos if isinstance(more_eos, list) else [more_eos]
        eos_ids = [token_id for token_id in more_eos_ids if type(token_id) is int]
        return cls(JsonForm.read(spec), named, _template_source(config), eos_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without BOS and never with a control token's id."""
        return self.encode_rendered(text, [(0, len(text))])

    def encode_rendered(self, text: str, content: Ranges) -> list[int]:
        """Return the ids of a rendered template.

        Control tokens are recognised outside the ranges `content` only, which are ascending
        and come from somebody else; elsewhere the text is encoded as one.
        """
        text = _LONE_SURROGATES.sub("\ufffd", text)
        ids: list[int] = []
        for token_id, start, end in self._raw.cut(text, content):
            if token_id is not None:
                ids.append(token_id)
                continue
            part = self._normalize(text[start:end])
            # Normalising moves places; a part with any content in it then counts as content.
            if part == text[start:end]:
                ranges = _within(content, start, end)
            else:
                ranges = [(0, len(part))] if _within(content, start, end) else []
            ids += self._encode_part(part, ranges)
        return ids

    def _encode_part(self, text: str, content: Ranges) -> Iterator[int]:
        cache = self._cache
        for token_id, start, end in self._normalized.cut(text, content):
            if token_id is not None:
                yield token_id
                continue
            words = cut(text[start:end], self._steps)
            yield from chain.from_iterable(map(cache.__getitem__, words))

    def _encode_word(self, word: str) -> list[int]:
        return self._bpe.encode(to_symbols(word) if self._byte_level else word)

    def _normalize(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self._is_nfc else text

    def _build_bpe(self, form: JsonForm) -> BytePairEncoding:
        """BPE over what ordinary text may become: no control token, by whatever merges."""
        vocab, ranks = form.vocab, form.ranks
        if not self.special_tokens.keys().isdisjoint(vocab):
            special = self.special_tokens.keys() - {form.unknown}
            vocab = {token: i for token, i in vocab.items() if token not in special}
            ranks = {
                pair: rank for pair, rank in ranks.items()
                if special.isdisjoint((*pair, pair[0] + pair[1]))
            }  # fmt: skip
        return BytePairEncoding(
            vocab,
            ranks,
            unknown=form.unknown,
            fuse_unknown=form.fuse_unknown,
            ignore_merges=form.ignore_merges,
        )

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        token_bytes = self._text_bytes if skip_special else self._token_bytes
        return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")

    def stream(self, skip_special: bool = True) -> TokenStream:
        """Return a decoder for ids that come one at a time."""
        return TokenStream(self._text_bytes if skip_special else self._token_bytes)

    def _token_bytes(self, token_id: int) -> bytes:
        found = self._bytes.get(token_id)
        if found is None:
            if token_id not in self._tokens:
                return b""
            self._bytes[token_id] = found = to_bytes(self._tokens[token_id])
        return found

    def _text_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._special_ids else self._token_bytes(token_id)

    def apply_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Return the ids of a conversation as the model's chat template writes it.

        Equal to what `transformers` gives, except that a control token which somebody wrote
        into a message is ordinary text. Each message has a `role` and a `content`; `variables`
        are passed on to the template. Raises `BadModelFile` when there is no template or it
        is broken, hostile or refuses these messages.
        """
        # Here, so that programs which use no template do not load Jinja.
        from swiftchat.tokenizer.provenance import render
        from swiftchat.tokenizer.template import ChatTemplate

        if self.template is None:
            raise BadModelFile(
                "the model has no chat template", "use --no-template to complete plain text"
            )
        if self._chat_template is None:
            self._chat_template = ChatTemplate(self.template)
        values = {
            **self.named_tokens,
            **variables,
            "add_generation_prompt": add_generation_prompt,
        }
        text, content = render(self._chat_template, messages, values, self.special_tokens)
        return self.encode_rendered(text, content)


def _within(ranges: Ranges, start: int, end: int) -> list[tuple[int, int]]:
    """The parts of `ranges` inside `start : end`, counted from `start`."""
    return [
        (max(low, start) - start, min(high, end) - start)
        for low, high in ranges
        if low < end and high > start
    ]


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise BadModelFile(f"{file.name} is absurdly large")
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadModelFile(f"{file.name} cannot be read: {error}") from None


def _parse(file: Path) -> Any:
    try:
        return json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{file.name} is no JSON: {error}") from None


def _optional_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    value = _parse(file)
    if not isinstance(value, dict):
        raise BadModelFile(f"{file.name} is no JSON object")
    return value


def _token_text(config: Mapping[str, Any], name: str) -> str | None:
    """The text of a named token, which is written as a string or as an added token."""
    value = config.get(name)
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise BadModelFile(f"tokenizer_config.json: {name} is no string")
    return value


def _template_source(config: Mapping[str, Any]) -> str | None:
    """The chat template; of several named ones, the one called `default`."""
    value = config.get("chat_template")
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict)]
        value = next((e.get("template") for e in named if e.get("name") == "default"), None)
    if value is not None and not isinstance(value, str):
        raise BadModelFile("tokenizer_config.json: chat_template is no string")
    return value
