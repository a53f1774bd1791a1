"""`swiftchat doctor`: what running on a GPU needs, what is here, and what to do about the rest."""

import json as json_module
import signal
import subprocess
import sys
from typing import Any

import click

from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import DeviceError, UsageError

_MARKS = {"ok": "ok", "note": "--", "problem": "!!"}
_TIMEOUT_S = 120  # a driver that hangs never answers


@click.command()
@click.option("--device", default="auto", help="Exit code 4 if this cannot be used: cuda, cuda:N.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def doctor(ctx: click.Context, device: str, as_json: bool) -> None:
    """Look whether models can run here, and what is missing for a GPU."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdigit())):
        raise UsageError(f"unknown device {device!r}", "one of auto, cpu, cuda, cuda:0 …")
    report = examine()
    print(json_module.dumps(report, indent=2) if as_json else table(report["checks"]))
    usable = report["usable_gpus"]
    wanted = int(index) in usable if index else bool(usable)
    can_run = report["can_chat"] and (kind != "cuda" or wanted)
    if not as_json:
        print(verdict(report, device, can_run))
    ctx.exit(0 if can_run else DeviceError.exit_code)


def examine() -> dict[str, Any]:
    """The report of `swiftchat.engine.doctor`, made by a process that may import torch, and die."""
    command = [sys.executable, "-m", "swiftchat.engine.doctor"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"looking at the GPU took more than {_TIMEOUT_S} s",
            "the driver may hang: try nvidia-smi, and start the machine anew",
        ) from None
    if done.returncode != 0:
        status = done.returncode
        how = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"{status}"
        words = done.stderr.decode(errors="replace").strip().splitlines()
        last = f": {words[-1]}" if words else ""
        raise DeviceError(
            f"looking at this machine ended with {how}{last}",
            f"to see all of it: {' '.join(command)}",
        )
    report: dict[str, Any] = json_module.loads(done.stdout)
    return report


def table(checks: list[dict[str, str]]) -> str:
    """Rows of mark, name and text; under what is not well, the hint."""
    width = max(len(check["name"]) for check in checks)
    lines = []
    for check in checks:
        first, *more = check["text"].split("\n")
        lines.append(f"{_MARKS[check['state']]}  {check['name']:{width}}  {sanitize(first)}")
        lines += [f"    {'':{width}}  {sanitize(line)}" for line in more]
        if check["hint"]:
            lines.append(f"    {'':{width}}  hint: {sanitize(check['hint'])}")
    return "\n".join(lines)


def verdict(report: dict[str, Any], device: str, can_run: bool) -> str:
    """The last line: on what a chat can run."""
    if not report["can_chat"]:
        return "No chat can run here."
    places = [f"cuda:{i}" for i in report["usable_gpus"]] + ["cpu"]
    refusal = "" if can_run else f"{device} cannot be used. "
    return f"{refusal}A chat can run on: {', '.join(places)}"
