"""`swiftchat sessions`: manage saved conversations."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from swiftchat.chat.attachments.user_text import read_content
from swiftchat.chat.history.conversation import SHORT_ID
from swiftchat.chat.history.listing import Column, format_time, print_found, print_table
from swiftchat.chat.history.store import open_store
from swiftchat.chat.history.transcript import as_json as as_json_text
from swiftchat.chat.history.transcript import as_markdown, write_file
from swiftchat.chat.options.completion import complete_sessions
from swiftchat.chat.options.duration import Duration
from swiftchat.chat.options.option_types import UserPath, Whole
from swiftchat.chat.render.export import FORMATS, format_of
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.engine.api.kv_folder import KVFolder, user_kv_folder
from swiftchat.errors import SwiftchatError, UsageError

_COLUMNS = (
    Column("ID"),
    Column("USED", left_out=3),
    Column("MESSAGES", left_out=1),
    Column("MODEL", left_out=2, is_shortened=True),
    Column("TITLE", is_shortened=True),
)
_MOST = Whole(1, 10**6)
_MAX_NOTES = 20  # of a file that is imported
_NO_SESSIONS = "no saved chats; they are saved automatically"
_ALL = click.option("--all", "with_one_shots", is_flag=True, help="Also one-shots (-p, pipes).")


@click.group(invoke_without_command=True)
@_ALL
@click.pass_context
def sessions(ctx: click.Context, with_one_shots: bool) -> None:
    """List, show, search, export, import and remove saved conversations.

    ID is the beginning of a conversation's id, or its name (/save NAME). `swiftchat --session ID`
    continues a conversation, `swiftchat -c` the last chat.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_sessions, with_one_shots=with_one_shots)
    elif with_one_shots:
        raise UsageError(
            f"--all is not an option of sessions {ctx.invoked_subcommand}",
            "swiftchat sessions --all",
        )


@sessions.command(name="list")
@click.option("-n", "--most", type=_MOST, help="Show at most this many.")
@_ALL
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_sessions(most: int | None, with_one_shots: bool, as_json: bool) -> None:
    """List chats, most recently used first; with --all one-shots, too."""
    with open_store() as store:
        rows = store.recent(-1 if most is None else most, with_one_shots=with_one_shots)
        num_hidden = 0 if with_one_shots else store.num_one_shots()
    if as_json:
        _print_json(rows)
        return
    if rows:
        _print_rows(rows)
    else:
        print_notice(_NO_SESSIONS)
    if num_hidden:
        print_notice(f"one-shots that are not listed: {num_hidden}; swiftchat sessions --all")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    print_table(
        _COLUMNS,
        (
            (
                row["id"][:SHORT_ID],
                format_time(row["updated"]),
                str(row["num_messages"]),
                Path(row["model"] or "–").name,
                row["name"] or row["title"],
            )
            for row in rows
        ),
    )


@sessions.command()
@click.argument("id_or_name", metavar="ID", shell_complete=complete_sessions)
@click.option("--json", "as_json", is_flag=True, help="Print all branches as JSON.")
def show(id_or_name: str, as_json: bool) -> None:
    """Print a conversation."""
    with open_store() as store:
        conversation = store.load(store.find(id_or_name))
    print(as_json_text(conversation) if as_json else sanitize(as_markdown(conversation)), end="")
    if conversation.is_taken_back and not as_json:
        print_notice(
            f"all turns were taken back; swiftchat --session {conversation.id[:SHORT_ID]}, then "
            "/branches and /switch N"
        )


@sessions.command()
@click.argument("words", nargs=-1, required=True)
@click.option(
    "-n", "--most", type=_MOST, default=50, show_default=True, help="Show at most this many."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def search(words: tuple[str, ...], most: int, as_json: bool) -> None:
    """Find messages, names and titles that contain all words or word parts, in any case."""
    with open_store() as store:
        found = store.search(" ".join(words), most)
    if as_json:
        _print_json([vars(one) for one in found])
    elif not found:
        print_notice("no matches")
    for one in () if as_json else found:
        print_found(one)


@sessions.command()
@click.argument("id_or_name", metavar="ID", shell_complete=complete_sessions)
@click.argument("file", type=UserPath(), default="-")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(tuple(FORMATS)),
    help="Format; default: from the name of FILE.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def export(id_or_name: str, file: str, file_format: str | None, force: bool) -> None:
    """Write a conversation to FILE.md, FILE.html, FILE.json or stdout.

    Markdown and HTML have the current branch, JSON all branches.
    """
    file_format = file_format or format_of(file) or "md"
    with open_store() as store:
        conversation = store.load(store.find(id_or_name))
    text = FORMATS[file_format](conversation)
    if file == "-":
        print(sanitize(text) if sys.stdout.isatty() else text, end="")
    else:
        write_file(file, text, force=force)


@sessions.command(name="import")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=UserPath())
@click.pass_context
def import_sessions(ctx: click.Context, files: tuple[str, ...]) -> None:
    """Import conversations: exported JSON, ChatGPT's conversations.json or zip, messages.

    What cannot be imported is left out and named. FILE - is stdin.
    """
    errors = []
    for file in files:
        try:
            _import(file)
        except SwiftchatError as error:
            if len(files) == 1:
                raise
            errors.append(print_error(error, debug=False))
    if errors:
        ctx.exit(errors[0])


