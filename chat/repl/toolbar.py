"""The bottom toolbar: model, used context, speed, branch, attachments, title."""

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.utils import get_cwidth

from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.amounts import short_count
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.terminal.status_line import ProgressText


def toolbar(state: ChatState, columns: int) -> StyleAndTextTuples:
    """Return the loading progress, or else the used context, amber from 80 %, red from 95 %.

    In a window of so few columns that not all fits, the name of the model is left out.
    """
    engine, name = state.chat_model.engine, sanitize(state.chat_model.name)
    if engine.info is None and state.chat_model.engine_has_failed:
        return [("", f" {name} · not loaded; the next message tries it again")]
    if engine.info is None:
        progress = engine.progress
        if progress is None:
            return [("", f" {name} · starting")]
        text = ProgressText().of(progress.label, progress.done, progress.total)
        return [("", f" {name} · {sanitize(text)}")]
    size, answer = engine.info.ctx_size_tokens, state.last_answer
    used = state.conversation.context_used
    used = used and min(used, size)  # the context of a longer answer slid
    percent = 0 if used is None else 100 * used // size
    context = "?" if used is None else short_count(used)
    style = "fg:ansired" if percent >= 95 else "fg:ansiyellow" if percent >= 80 else ""
    speed = answer and answer.tokens_per_s
    parts = [
        (style, f"ctx {context}/{short_count(size)} ({percent} %)"),
        ("", f"{speed:.0f} tok/s" if speed else ""),
        ("", _branch(state)),
        ("", _attached(state)),
    ]
    # A long name leaves room for what changes.
    shown = [(style, text) for style, text in parts if text]
    if get_cwidth(" · ".join((name, *(text for _, text in shown)))) < columns:
        shown.insert(0, ("", name))
    title = sanitize(state.conversation.name or state.conversation.title)
    shown += [("", title)] if title else []
    return [part for i, one in enumerate(shown) for part in (("", " · " if i else " "), one)]


def _branch(state: ChatState) -> str:
    """Return which branch of several this is."""
    leaves, tip = state.conversation.branches(), state.conversation.tip
    if tip is None or len(leaves) < 2 or tip not in leaves:
        return ""
    return f"branch {leaves.index(tip) + 1}/{len(leaves)}"


def _attached(state: ChatState) -> str:
    count = len(state.attachments)
    return f"{count} attachment{'' if count == 1 else 's'}" if count else ""
