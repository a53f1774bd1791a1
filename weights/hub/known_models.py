"""Well-known models: short names, published files, sizes. The table is `models.csv`.

A table of the same form, in the cache folder, has what the hub was asked for since.
"""

import contextlib
import csv
import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import platformdirs

from swiftchat.errors import FileSystemError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_FORM = re.compile(r":(?=\d+bit$)")
_TABLE = Path(__file__).with_name("models.csv")
# The files of a repository of GGUF files that a form means, and about the bits that a weight takes.
_GGUF_TYPES: Mapping[int, str] = MappingProxyType({4: "Q4_K_M", 8: "Q8_0"})
_BITS_PER_WEIGHT: Mapping[int, float] = MappingProxyType({4: 4.9, 8: 8.5, 16: 16.0, 32: 32.0})


@dataclass(frozen=True)
class Form:
    """Published files of a known model, with about `bits` bits for each weight.

    `name` is a short name, `source` what it means: OWNER/NAME[:TYPE] on the hub, where the type
    4bit or 8bit says that the weights are quantized while they are downloaded. `size_bytes` is
    about that of the files, `bytes_per_token` those that are read for each token of an answer.
    """

    name: str
    source: str
    bits: int
    size_bytes: int
    bytes_per_token: int


@dataclass(frozen=True)
class KnownModel:
    """A row of the table.

    `forms` begin with the one that `name` means: the 4-bit files where they are published.
    `kv_bytes_per_token` are 16-bit keys and values; `date` is the month of the publication.
    """

    name: str
    forms: tuple[Form, ...]
    architecture: str
    parameters: float
    active_parameters: float
    kv_bytes_per_token: int
    context_tokens: int
    has_tools: bool
    has_thinking: bool
    license: str
    date: str

    @property
    def abilities(self) -> str:
        """What a chat can use of the model: tools and thinking."""
        found = [("tools", self.has_tools), ("thinking", self.has_thinking)]
        return ", ".join(name for name, has in found if has)


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Return the table by short name in lower case."""
    return MappingProxyType(_read_table(_TABLE))


def new_models() -> Mapping[str, KnownModel]:
    """Return the models that `keep_new_models` has kept, by OWNER/NAME; none of a damaged file."""
    with contextlib.suppress(OSError, ArithmeticError, KeyError, TypeError, ValueError, csv.Error):
        return _read_table(_new_table())
    return {}


def new_models_time() -> float | None:
    """Return when the hub was asked, in seconds since 1970; None if it never was."""
    try:
        return _new_table().stat().st_mtime
    except OSError:
        return None


def keep_new_models(rows: Sequence[Mapping[str, str]]) -> None:
    """Replace the models beyond the table. Rows have its columns, without `gguf`, and the size.

    Raises `FileSystemError`.
    """
    path = _new_table()
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else ["name"])
            writer.writeheader()
            writer.writerows(rows)
        new.replace(path)
    except OSError as error:
        raise FileSystemError(f"cannot write {path}: {error.strerror}") from error


def _new_table() -> Path:
    return platformdirs.user_cache_path("swiftchat") / "new-models.csv"


def _read_table(path: Path) -> dict[str, KnownModel]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: _model(row) for row in csv.DictReader(file)}


def _model(row: Mapping[str, str]) -> KnownModel:
    return KnownModel(
        row["name"],
        tuple(_forms(row)),
        row["architecture"],
        float(row["parameters"]) * 1e9,
        float(row["active"]) * 1e9,
        int(row["kv_bytes"]),
        int(row["context"]),
        row["tools"] == "yes",
        row["thinking"] == "yes",
        row["license"],
        row["date"],
    )


def _forms(row: Mapping[str, str]) -> Iterable[Form]:
    """Yield the forms, the smallest first; the GGUF file counts where the original has its size.

    Forms that are not published, and are quantized while they are downloaded, come last.
    """
    if "size_bytes" in row:  # one form, whose files were seen
        size_bytes = int(row["size_bytes"])
        read_bytes = int(size_bytes * float(row["active"]) / float(row["parameters"]))
        yield Form(row["name"], row["repository"], int(row["bits"]), size_bytes, read_bytes)
        return
    sources = {int(row["bits"]): row["repository"]}
    if row["gguf"]:
        sources |= {bits: f"{row['gguf']}:{kind}" for bits, kind in _GGUF_TYPES.items()}
        sources = dict(sorted(sources.items()))
    elif row["bits"] == "16":
        sources |= {bits: f"{row['repository']}:{bits}bit" for bits in (4, 8)}
    for bits, source in sources.items():
        weight_bytes = _BITS_PER_WEIGHT[bits] / 8
        size_bytes, read_bytes = (
            int(float(row[column]) * 1e9 * weight_bytes) for column in ("parameters", "active")
        )
        yield Form(f"{row['name']}-{bits}bit", source, bits, size_bytes, read_bytes)


@cache
def _forms_by_name() -> Mapping[str, tuple[Form, ...]]:
    found: dict[str, tuple[Form, ...]] = {}
    for name, model in known_models().items():
        found[name] = model.forms
        found |= {form.name: (form,) for form in model.forms}
    return MappingProxyType(found)


@cache
def _short_names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for name, forms in _forms_by_name().items():  # the name of the model before those of its forms
        names.setdefault(forms[0].source.lower(), name)
    return MappingProxyType(names)


def sources_of(name: str) -> tuple[str, ...]:
    """Return what a short name means, as OWNER/NAME[:TYPE] on the hub; ignores case.

    The first is what is downloaded, the others are further forms of the model. Empty for a name
    that is none. A form may follow a colon, too: qwen3:8b:4bit is qwen3:8b-4bit.
    """
    known = _FORM.sub("-", name.lower())
    return tuple(form.source for form in _forms_by_name().get(known, ()))


def short_name_of(source: str) -> str | None:
    """Return the short name of the model OWNER/NAME[:TYPE] on the hub, ignoring case."""
    return _short_names().get(source.lower().replace(":ud-", ":"))


def short_names() -> list[str]:
    """Return the short name of every model, without those of its forms."""
    return list(known_models())


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to six `known` names: other sizes of the family, then similar spellings."""
    # Truncated: matching time grows with the square of the length.
    lowered = {other.lower(): other for other in known}
    wanted = name[:100].lower()
    family = wanted.partition(":")[0]
    same = [other for other in lowered if other.partition(":")[0] == family]
    close = difflib.get_close_matches(wanted, lowered, n=3, cutoff=0.6)
    return [lowered[other] for other in dict.fromkeys([*same, *close])][:6]
