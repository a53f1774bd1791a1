"""Variables with which a chat template switches the model's reasoning."""

import re
from typing import Any

from swiftchat.errors import UsageError

# `enable_thinking` in Qwen3, SmolLM3, GLM-4.5 and Gemma 4, `thinking` in DeepSeek-V3.1 and Granite.
_SWITCHES = ("enable_thinking", "thinking")
# A variable, not the attribute or key of a message.
_SWITCH = re.compile(r"(?<![.\w'\"])(?:enable_)?thinking\b")
# `reasoning_effort` in gpt-oss, Solar Open and Hy3, `thinking_effort` in Kimi K3.
_EFFORT = re.compile(r"(?<![.\w'\"])(?:reasoning|thinking)_effort\b")


def has_thinking_switch(source: str) -> bool:
    """Return whether a chat template has a variable that switches thinking."""
    return _SWITCH.search(source) is not None


def thinking_variables(is_on: bool) -> dict[str, Any]:
    """Return the variables that switch thinking on or off in any template that can."""
    return dict.fromkeys(_SWITCHES, is_on)


def effort_variables(effort: str, source: str, *, can_reason: bool) -> dict[str, Any]:
    """Return the variables for a reasoning effort, of which `none` means no reasoning.

    A template without efforts switches thinking on or off. `can_reason` tells whether the model
    reasons at all: if not, there is nothing to do. Raises `UsageError` if the template can do
    neither.
    """
    efforts, has_switch = _EFFORT.findall(source), has_thinking_switch(source)
    if not (efforts or has_switch) and can_reason:
        raise UsageError(
            f"the chat template cannot set reasoning_effort {effort!r:.40}",
            "leave reasoning_effort out: this model always reasons in the same way",
        )
    switch = thinking_variables(effort != "none") if has_switch else {}
    return {**switch, **dict.fromkeys(efforts, effort)}
