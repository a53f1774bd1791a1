"""The formats in which models write calls of tools, and splitting calls from streamed answers."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.tools.listings import DEEPSEEK_R1, DEEPSEEK_V3_1, SMOLLM3
from swiftchat.chat.tools.parsers import (
    MINIMAX_MARK,
    parse_deepseek,
    parse_function,
    parse_function_tag,
    parse_functions,
    parse_gemma,
    parse_harmony,
    parse_invokes,
    parse_json,
    parse_kimi,
    parse_kimi_tags,
    parse_minimax,
    parse_mistral,
    parse_named,
    parse_python,
    parse_recipients,
    parse_solar,
    parse_tagged,
)
from swiftchat.chat.tools.writers import (
    write_deepseek,
    write_json,
    write_objects,
    write_python,
)

Write = Callable[[Sequence[ToolCall]], Sequence[str]]


@dataclass(frozen=True)
class ToolFormat:
    """The syntax of calls; a chat template with `signature` in it uses this format.

    A call begins with one of `opens` and ends with `close`, or with the answer if that is empty.
    `starts` are calls only at the beginning of an answer, and belong to the parsed text. `marks`
    are other control tokens inside a call. `write` writes the texts between the first of `opens`
    and `close`, in formats of which some templates leave calls out. `listing` is the text that
    lists tools in place of `TOOLS`, for families of which some templates do not. `plain` marks
    text. `prompted` is the beginning of a first marker with which the prompt ends. A call of
    `direct` is none: it requests a prompt without tools, for an answer.
    """

    signature: str
    opens: tuple[str, ...]
    close: str
    parse: Callable[[str], list[ToolCall]]
    starts: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    write: Write | None = None
    listing: str = ""
    plain: str = ""
    prompted: str = ""
    direct: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.opens, self.close, *self.marks)


def _tags(
    name: str, parse: Callable[[str], list[ToolCall]], write: Write | None = None
) -> ToolFormat:
    return ToolFormat(f"<{name}>", (f"<{name}>",), f"</{name}>", parse, write=write)


_DEEPSEEK = ToolFormat(  # DeepSeek R1, V3
    "<｜tool▁calls▁begin｜>",
    ("<｜tool▁calls▁begin｜>",),
    "<｜tool▁calls▁end｜>",
    parse_deepseek,
    marks=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    write=write_deepseek,
    listing=DEEPSEEK_R1,
)

# From the published chat templates; the first whose signature is in the template counts.
FORMATS = (
    # gpt-oss
    ToolFormat(
        "<|channel|>commentary",
        tuple(
            f"{start}to=functions."
            for start in (
                "<|start|>assistant<|channel|>commentary ",
                "<|channel|>commentary ",
                "<|start|>assistant ",
                " ",
            )
        ),
        "",
        parse_harmony,
        marks=("<|message|>", "<|constrain|>"),
    ),
    ToolFormat(  # Kimi K2
        "<|tool_calls_section_begin|>",
        ("<|tool_calls_section_begin|>",),
        "<|tool_calls_section_end|>",
        parse_kimi,
        marks=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    replace(  # DeepSeek V3.1
        _DEEPSEEK,
        signature="'<｜tool▁sep｜>' + tool['function']['arguments']",
        write=None,
        listing=DEEPSEEK_V3_1,
    ),
    _DEEPSEEK,
    ToolFormat(  # Muse Glimmer: the recipient of a message is a tool, the user, or the model itself
        "<atem:function_calls>",
        ("<|start|>assistant to=",),
        "</atem:function_calls>",
        parse_invokes,
        marks=("<|message|>",),
        plain="<|start|>assistant to=user<|message|>",
        prompted="<|start|>assistant",
    ),
    ToolFormat(  # MiniMax M3
        MINIMAX_MARK,
        (f"{MINIMAX_MARK}<tool_call>",),
        f"{MINIMAX_MARK}</tool_call>",
        parse_minimax,
        marks=(MINIMAX_MARK,),
    ),
    ToolFormat(  # Kimi K3
        "'<|open|>'",
        ("<|open|>tools<|sep|>",),
        "<|close|>tools<|sep|>",
        parse_kimi_tags,
        marks=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    _tags("seed:tool_call", parse_functions),  # Seed-OSS
    _tags("TOOLCALL", parse_json),  # Nemotron Nano 2
    ToolFormat(  # LFM2, LFM2.5
        "List of tools: ",
        ("<|tool_call_start|>",),
        "<|tool_call_end|>",
        parse_python,
        write=write_python,
    ),
    ToolFormat(  # Gemma 4
        "<|tool_call>call:", ("<|tool_call>",), "<tool_call|>", parse_gemma, marks=('<|"|>',)
    ),
    ToolFormat(  # Apertus
        "<|tools_prefix|>", ("<|tools_prefix|>",), "<|tools_suffix|>", parse_named
    ),
    ToolFormat(  # Solar Open
        "<|tool_call:begin|>",
        ("<|begin|>assistant<|tool_calls|>", "<|tool_calls|>"),  # also after reasoning
        "",
        parse_solar,
        marks=(
            "<|tool_call:begin|>",
            "<|tool_call:name|>",
            "<|tool_call:args|>",
            "<|tool_call:end|>",
        ),
    ),
    ToolFormat(  # GigaChat 3.1
        "<|function_call|>", ("<|function_call|>",), "<|message_sep|>", parse_json
    ),
    ToolFormat(  # GigaChat 3
        "'role': 'function call'",
        ("<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n"),
        "<|message_sep|>",
        parse_json,
    ),
    ToolFormat(  # MiniCPM5
        '<function name="',
        ('<function name="',),
        "</function>",
        parse_function_tag,
        marks=('<param name="', "</param>", "<![CDATA[", "]]>"),
    ),
    ToolFormat(  # Command R, R+
        "`directly-answer`",
        ("Action:\n```json\n", "Action: ```json\n", "Action:```json\n"),
        "```",
        parse_json,
        direct="directly-answer",
    ),
    ToolFormat(  # Command R7B, Command A
        "<|START_ACTION|>", ("<|START_ACTION|>",), "<|END_ACTION|>", parse_json
    ),
    ToolFormat(  # Granite 3, Phi-4-mini
        "<|tool_call|>", ("<|tool_call|>",), "<|/tool_call|>", parse_json, write=write_json
    ),
    ToolFormat(  # Mistral
        "[TOOL_CALLS]",
        ("[TOOL_CALLS]",),
        "",
        parse_mistral,
        marks=("[ARGS]", "[CALL_ID]"),
    ),
    _tags("tool_calls", parse_json),  # MiniMax M1, Apriel
    _tags(
        "tool_call", parse_tagged, write_objects
    ),  # Hermes, Qwen, SmolLM3, GLM-4.5, Granite 4, Nemotron 3
    ToolFormat(  # SmolLM3 with a template that has lost its list of tools
        "SmolLM, trained by Hugging Face",
        ("<tool_call>",),
        "</tool_call>",
        parse_tagged,
        write=write_objects,
        listing=SMOLLM3,
    ),
    ToolFormat("functools[", ("functools",), "", parse_json),  # Firefunction
    ToolFormat(  # Functionary 3.2
        ">>>${recipient}",
        (">>>",),
        "",
        parse_recipients,
        plain=">>>all\n",
        prompted=">>>",
    ),
    ToolFormat(  # Functionary 3.1
        "<function=", ("<function=",), "</function>", parse_function
    ),
    ToolFormat(  # Llama 3.1 to 3.3
        '"parameters": dictionary of argument name',
        ("<|python_tag|>",),
        "",
        parse_json,
        starts=('{"name"', '{ "name"', '{"type": "function"', '[{"name"'),
    ),
)


def find_tool_format(template: str) -> ToolFormat | None:
    """Return the format of calls that a chat template uses, None if it is not known."""
    return next((f for f in FORMATS if f.signature in template), None)


def find_plain_format(template: str) -> ToolFormat | None:
    """Return a format without calls, for a template with which even text has a marker."""
    found = find_tool_format(template)
    return replace(found, parse=lambda text: []) if found and found.plain else None


class ToolCallSplitter:
    """Splits streamed text of an answer into text and calls of tools.

    A marker may be spread over several pieces. The text of a call is held back until its end; text
    that is not a call after all is yielded then. `calls` are the calls so far. Without a format
    all is text.
    """

    def __init__(self, tool_format: ToolFormat | None) -> None:
        self.calls: list[ToolCall] = []
        self._format = tool_format
        self._buffer = tool_format.prompted if tool_format else ""
        self._num_prompted = len(self._buffer)  # characters that are not of the answer
        self._open: str | None = None  # the marker that began the held text
        self._at_start = True
        self._held: list[str] = []  # the texts of the calls
        marks = (tool_format.plain, *tool_format.opens) if tool_format else ()
        self._marks = re.compile("|".join(map(re.escape, filter(None, marks))) or r"(?!)")

    @property
    def is_in_call(self) -> bool:
        """Whether the text of a call is held back."""
        return self._open is not None

    def push(self, text: str) -> Iterator[str]:
        """Yield the pieces that are certain to be text."""
        self._buffer += text
        while self._buffer:
            if self._format is None:
                yield self._take(len(self._buffer))
            elif self._open is None:
                if self._is_start_unknown(self._format):
                    return
                yield from self._read_text(self._format)
                if self._open is None:
                    return
            elif not self._format.close or self._format.close not in self._buffer:
                return
            else:
                inside = self._take(self._buffer.index(self._format.close))
                self._take(len(self._format.close))
                yield from self._end_call(inside, self._format.close)

    def flush(self, is_complete: bool) -> Iterator[str]:
        """Yield the held text at the end of the stream.

        Calls of an answer that is not complete are text, so that nothing is called by accident.
        """
        if self._open is not None:
            yield from self._end_call(self._take(len(self._buffer)), "")
        elif rest := self._take(len(self._buffer)):
            yield rest
        if not is_complete and self.calls:
            self.calls = []
            yield "".join(self._held)

    def _is_start_unknown(self, tool_format: ToolFormat) -> bool:
        """Open a call at the beginning of the answer; return whether more text is needed."""
        begin = self._buffer.lstrip()
        if not self._at_start:
            return False
        if begin.startswith(tool_format.starts):
            self._open, self._at_start = "", False
            return False
        return not begin or any(start.startswith(begin) for start in tool_format.starts)

    def _read_text(self, tool_format: ToolFormat) -> Iterator[str]:
        """Yield the text before a marker; hold back its possible beginning."""
        if self._open is not None:
            return
        while (match := self._marks.search(self._buffer)) and not self._may_be_plain(match):
            yield from self._text(match.start())
            mark = self._take(len(match[0]))
            if match[0] != tool_format.plain:
                self._open = mark
                return
        overlap = max(map(self._overlap, tool_format.opens))
        yield from self._text(match.start() if match else len(self._buffer) - overlap)

    def _may_be_plain(self, match: re.Match[str]) -> bool:
        """Return whether what may be a call is perhaps the beginning of the mark of text."""
        assert self._format is not None
        rest = self._buffer[match.start() :]
        return rest != self._format.plain and self._format.plain.startswith(rest)

    def _text(self, num_characters: int) -> Iterator[str]:
        text = self._take(num_characters)
        self._at_start = self._at_start and not text.strip()
        if text and not (self.calls and not text.strip()):  # blank lines between calls
            yield text

    def _end_call(self, inside: str, close: str) -> Iterator[str]:
        """Parse a held text; yield it with its markers if it is not a call."""
        assert self._format is not None and self._open is not None
        raw, self._open = f"{self._open}{inside}{close}", None
        calls = self._format.parse(inside)
        if not calls:
            yield raw
            return
        self._held.append(raw)
        for call in calls:
            is_known = any(call.id == other.id for other in self.calls)
            new_id = ToolCall(call.name, {}).id
            self.calls.append(replace(call, id=new_id) if is_known else call)

    def _take(self, num_characters: int) -> str:
        taken, self._buffer = self._buffer[:num_characters], self._buffer[num_characters:]
        num_prompted = min(self._num_prompted, num_characters)
        self._num_prompted -= num_prompted
        return taken[num_prompted:]

    def _overlap(self, marker: str) -> int:
        """Return the length of the longest end of the buffer that is a beginning of `marker`."""
        buffer = self._buffer
        return max((n for n in range(1, len(marker)) if buffer.endswith(marker[:n])), default=0)
