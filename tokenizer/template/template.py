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
    NotHarmless,
    compile_template,
    parse_template,
    render_variants,
)

__all__ = ["ChatTemplate"]

_LONGEST_SOURCE = 1 << 18
_SECONDS = 1.7


class ChatTemplate:
    """A template somebody else wrote: it cannot reach Python, and has about two seconds."""

    def __init__(self, source: str) -> None:
        """Parse the template; raises `BadModelFile` when it is no template."""
        if len(source) > _LONGEST_SOURCE:
            raise BadModelFile("the chat template is absurdly long")
        self._source = source
        self._now = datetime.now()
        self._here: jinja2.Template | None = None
        try:
            # Compiling evaluates constants, which alone can take for ever: look first.
            if is_bounded(parse_template(source)):
                self._here = compile_template(source, lambda: self._now)
        except TEMPLATE_ERRORS as error:
            _refuse(str(error))

    def render(self, variants: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Render with each of `variants`, values as in JSON, all at the same time of day.

        A variant other than the first that fails gives None; if the first one fails, raises
        `BadModelFile`.
        """
        self._now = datetime.now()
        if self._here is None:
            return self._render_elsewhere(variants)
        try:
            return render_variants(self._here, variants, _SECONDS, may_join_lists=False)
        except NotHarmless:
            return self._render_elsewhere(variants)
        except TEMPLATE_ERRORS as error:
            _refuse(str(error) or type(error).__name__)

    def _render_elsewhere(self, variants: Sequence[Mapping[str, Any]]) -> list[str | None]:
        task = {
            "source": self._source,
            "variants": variants,
            "now": self._now.isoformat(),
            "seconds": _SECONDS,
        }
        # -P: what happens to lie in the current directory is not imported.
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
            _refuse("it takes too long")
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            _refuse(f"its process ended with status {done.returncode}")
        if "error" in answer:
            _refuse(answer["error"])
        texts: list[str | None] = answer["texts"]
        return texts


def _refuse(reason: str) -> Never:
    raise BadModelFile(
        f"the chat template cannot be used: {reason[:300]}",
        "choose another with --template, or use --no-template to complete plain text",
    )
