"""The formats in which models write calls of tools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.tools.listings import DEEPSEEK_R1, DEEPSEEK_V3_1, SMOLLM3
from swiftchat.chat.tools.offer import NO_TOOLS, Offer
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
    `marks` are other control tokens inside a call. `write` writes the texts between the first of
    `opens` and `close`, in formats of which some templates leave calls out. `listing` is the text
    that lists tools in place of `TOOLS`, for families of which some templates do not. `plain` marks
    text. Where the name of a call is not in its JSON, `named` is what precedes that as a regular
    expression with NAME, and `named_mark` the control token between them, if there is one.
    `prompted` is the beginning of a first marker with which the prompt ends. A call of
    `direct` is none: it requests a prompt without tools, for an answer. `offer` has the tools that
    the answer may call.
    """

    signature: str
    opens: tuple[str, ...]
    close: str
    parse: Callable[[str], list[ToolCall]]
    marks: tuple[str, ...] = ()
    write: Write | None = None
    listing: str = ""
    plain: str = ""
    named: str = ""
    named_mark: str = ""
    prompted: str = ""
    direct: str = ""
    offer: Offer = NO_TOOLS

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.opens, self.close, *self.marks)

    def offering(self, offer: Offer) -> "ToolFormat":
        """Return the format of an answer that may call the tools on offer."""
        # An answer that must be a call is JSON, without a marker.
        return replace(self, offer=offer, prompted="" if offer.is_required else self.prompted)


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
    named=r"\s*NAME\s*```json",
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
        named=r"(?s:.*)to=functions\.NAME\s*(json)?\s*",
        named_mark="<|message|>",
    ),
    ToolFormat(  # Kimi K2
        "<|tool_calls_section_begin|>",
        ("<|tool_calls_section_begin|>",),
        "<|tool_calls_section_end|>",
        parse_kimi,
        marks=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        named=r"\s*functions\.NAME(:\d+)?\s*",
        named_mark="<|tool_call_argument_begin|>",
    ),
    replace(  # DeepSeek V3.1
        _DEEPSEEK,
        signature="'<｜tool▁sep｜>' + tool['function']['arguments']",
        write=None,
        listing=DEEPSEEK_V3_1,
        named=r"\s*NAME\s*",
        named_mark="<｜tool▁sep｜>",
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
        named=r"\s*NAME\s*",
        named_mark="<|tool_call:args|>",
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
        named=r"\s*NAME\s*",
        named_mark="[ARGS]",
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
        "<function=", ("<function=",), "</function>", parse_function, named="<function=NAME>"
    ),
    ToolFormat(  # Llama 3.1 to 3.3
        '"parameters": dictionary of argument name',
        ("<|python_tag|>",),
        "",
        parse_json,
    ),
)


def find_tool_format(template: str) -> ToolFormat | None:
    """Return the format of calls that a chat template uses, None if it is not known."""
    return next((f for f in FORMATS if f.signature in template), None)


def find_plain_format(template: str) -> ToolFormat | None:
    """Return a format without calls, for a template with which even text has a marker."""
    found = find_tool_format(template)
    return replace(found, parse=lambda text: []) if found and found.plain else None
