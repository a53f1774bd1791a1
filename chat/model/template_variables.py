"""Variables with which a chat template switches the model's reasoning."""

import re
from typing import Any

from swiftchat.errors import UsageError

# `enable_thinking` in Qwen3, SmolLM3, GLM-4.5 and Gemma 4, `thinking` in DeepSeek-V3.1 and Granite.
_SWITCHES = ("enable_thinking", "thinking")
# A variable, not the attribute or key of a message. `reasoning` in GigaChat 3.5; other templates
# have variables of their own with this name, which they do not test.
_SWITCH = re.compile(r"(?<![.\w'\"])(?:(?:enable_)?thinking\b|reasoning(?= is (?:not )?defined))")
# `reasoning_effort` in gpt-oss, Solar Open and Hy3, `thinking_effort` in Kimi K3,
# `reasoning_strength` in Muse Glimmer.
_EFFORT = re.compile(r"(?<![.\w'\"])(?:(?:reasoning|thinking)_effort|reasoning_strength)\b")


# What `--think` takes besides `auto`, which leaves the choice to the template.
LEVELS = ("on", "off", "low", "medium", "high", "max")
_MAX = re.compile("""['"]max['"]""")


def thinking_levels(source: str) -> list[str]:
    """Return those of `LEVELS` that a chat template can set: by a switch, by an effort, or both."""
    found = ["on", "off"] if _SWITCH.search(source) else []
    if _EFFORT.search(source):
        found += ["low", "medium", "high", *(["max"] if _MAX.search(source) else [])]
    return found


def thinking_variables(level: str, source: str) -> dict[str, Any]:
    """Return the variables of a chat template for one of `LEVELS`.

    `on` and `off` have no effect where there is no switch, as in a role for several models. Raises
    `UsageError` for another level that the template cannot set.
    """
    if level in ("on", "off"):
        return _switches(source, level == "on")
    levels = thinking_levels(source)
    if level not in levels:
        raise unknown_level(level, levels)
    return effort_variables(level, source)


def unknown_level(level: str, levels: list[str]) -> UsageError:
    """Return the error for a level of thinking that the template cannot set."""
    if not levels:
        return UsageError(
            f"the model's chat template cannot set thinking to {level}",
            "/think auto: this model always thinks or never does",
        )
    known = ", ".join(levels)
    return UsageError(
        f"the model's chat template cannot set thinking to {level}, only to {known}",
        f"/think {levels[-1]}, or --think {levels[-1]}",
    )


def effort_variables(effort: str, source: str) -> dict[str, Any]:
    """Return the variables for a reasoning effort, of which `none` means no reasoning.

    A template without efforts switches thinking on or off. There are none if it can do neither.
    """
    switch = _switches(source, effort != "none") if _SWITCH.search(source) else {}
    return {**switch, **dict.fromkeys(_EFFORT.findall(source), effort)}


def _switches(source: str, is_on: bool) -> dict[str, bool]:
    return dict.fromkeys((*_SWITCHES, *_SWITCH.findall(source)), is_on)
