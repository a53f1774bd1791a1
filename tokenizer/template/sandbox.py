"""The sandboxed Jinja environment of chat templates, as in `transformers`, with limits."""

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes, pass_environment, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame, optimizeconst
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import do_replace, do_title, make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEnvironment,
    SandboxedFormatter,
)
from jinja2.utils import Namespace
from markupsafe import soft_str

from swiftchat.tokenizer.template.own_text import (
    OwnText,
    as_text,
    formatted,
    join_texts,
    joined,
    marked_safe,
    own,
    own_ranges,
    same_length,
    with_ranges,
)

# Limit on the output: a constant plus a multiple of the input.
_FREE_CHARACTERS = 1 << 20
_MAX_COPIES = 4

# Exceptions that a template can cause, by `raise_exception`, by mistake or on purpose.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,  # in the code that Jinja generates
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class TemplateLimitExceeded(jinja2.TemplateError):
    """The template exceeded its time limit or its output limit."""


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for training: rendered as a scope."""

    tags = {"generation"}  # noqa: RUF012  # declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """`namespace` without names that begin with an underscore, which would reach Python."""

    def __init__(*args: Any, **attributes: Any) -> None:  # `self` may be an attribute
        for name in dict(*args[1:], **attributes):
            _reject_private(name)
        Namespace.__init__(*args, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _reject_private(name)
        super().__setitem__(name, value)


class _OwnList(list[Any]):
    """A list that the template has written, which it may change; it may not change the inputs."""


class _CodeGenerator(CodeGenerator):
    """Writes code in which the texts of the template are `OwnText`, and its lists `_OwnList`.

    It takes constants from `literals` of the environment, and turns values into text, also for
    `~`, with functions of the environment. Infinite numbers have no literal in Python either.
    """

    environment: "_Environment"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        self._write_literal(node.as_const(frame.eval_ctx))

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.own_list(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self._write_literal(node.data)

    @optimizeconst
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(environment.as_text, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("environment.as_text(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")

    def _write_literal(self, value: Any) -> None:
        self.write(self._literal(value))

    def _literal(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int):
            return repr(value)
        literals = self.environment.literals
        literals.append(own(value))
        literal = f"environment.literals[{len(literals) - 1}]"
        return f"environment.own_list({literal})" if isinstance(value, list) else literal


class _Environment(ImmutableSandboxedEnvironment):
    """Keeps track of the template's own text, and checks limits.

    It checks the time at each operation, and the size of results of `+`. `deadline` is in seconds
    of the thread's processor time. `literals` are the constants of its only template.
    """

    code_generator_class = _CodeGenerator
    concat = staticmethod(join_texts)
    as_text = staticmethod(as_text)
    own_list = _OwnList
    intercepted_binops = frozenset({"+"})
    deadline = float("inf")
    max_characters = _FREE_CHARACTERS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.literals: list[Any] = []

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.check_time()
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            self.check_size(len(result))
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_time()
        if attribute.startswith("__"):
            _reject_private(attribute)
        return super().getattr(with_ranges(obj), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_time()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attribute: str, value: Any) -> bool:
        if isinstance(obj, _OwnList):
            return SandboxedEnvironment.is_safe_attribute(self, obj, attribute, value)
        return super().is_safe_attribute(obj, attribute, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Raise at once; by default an unsafe attribute raises only when it is used."""
        _reject_private(attribute)
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Keep the ranges of a text that is formatted."""
        plain = super().wrap_str_format(value)
        text = getattr(value, "__self__", None)
        if plain is None or not isinstance(text, OwnText) or value.__name__ != "format":
            return plain
        formatter = SandboxedFormatter(self)
        return lambda *args, **kwargs: formatted(text, formatter, args, kwargs)

    def check_time(self) -> None:
        if time.thread_time() > self.deadline:
            raise TemplateLimitExceeded("the chat template exceeds its time limit")

    def check_size(self, num_characters: int) -> None:
        if num_characters > self.max_characters:
            raise TemplateLimitExceeded("the chat template exceeds its output limit")


def compile_template(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    """Compile the template; Jinja evaluates its constant parts while compiling."""
    return _environment(now).from_string(source)


def render(template: jinja2.Template, variables: Mapping[str, Any], seconds: float) -> str:
    """Render; the result is an `OwnText` if the template wrote any of it.

    `seconds` limits the processor time of this thread.
    """
    environment = template.environment
    assert isinstance(environment, _Environment)
    environment.deadline = time.thread_time() + seconds
    input_characters = len(json.dumps(variables, ensure_ascii=False))
    environment.max_characters = _FREE_CHARACTERS + _MAX_COPIES * input_characters
    pieces: list[str] = []
    size = 0
    for piece in template.generate(**variables):
        environment.check_time()
        size += len(piece)
        environment.check_size(size)
        pieces.append(piece)
    return join_texts(pieces)


def _environment(now: Callable[[], datetime]) -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    environment.filters |= {
        "join": _join,
        "replace": _replace,
        "safe": marked_safe,
        "string": lambda value: value if isinstance(value, str) else as_text(value),
        "title": lambda value: same_length(soft_str(value), do_title(value)),
        "tojson": _to_json,
    }
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format_: _like(format_, now().strftime(format_))
    return environment


def _like(source: str, text: str) -> str:
    """Return a text made from `source`: the template's if all of that is."""
    return own(text) if own_ranges(source) == own_ranges(own(source)) else text


@pass_environment
def _join(
    environment: jinja2.Environment, values: Iterable[Any], d: str = "", attribute: Any = None
) -> str:
    """Do what Jinja's filter `join` does, with the ranges of the texts."""
    if attribute is not None:
        values = map(make_attrgetter(environment, attribute), values)
    return joined(as_text(d), map(as_text, values))


@pass_eval_context
def _replace(
    eval_ctx: nodes.EvalContext, text: Any, old: str, new: str, count: int | None = None
) -> str:
    """Do what Jinja's filter `replace` does; what the template puts into a text is its own."""
    return do_replace(eval_ctx, with_ranges(text), old, new, count)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize without Jinja's HTML escapes, as `transformers` does; what filters yield too."""
    return json.dumps(
        list(value) if isinstance(value, Generator) else value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _reject_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the chat template accesses the private name {name[:40]!r}")
