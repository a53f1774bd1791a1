"""The tokenizer: text to ids and back, built from the files of a model directory."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.added_tokens import AddedTokens
from swiftchat.tokenizer.core.stream import TokenStream
from swiftchat.tokenizer.core.word_cache import WordCache
from swiftchat.tokenizer.definition import TokenizerDefinition
from swiftchat.tokenizer.huggingface.files import read_files
from swiftchat.tokenizer.prompt import Prompt, PromptSpan, split_at_control_tokens
from swiftchat.tokenizer.template.process import TemplateProcess

if TYPE_CHECKING:
    from swiftchat.tokenizer.template.messages import MessageForms

# A Python string can hold these (undecodable bytes); UTF-8 cannot.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
Ranges = Sequence[tuple[int, int]]


class Tokenizer:
    """A model's vocabulary; ids equal those of the reference library for the same file.

    The reference is `tokenizers` for `tokenizer.json`, `sentencepiece` for `tokenizer.model`,
    `tiktoken` for rank files, and the class of transformers for `vocab.json` with `merges.txt`.
    `kind` names the algorithm.

    `special_tokens` maps control tokens to ids, `named_tokens` maps roles (`bos_token`,
    `eos_token`, `image_token`, …) to token texts, `templates` maps names to sources of chat
    templates; `template` is the default one. `vocab_size` is the highest id + 1.
    """

    def __init__(
        self, definition: TokenizerDefinition, templates: TemplateProcess | None = None
    ) -> None:
        """Build from what was read; `load` is the usual way. `templates` renders chat templates."""
        pipeline, named_tokens = definition.pipeline, definition.named_tokens
        self.templates = dict(definition.templates)
        self.template = self.templates.get("default")
        self.named_tokens = dict(named_tokens)
        self.special_tokens = {t.content: t.id for t in pipeline.added_tokens if t.special}
        self.kind = pipeline.kind
        ids = dict(pipeline.vocab) | {token.content: token.id for token in pipeline.added_tokens}
        self.vocab_size = max(ids.values()) + 1
        self.bos_id = ids.get(named_tokens.get("bos_token", ""))
        eos_id = ids.get(named_tokens.get("eos_token", ""))
        eos_ids = dict.fromkeys([*([] if eos_id is None else [eos_id]), *definition.more_eos_ids])
        self.eos_ids = tuple(i for i in eos_ids if 0 <= i < self.vocab_size)
        self._message_forms: dict[str, MessageForms] = {}
        self._template_process = templates or TemplateProcess()
        self._special_ids = frozenset(self.special_tokens.values())
        self._tokens = {token_id: token for token, token_id in ids.items()}
        self._pipeline = pipeline
        self._before, self._after = pipeline.before, pipeline.after
        self._cache = WordCache(pipeline.encode_word)
        tokens = [token for token in pipeline.added_tokens if token.content]
        self._raw = AddedTokens((t for t in tokens if not t.normalized), str)
        self._normalized = AddedTokens((t for t in tokens if t.normalized), pipeline.normalize)
        # Tokens that are matched after normalization are also decoded in normalized form.
        self._tokens |= {t.id: pipeline.normalize(t.content) for t in tokens if t.normalized}

    @classmethod
    def load(cls, path: Path, templates: TemplateProcess | None = None) -> Self:
        """Load from a model directory, or from a vocabulary file and the files beside it.

        The first of these is used: `tokenizer.json`, `tekken.json`, `tokenizer.model`
        (SentencePiece, or Meta's rank file), `tiktoken.model`, `spiece.model`, `ice_text.model`,
        `vocab.json` with `merges.txt`, `*.tiktoken`.
        Raises `ModelNotFound` if there is none, `BadModelFile` if it is invalid or needs an
        unknown split pattern. `templates` may be a process that has been started already, so that
        the first prompt need not wait for it.
        """
        return cls.from_files(read_files(path), templates)

    @classmethod
    def from_files(
        cls, files: Mapping[str, bytes], templates: TemplateProcess | None = None
    ) -> Self:
        """Build from the contents of a model directory's files, by name.

        `swiftchat.weights.gguf.tokenizer.tokenizer_files` makes them from a GGUF file. Raises as
        `load` does.
        """
        return cls(TokenizerDefinition.from_files(files), templates)

    @classmethod
    def from_json(cls, spec: Any, *others: Mapping[str, Any] | None) -> Self:
        """Build from parsed files, see `TokenizerDefinition.from_json`."""
        return cls(TokenizerDefinition.from_json(spec, *others))

    @classmethod
    def from_sentencepiece(cls, data: bytes, *others: Mapping[str, Any] | None) -> Self:
        """Build from a `tokenizer.model`, see `TokenizerDefinition.from_sentencepiece`."""
        return cls(TokenizerDefinition.from_sentencepiece(data, *others))

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without BOS and never with a control token's id."""
        return self.encode_rendered(text, [(0, len(text))])

    def plain_prompt(self, text: str, *, is_whole: bool) -> Prompt:
        """Return `text` without a chat template, between the tokens that begin and end a text.

        A text that is not whole will be continued and gets no token at its end. The ids of a whole
        text equal those of `tokenizer(text)` in transformers.
        """
        parts = [(self._before, True), (self.encode(text), False)]
        if is_whole:
            parts.append((self._after, True))
        spans = (
            PromptSpan("" if is_control else text, tuple(ids), is_control)
            for ids, is_control in parts
            if ids
        )
        return Prompt(tuple(spans))

    def encode_rendered(self, text: str, content: Ranges) -> list[int]:
        """Return the ids of a rendered template.

        `content` are ascending ranges of untrusted text, in which no control token is recognized.
        """
        text = _LONE_SURROGATES.sub("\ufffd", text)
        ids: list[int] = []
        for token_id, start, end in self._raw.cut(text, content):
            ids += self._encode_cut(text, content, token_id, start, end)
        return ids

    def _encode_cut(
        self, text: str, content: Ranges, token_id: int | None, start: int, end: int
    ) -> list[int]:
        if token_id is not None:
            return [token_id]
        part = self._pipeline.normalize(text[start:end])
        ranges = _ranges_after_normalizing(_clip_ranges(content, start, end), text[start:end], part)
        num_first = self._pipeline.count_first(text[:end]) if start == 0 else 0
        return self._encode_part(part, ranges, num_first)

    def _encode_part(self, text: str, content: Ranges, num_first: int) -> list[int]:
        ids: list[int] = []
        look_up = self._cache.__getitem__
        for token_id, start, end in self._normalized.cut(text, content):
            if token_id is not None:
                ids.append(token_id)
                continue
            words = self._pipeline.words(text[start:end], max(num_first - start, 0))
            ids += chain.from_iterable(map(look_up, words))
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of `ids`; invalid UTF-8 becomes U+FFFD, an unknown id the empty text."""
        return b"".join(map(self._token_decoder(skip_special), ids)).decode("utf-8", "replace")

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """Return the bytes of each id of one text, control tokens included."""
        return list(map(self._token_decoder(skip_special=False), ids))

    def token_bytes(self) -> list[bytes]:
        """Return the bytes of each id in the middle of a text; no bytes for an unknown id."""
        # Some decoders treat the first token of a text differently.
        first = next(token_id for token_id in self._tokens if token_id not in self._special_ids)
        found = [b""] * self.vocab_size
        for token_id in self._tokens:  # a few tokens may have ids up to 2^24
            found[token_id] = self.pieces((first, token_id))[1]
        return found

    def stream(self, skip_special: bool = True) -> TokenStream:
        """Return an incremental decoder."""
        return TokenStream(lambda: self._token_decoder(skip_special))

    def _token_decoder(self, skip_special: bool) -> Callable[[int], bytes]:
        """Return a function from id to bytes, to be called for the ids of one text in order."""
        decode_token = self._pipeline.make_decoder()
        tokens = self._tokens
        skipped = self._special_ids if skip_special else frozenset[int]()

        def token_bytes(token_id: int) -> bytes:
            if token_id in skipped or token_id not in tokens:
                return b""
            return decode_token(tokens[token_id])

        return token_bytes

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        earlier: Prompt | None = None,
        template: str | None = None,
        add_generation_prompt: bool = True,
        begun: Mapping[str, Any] | None = None,
        **variables: Any,
    ) -> Prompt:
        """Return a conversation rendered by the model's chat template, and its ids.

        The ids equal those of `transformers`, except that control tokens inside messages, tools
        and other variables are ordinary text, and that messages get the form in which the template
        loses none of their texts. Each message has a `role` and a `content`;
        `variables` are passed to the template. `template` is a source that replaces the model's:
        by default its template `tool_use` if there are tools, else `default`.

        As long as the spans of both prompts have the same text, the ids of `earlier` are reused,
        so a generated answer keeps its ids in later turns. `begun` is a message whose content the
        answer continues: it ends the prompt, in the form that the template gives to answers. Raises
        `BadModelFile` if there is no template, or it is invalid, hostile or rejects the messages.
        """
        # Imported here: many programs use no template.
        from swiftchat.tokenizer.template.messages import MessageForms, messages_for_template
        from swiftchat.tokenizer.template.provenance import render, up_to

        source = self._template_source(variables.get("tools")) if template is None else template
        if source not in self._message_forms:
            own = {**self.named_tokens, "add_generation_prompt": True}
            self._message_forms[source] = MessageForms(
                lambda example, more: self._template_process.render(
                    source, {**more, "messages": example}, own, ()
                )
            )
        forms = self._message_forms[source]

        def rendered(shown: Sequence[Mapping[str, Any]], has_end: bool) -> tuple[str, Ranges]:
            adapted = forms.adapted(messages_for_template(shown), variables)
            inputs = {**variables, "messages": adapted}
            own = {name: text for name, text in self.named_tokens.items() if name not in inputs} | {
                "add_generation_prompt": has_end
            }
            return render(self._template_process, source, inputs, own, self.special_tokens)

        if begun is None:
            return self._prompt(*rendered(messages, add_generation_prompt), earlier)
        answer = str(begun["content"])
        try:
            found = up_to(answer, *rendered([*messages, begun], False))
        except BadModelFile:  # a template may end its conversations with a question
            found = None
        if found is None:
            text, content = rendered(messages, add_generation_prompt)
            end = len(text) + len(answer)
            found = text + answer, [*content, (len(text), end)] if answer else content
        return self._prompt(*found, earlier)

    def continued(self, prompt: Prompt, ids: Sequence[int]) -> Prompt:
        """Return `prompt` followed by the answer `ids`, as `earlier` for the next turn.

        An answer that contains control tokens is left out, because messages never contain any.
        """
        if not ids or not self._special_ids.isdisjoint(ids):
            return prompt
        stream = self.stream(skip_special=False)
        for token_id in prompt.ids:
            stream.push(token_id)
        text = "".join(map(stream.push, ids)) + stream.flush()
        return prompt.extended(text, ids)

    def _prompt(self, text: str, content: Ranges, earlier: Prompt | None) -> Prompt:
        text = _LONE_SURROGATES.sub("\ufffd", text)
        old = iter(() if earlier is None else earlier.spans)
        spans: list[PromptSpan] = []
        for cuts in split_at_control_tokens(self._raw.cut(text, content), self._special_ids):
            part = text[cuts[0][1] : cuts[-1][2]]
            is_control = cuts[0][0] in self._special_ids
            span = next(old, None)
            if span is None or (span.text, span.is_control) != (part, is_control):
                old = iter(())
                ids = chain.from_iterable(self._encode_cut(text, content, *cut) for cut in cuts)
                span = PromptSpan(part, tuple(ids), is_control)
            spans.append(span)
        return Prompt(tuple(spans))

    def _template_source(self, tools: object) -> str:
        """Return the source of the model's template; raises `BadModelFile` without one."""
        name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"
        if name in self.templates:
            return self.templates[name]
        names = ", ".join(sorted(self.templates))
        raise BadModelFile(
            f"the model has no default chat template, only {names}"
            if names
            else "the model has no chat template",
            "choose one with --template, or use --no-template to complete plain text",
        )


def _clip_ranges(ranges: Ranges, start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of `ranges` inside `start : end`, relative to `start`."""
    return [
        (max(low, start) - start, min(high, end) - start)
        for low, high in ranges
        if low < end and high > start
    ]


def _ranges_after_normalizing(ranges: Ranges, before: str, after: str) -> Ranges:
    """Return the positions in `after`, the normalized text, of `ranges` in `before`.

    A prefix put in front and spaces that became ▁ keep positions exact. After any other change
    the whole text counts as content.
    """
    if before == after or not ranges:
        return ranges
    added = len(after) - len(before)
    if added >= 0 and after[added:].replace("▁", " ") == before.replace("▁", " "):
        return [(low + added if low else 0, high + added) for low, high in ranges]
    return [(0, len(after))]
