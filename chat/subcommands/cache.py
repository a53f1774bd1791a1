"""`swiftchat cache`: the KV caches of conversations and the indexes of knowledge on the disk."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from swiftchat.chat.history.listing import Column, format_time, print_table
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.output import print_notice
from swiftchat.engine.api.kv_folder import KVFolder, user_kv_folder

_COLUMNS = (
    Column("MODEL", is_shortened=True),
    Column("TYPE", left_out=1),
    Column("USED", left_out=2),
    Column("TOKENS", left_out=3),
    Column("SIZE"),
)


@click.group(invoke_without_command=True)
@click.pass_context
def cache(ctx: click.Context) -> None:
    """List or clear the keys and values of conversations on the disk.

    They make `swiftchat -c` and --session fast, and contain what the conversations contained.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_caches)


@cache.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_caches(as_json: bool) -> None:
    """List the caches by model, the one used last first."""
    folder = KVFolder(user_kv_folder())
    entries = folder.entries()
    if as_json:
        print(json.dumps([asdict(one) for one in entries], indent=2))
        return
    if not entries:
        print_notice("no KV cache is on the disk; chats write one while the engine is idle")
        return
    print_table(
        _COLUMNS,
        (
            (
                Path(one.model).name,
                one.dtype,
                format_time(one.used),
                str(one.num_tokens),
                format_bytes(one.size_bytes),
            )
            for one in entries
        ),
    )
    total = sum(one.size_bytes for one in entries)
    print_notice(f"{format_bytes(total)} in {folder.path}; swiftchat cache clear removes it")


@cache.command()
def clear() -> None:
    """Remove all caches; conversations stay, and are computed again when they continue.

    The indexes of --knowledge are removed, too, and made again when they are used.
    """
    from swiftchat.chat.knowledge.index import clear_indexes

    removed = [KVFolder(user_kv_folder()).clear(), clear_indexes()]
    num_files, num_bytes = (sum(counts) for counts in zip(*removed, strict=True))
    print_notice(f"removed {num_files} files, {format_bytes(num_bytes)}")
