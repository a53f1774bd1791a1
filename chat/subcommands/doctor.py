"""`swiftchat doctor`: check the requirements for running models on this machine."""

import json as json_module
import shlex
import signal
import subprocess
from typing import Any

import click

from swiftchat.chat.options.completion import complete_models
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import DeviceError, UsageError
from swiftchat.errors.interpreter import child_folder, python_module

_MARKS = {"ok": "ok", "note": "--", "problem": "!!"}
_NUM_MODELS = 3
_TIMEOUT_S = 120  # the driver may hang


@click.command()
@click.option(
    "-m",
    "--model",
    help="Load this model and show what computes each of its parts.",
    shell_complete=complete_models,
)
@click.option(
    "--device", default="auto", help="Exit with code 4 if this device is not usable: cuda, cuda:N."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, model: str | None, device: str, as_json: bool) -> None:
    """Check whether models can run on this machine, on CPU and GPUs.

    With --model show instead how that model runs: its memory, what computes each of its parts, and
    why if that is not the fastest.
    """
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdigit())):
        raise UsageError(f"unknown device {device!r}", "one of auto, cpu, cuda, cuda:0 …")
    if model is not None:
        report = run_model_checks(model, device, as_json)
        print(json_module.dumps(report, indent=2) if as_json else table(report["checks"]))
        return
    report = run_checks()
    report["checks"].append(_check_models())
    usable = report["usable_gpus"]
    is_usable = int(index) in usable if index else bool(usable)
    can_run = report["can_chat"] and (kind != "cuda" or is_usable)
    if as_json:
        print(json_module.dumps(report, indent=2))
    else:
        print(f"{verdict(report, device, can_run)}\n\n{table(report['checks'])}")
    ctx.exit(0 if can_run else DeviceError.exit_code)


def run_checks() -> dict[str, Any]:
    """Return the report of `swiftchat.engine.doctor`.

    Raises `DeviceError` if its process fails or hangs.
    """
    return _run("checking the GPU", _TIMEOUT_S)


def run_model_checks(model: str, device: str, as_json: bool) -> dict[str, Any]:
    """Return the checks of a model; raises the error why it cannot run."""
    from swiftchat.chat.model.find import find_model
    from swiftchat.engine.api.protocol import error_from

    path = find_model(model, offline=False, quiet=as_json)
    report = _run("loading the model", None, "--model", str(path), "--device", device)
    if report.get("type") == "error":
        raise error_from(report)
    return report


def _check_models() -> dict[str, str]:
    """Return the row with the best known models that fit this machine."""
    from swiftchat.chat.model.bandwidth import bandwidth_bytes_per_s
    from swiftchat.chat.model.fit import fits, usable_devices
    from swiftchat.chat.terminal.amounts import format_bytes

    device, *_ = usable_devices()
    fitting = [
        fit for fit in fits([device], bandwidth_bytes_per_s(device)) if not fit.missing_bytes
    ]
    best = [
        f"{fit.name} ({format_bytes(fit.form.size_bytes)}, {fit.verdict})"
        for fit in fitting[:_NUM_MODELS]
    ]
    first = f"{len(fitting)} known models fit in the memory of {device.name}, the best first:"
    text = "\n".join([first, *best, "swiftchat models lists them, swiftchat use NAME takes one"])
    return {"name": "models", "state": "ok" if best else "note", "text": text, "hint": ""}


def _run(what: str, timeout_s: float | None, *arguments: str) -> dict[str, Any]:
    """Run `swiftchat.engine.doctor` and return its JSON.

    It has a process of its own, which imports torch and may crash with the driver.
    """
    command = python_module("swiftchat.engine.doctor", *arguments)
    try:
        done = subprocess.run(
            command,
            cwd=child_folder(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{what} took more than {timeout_s} s",
            "the driver may hang: try nvidia-smi, then restart the machine",
        ) from None
    if done.returncode != 0:
        status = done.returncode
        how = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"{status}"
        stderr = done.stderr.decode(errors="replace").strip().splitlines()
        last_line = f": {stderr[-1]}" if stderr else ""
        raise DeviceError(
            f"the checks ended with {how}{last_line}",
            f"for the whole output run: {shlex.join(command)}",
        )
    report: dict[str, Any] = json_module.loads(done.stdout)
    return report


def table(checks: list[dict[str, str]]) -> str:
    """Return rows of mark, name and text; the hint follows a check that is not ok."""
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
    """Return the first line of the output: the devices that a chat can use."""
    if not report["can_chat"]:
        return "No device can run a chat."
    places = [f"cuda:{i}" for i in report["usable_gpus"]] + ["cpu"]
    refusal = "" if can_run else f"{device} is not usable. "
    return f"{refusal}A chat can run on: {', '.join(places)}"
