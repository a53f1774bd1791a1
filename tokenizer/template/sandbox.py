"""The Jinja environment of chat templates, as `transformers` sets it up, with bounds."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = [
    "TEMPLATE_ERRORS",
    "NotHarmless",
    "compile_template",
    "parse_template",
    "render_variants",
]

# What a template may write of its own, and how often what it was given.
_FREE_CHARACTERS = 1 << 20
_MOST_COPIES = 4

# What a template can make Python raise, by refusing, by mistake or by intent.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class TooMuch(jinja2.TemplateError):
    """The template took too long, or made too much text."""


class NotHarmless(Exception):
    """The template does what only a process of its own may do."""


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for training: a scope, no more."""

    tags = {"generation"}  # noqa: RUF012  # declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """`namespace`, without names that begin with an underscore, which lead to Python's own."""

    def __init__(*args: Any, **attributes: Any) -> None:  # `self` may be an attribute
        for name in dict(*args[1:], **attributes):
            _refuse_private(name)
        Namespace.__init__(*args, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """Looks at the clock with each operation, and at the size of what `+` makes."""

    intercepted_binops = frozenset({"+"})
    deadline = float("inf")
    most_characters = _FREE_CHARACTERS
    may_join_lists = True

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.check_time()
        if not self.may_join_lists and isinstance(left, list | tuple):
            raise NotHarmless
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            self.check_size(len(result))
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_time()
        if attribute.startswith("__"):
            _refuse_private(attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_time()
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuse at once: by default an unsafe attribute is silent until it is used."""
        _refuse_private(attribute)
        return super().unsafe_undefined(obj, attribute)

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise TooMuch("the chat template takes too long")

    def check_size(self, num_characters: int) -> None:
        if num_characters > self.most_characters:
            raise TooMuch("the chat template makes too much text")


def parse_template(source: str) -> nodes.Template:
    """Return the syntax tree; nothing of the template is evaluated yet."""
    return _environment(datetime.now).parse(source)


def compile_template(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    """Compile the template; Jinja evaluates constant parts of it while doing so."""
    return _environment(now).from_string(source)


def render_variants(
    template: jinja2.Template,
    variants: Sequence[Mapping[str, Any]],
    seconds: float,
    *,
    may_join_lists: bool,
) -> list[str | None]:
    """Render with each of `variants`; None where another than the first one fails.

    Raises `NotHarmless` where lists are joined and may not be: one that is joined to itself
    again and again is soon too long to be written in reasonable time.
    """
    environment = template.environment
    assert isinstance(environment, _Environment)
    environment.deadline = time.monotonic() + seconds
    environment.may_join_lists = may_join_lists
    texts: list[str | None] = []
    for variant in variants:
        try:
            texts.append(_render(template, environment, variant))
        except TEMPLATE_ERRORS:
            if not texts:
                raise
            texts.append(None)
    return texts


def _render(
    template: jinja2.Template, environment: _Environment, variables: Mapping[str, Any]
) -> str:
    given = len(json.dumps(variables, ensure_ascii=False))
    environment.most_characters = _FREE_CHARACTERS + _MOST_COPIES * given
    pieces: list[str] = []
    size = 0
    for piece in template.generate(**variables):
        environment.check_time()
        size += len(piece)
        environment.check_size(size)
        pieces.append(piece)
    return "".join(pieces)


def _environment(now: Callable[[], datetime]) -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own would write HTML's characters as escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the chat template reaches for {name[:40]!r}")
