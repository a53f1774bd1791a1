"""The process that renders chat templates which are not provably bounded.

It reads `{source, variants, now, seconds}` as JSON from stdin and writes `{texts}` or `{error}` to
stdout. The parent kills it after the time limit.
"""

import json
import sys
from datetime import datetime
from typing import Any

from swiftchat.tokenizer.template.sandbox import (
    TEMPLATE_ERRORS,
    compile_template,
    render_variants,
)

_MEMORY_BYTES = 1 << 30


def _limit(seconds: float) -> None:
    """Limit memory, and processor time in case the parent has died."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))


def main() -> None:
    """Render one template."""
    task = json.load(sys.stdin)
    _limit(task["seconds"])
    now = datetime.fromisoformat(task["now"])
    try:
        template = compile_template(task["source"], lambda: now)
        texts = render_variants(template, task["variants"], task["seconds"], may_join_lists=True)
        answer: dict[str, Any] = {"texts": texts}
    except TEMPLATE_ERRORS as error:
        answer = {"error": str(error) or type(error).__name__}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
