"""Chat templates: a conversation as the text a model was trained on."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Never

import jinja2

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.template.bounded import is_bounded
from swiftchat.tokenizer.template.sandbox import (
    TEMPLATE_ERRORS,
    UnboundedTemplate,
    compile_template,
    parse_template,
    render_variants,
)

__all__ = ["ChatTemplate"]

_MAX_SOURCE_CHARACTERS = 1 << 18
_SECONDS = 1.7


class ChatTemplate:
    """An untrusted template: it cannot reach Python, and runs for about two seconds at most."""

    def __init__(self, source: str) -> None:
        """Parse the template; raises `BadModelFile` if it is invalid."""
        if len(source) > _MAX_SOURCE_CHARACTERS:
            raise BadModelFile(
                f"the chat template is longer than {_MAX_SOURCE_CHARACTERS} characters"
            )
        self._source = source
        self._now = datetime.now()
        self._compiled: jinja2.Template | None = None
        try:
            # Compiling evaluates constants, which can take unbounded time, so check first.
            if is_bounded(parse_template(source)):
                self._compiled = compile_template(source, lambda: self._now)
        except TEMPLATE_ERRORS as error:
            _reject(str(error))

    def render(self, variants: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Render with each of `variants`, JSON values, with one time of day for all.

        A variant other than the first that fails gives None; a failure of the first raises
        `BadModelFile`.
        """
        self._now = datetime.now()
        if self._compiled is None:
            return self._render_in_process(variants)
        try:
            return render_variants(self._compiled, variants, _SECONDS, may_join_lists=False)
        except UnboundedTemplate:
            return self._render_in_process(variants)
        except TEMPLATE_ERRORS as error:
            _reject(str(error) or type(error).__name__)

    def _render_in_process(self, variants: Sequence[Mapping[str, Any]]) -> list[str | None]:
        task = {
            "source": self._source,
            "variants": variants,
            "now": self._now.isoformat(),
            "seconds": _SECONDS,
        }
        # -P: do not import from the current directory.
        command = [sys.executable, "-P", "-m", "swiftchat.tokenizer.template.worker"]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(task).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            _reject("it exceeds its time limit")
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            _reject(f"its process ended with status {done.returncode}")
        if "error" in answer:
            _reject(answer["error"])
        texts: list[str | None] = answer["texts"]
        return texts


def _reject(reason: str) -> Never:
    raise BadModelFile(
        f"the chat template cannot be used: {reason[:300]}",
        "choose another with --template, or use --no-template to complete plain text",
    )
