"""Chat templates: a conversation as the text a model was trained on."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import jinja2

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.template.bounded import is_bounded
from swiftchat.tokenizer.template.process import TemplateProcess, TemplateProcessError
from swiftchat.tokenizer.template.sandbox import (
    TEMPLATE_ERRORS,
    TemplateLimitExceeded,
    UnboundedTemplate,
    compile_template,
    parse_template,
    render,
)
from swiftchat.tokenizer.template.variables import variables_with_own

_MAX_SOURCE_CHARACTERS = 1 << 18
_SECONDS = 1.7  # of processor time: a busy machine does not reject a template


class TemplateStopped(BadModelFile):
    """The template exceeded its limit of time or output."""


class ChatTemplate:
    """An untrusted template: it cannot reach Python, and is stopped after `_SECONDS`."""

    def __init__(self, source: str) -> None:
        """Parse the template; raises `BadModelFile` if it is invalid."""
        if len(source) > _MAX_SOURCE_CHARACTERS:
            raise BadModelFile(
                f"the chat template is longer than {_MAX_SOURCE_CHARACTERS} characters"
            )
        self._source = source
        self._now = datetime.now()
        self._compiled: jinja2.Template | None = None
        self._process: TemplateProcess | None = None
        with _rejections():
            # Compiling evaluates constants, which can take unbounded time, so check first.
            if is_bounded(parse_template(source)):
                self._compiled = compile_template(source, lambda: self._now)

    def render(
        self, inputs: Mapping[str, Any], own: Mapping[str, Any], words: Collection[str]
    ) -> str:
        """Render with the caller's and the template's own variables, of JSON types.

        Returns an `OwnText`, or a `str` if nothing is the template's. Names of `inputs` in `words`
        count as the template's. Raises `BadModelFile` if the template fails, `TemplateStopped` if
        it exceeds a limit.
        """
        now = self._now = datetime.now()
        if self._compiled is not None:
            variables = variables_with_own(inputs, own, words)
            with suppress(UnboundedTemplate), _rejections():
                return render(self._compiled, variables, _SECONDS, may_join_lists=False)
        if self._process is None:
            self._process = TemplateProcess(self._source)
        with _rejections():
            return self._process.render(inputs, own, words, now, _SECONDS)


@contextmanager
def _rejections() -> Iterator[None]:
    """Raise errors of a template as `BadModelFile`, those of limits as `TemplateStopped`."""
    try:
        yield
    except TemplateLimitExceeded as error:
        raise TemplateStopped(*_rejection(str(error))) from None
    except (*TEMPLATE_ERRORS, TemplateProcessError) as error:
        raise BadModelFile(*_rejection(str(error) or type(error).__name__)) from None


def _rejection(reason: str) -> tuple[str, str]:
    """Return the message and the hint."""
    return (
        f"the chat template cannot be used: {reason[:300]}",
        "choose another with --template, or use --no-template to complete plain text",
    )