def _import(file: str) -> None:
    from swiftchat.chat.history.importer import MAX_BYTES, import_conversations
    from swiftchat.chat.options.chat_options import saved_settings
    from swiftchat.chat.options.imported_settings import imported_settings
    from swiftchat.weights.store import default_store

    notes: list[str] = []
    models = default_store()
    found = import_conversations(read_content(file, MAX_BYTES), file, notes.append)
    with open_store() as store:
        for conversation in found:
            conversation.settings, problems = saved_settings(conversation.settings)
            conversation.settings, left_out = imported_settings(conversation.settings, models)
            notes += (
                f"{file}: a setting of {conversation.title!r}: {one}"
                for one in (*problems, *left_out)
            )
            store.save(conversation)
            print(f"{conversation.id[:SHORT_ID]}  {sanitize(conversation.title)}")
    for note in notes[:_MAX_NOTES]:
        print_notice(f"warning: left out: {note}")
    if len(notes) > _MAX_NOTES:
        print_notice(f"warning: left out: {len(notes) - _MAX_NOTES} more")


@sessions.command()
@click.argument(
    "id_or_name", metavar="ID…", nargs=-1, required=True, shell_complete=complete_sessions
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def rm(id_or_name: tuple[str, ...], yes: bool) -> None:
    """Delete conversations permanently."""
    with open_store() as store:
        ids = list(dict.fromkeys(store.find(one) for one in id_or_name))
        rows = store.recent(with_one_shots=True)
        titles = {row["id"]: row["name"] or row["title"] for row in rows}
        _confirm("rm", f"remove {', '.join(repr(titles[one]) for one in ids)}?", yes)
        store.remove(*ids)
    for one in ids:
        print_notice(f"removed {one[:SHORT_ID]} {titles[one]}")
    _mention_cache()


@sessions.command()
@click.option(
    "--older-than",
    type=Duration(),
    help="Conversations that were not used for this time: 12h, 90d.",
)
@click.option("--one-shots", is_flag=True, help="One-shots: answers to -p and pipes.")
@click.option("--dry-run", is_flag=True, help="List the conversations, and delete none.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def prune(older_than: float | None, one_shots: bool, dry_run: bool, yes: bool) -> None:
    """Delete old conversations permanently; with both options those that match both."""
    if older_than is None and not one_shots:
        raise UsageError(
            "prune needs --older-than or --one-shots", "swiftchat sessions prune --older-than 90d"
        )
    with open_store() as store:
        rows = [
            row
            for row in store.recent(with_one_shots=True)
            if (older_than is None or row["updated"] < time.time() - older_than)
            and (not one_shots or row["is_one_shot"])
        ]
        if not rows:
            print_notice("no conversation matches")
            return
        if dry_run or not yes:
            _print_rows(rows)
        if dry_run:
            return
        count = f"{len(rows)} conversation{'' if len(rows) == 1 else 's'}"
        _confirm("prune", f"remove {'these ' if len(rows) > 1 else 'this '}{count}?", yes)
        store.remove(*(row["id"] for row in rows))
    print_notice(f"removed {count}")
    _mention_cache()


def _mention_cache() -> None:
    """Say that keys and values of removed conversations may be on the disk."""
    if KVFolder(user_kv_folder()).files():
        hint = "swiftchat cache clear removes their keys and values, too"
        print_notice(hint)


def _confirm(command: str, question: str, yes: bool) -> None:
    """Ask unless `yes`; end the program at no. Raises `UsageError` without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{command} asks for confirmation, but stdin is not a terminal", "use -y")
    click.confirm(sanitize(question), abort=True, err=True)


def _print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=1))
