"""The bottom toolbar: model, used context, speed, title."""

from prompt_toolkit.formatted_text import StyleAndTextTuples

from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.sanitize import sanitize


def toolbar(state: ChatState) -> StyleAndTextTuples:
    """Return the loading progress, or else the used context, amber from 80 %, red from 95 %."""
    engine, name = state.chat_model.engine, sanitize(state.chat_model.name)
    if engine.info is None and state.chat_model.engine_has_failed:
        return [("", f" {name} · not loaded; the next message tries it again")]
    if engine.info is None:
        progress = engine.progress
        if progress is None:
            return [("", f" {name} · starting")]
        percent = 100 * progress.done // max(1, progress.total)
        return [("", f" {name} · {sanitize(progress.label)} {percent} %")]
    size, answer = engine.info.ctx_size_tokens, state.last_answer
    used = state.conversation.context_used
    used = used and min(used, size)  # the context of a longer answer slid
    percent = 0 if used is None else 100 * used // size
    context = "?" if used is None else _thousands(used)
    style = "fg:ansired" if percent >= 95 else "fg:ansiyellow" if percent >= 80 else ""
    speed = answer and answer.tokens_per_s
    title = state.conversation.name or state.conversation.title
    return [
        ("", f" {name} · "),
        (style, f"ctx {context}/{_thousands(size)} ({percent} %)"),
        ("", f" · {speed:.0f} tok/s" if speed else ""),
        ("", f" · {sanitize(title)}" if title else ""),
    ]


def _thousands(num_tokens: int) -> str:
    return str(num_tokens) if num_tokens < 1000 else f"{num_tokens / 1000:.1f}k"
