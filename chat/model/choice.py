"""The choice of a model in a terminal: of the installed ones and of those that fit this machine."""

from swiftchat.chat.model.bandwidth import bandwidth_bytes_per_s
from swiftchat.chat.model.default_model import set_default_model
from swiftchat.chat.model.find import download_model
from swiftchat.chat.model.fit import fits, usable_devices
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.picker import Row, pick
from swiftchat.weights.hub.known_models import short_name_of
from swiftchat.weights.store import default_store


def pick_model(title: str, *, is_redrawn: bool) -> str | None:
    """Return the model that the user picks, downloaded if it was missing; None for none.

    Without `is_redrawn` the rows are numbered, as `picker.pick` does.
    """
    rows = _rows()
    picked = pick(title, rows, is_redrawn=is_redrawn) if rows else None
    if picked is None:
        return None
    if not default_store().has(picked.name):
        download_model(picked.name)
    return picked.name


def pick_first_model(*, is_redrawn: bool) -> str | None:
    """Return the model that the user picks, which becomes the default; None for none."""
    name = pick_model("Which model? The best for this machine comes first", is_redrawn=is_redrawn)
    if name is not None:
        use_model(name)
    return name


def use_model(name: str) -> None:
    """Make a model the default, and say so."""
    path = set_default_model(name)
    print_notice(f"{name} is the default model now ({path})")


def _rows() -> list[Row]:
    """Return the installed models, and those that fit this machine, the best first."""
    device, *_ = usable_devices()
    found = fits([device], bandwidth_bytes_per_s(device))
    installed = {short_name_of(one.name) or one.name: one for one in default_store().list()}
    rows = [
        Row(name, f"{format_bytes(one.size_bytes)}, installed") for name, one in installed.items()
    ]
    for fit in found:
        if fit.name not in installed and not fit.missing_bytes:
            about = (format_bytes(fit.form.size_bytes), fit.verdict, fit.model.abilities)
            rows.append(Row(fit.name, ", ".join(filter(None, about))))
    return rows
