"""Names of models on the hub as people type them, and of the GGUF files in a repository."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

_SITE = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_VIEWS = ("resolve", "blob", "tree")  # before the revision in an address
_GGUF = ".gguf"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_TYPE = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q[1-8]_\w+|I?Q[1-8]|TQ[12]_0|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))$",
    re.IGNORECASE,
)
# Files beside a model: its vision part, a prediction head, and what it was quantized with.
_IMAGE_PART = re.compile("mmproj", re.IGNORECASE)
_BESIDE = re.compile(f"{_IMAGE_PART.pattern}|imatrix|^mtp-", re.IGNORECASE)
_IMAGE_PART_TYPES = ("F16", "BF16", "Q8_0", "F32")  # the first published one is downloaded
_UNSLOTH = "UD-"  # before a type: its mix of Unsloth
_DOES_NOT_RUN = re.compile(r"IQ[123]_|NVFP4", re.IGNORECASE)
# What a form means in a repository of GGUF files: the first of the types that it has.
_FORM_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "4bit": ("Q4_K_M", "UD-Q4_K_M", "UD-Q4_K_XL", "MXFP4", "Q4_K_S", "Q4_0", "IQ4_XS"),
        "8bit": ("Q8_0", "UD-Q8_K_XL"),
        "16bit": ("BF16", "F16"),
    }
)
QUANTIZED_FORMS = ("4bit", "8bit")
"""What a model of safetensors is quantized to while it is downloaded: OWNER/NAME:4bit."""
# The type that is downloaded where none is named: about 4.5 bits for each weight, or more.
_USUAL_TYPES = ("Q4_K_M", "UD-Q4_K_M", "UD-Q4_K_XL", "MXFP4", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")


@dataclass(frozen=True)
class HubName:
    """What a typed name means: `repo` is OWNER/NAME, or the whole name if it has another form.

    `quantization` is the type of GGUF files after a colon, or a form such as 4bit; `file` is one
    file of the repository.
    """

    repo: str
    quantization: str | None = None
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse OWNER/NAME[:TYPE], OWNER/NAME/FILE.gguf, and both as an address of the hub."""
        site = _SITE.match(name)
        rest = name[site.end() :].partition("?")[0].rstrip("/") if site else name
        owner, _, more = rest.partition("/")
        last, *path = more.split("/")
        repo, _, quantization = last.partition(":")
        revision = None
        if site and len(path) > 1 and path[0] in _VIEWS:
            revision, path = path[1], path[2:]
        file = "/".join(path) or None
        if not owner or not repo or (file and not (site or file.lower().endswith(_GGUF))):
            return cls(name)
        return cls(f"{owner}/{repo}", quantization or None, revision, file)

    @property
    def model(self) -> str:
        """The name of the stored model: with the type of its GGUF files."""
        quantization = self.quantization
        if quantization is None and self.file is not None:
            found = _type_of(_stem(self.file))
            quantization = _base(_stem(self.file)) if found is None else found
        return self.repo if quantization is None else f"{self.repo}:{quantization}"


def gguf_models(names: Iterable[str], *, with_incomplete: bool = False) -> dict[str, list[str]]:
    """Return the GGUF files of each complete model among the files `names`, by type, sorted.

    The key is the type, such as Q4_K_M; the file's name without its ending where that does not
    tell models apart, and "" for the only model without a type.
    """
    parts: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(_GGUF) and not _BESIDE.search(_base(name)):
            parts.setdefault(_stem(name), []).append(name)
    complete = {
        stem: files for stem, files in parts.items() if with_incomplete or _is_complete(files)
    }
    types = {stem: _type_of(stem) for stem in complete}
    if list(types.values()) == [None]:
        types = dict.fromkeys(types, "")
    found = list(types.values())
    models = {
        _base(stem) if kind is None or found.count(kind) > 1 else kind: complete[stem]
        for stem, kind in types.items()
    }
    return dict(sorted(models.items()))


def image_parts(names: Iterable[str]) -> list[str]:
    """Return the GGUF files among `names` that hold the vision or audio part of a model, sorted."""
    return sorted(
        name for name in names if name.lower().endswith(_GGUF) and _IMAGE_PART.search(_base(name))
    )


def usual_image_part(names: Iterable[str]) -> str | None:
    """Return the one of `image_parts` to download: F16, or the type near it; None without any."""
    parts = image_parts(names)
    by_type = {_type_of(_stem(name)): name for name in reversed(parts)}
    published = (by_type[kind] for kind in _IMAGE_PART_TYPES if kind in by_type)
    return next(published, parts[0] if parts else None)


def runs(kind: str) -> bool:
    """Return whether models of this GGUF type can run here."""
    return not _DOES_NOT_RUN.search(kind)


def matching_type(wanted: str, kinds: Iterable[str]) -> str | None:
    """Return the one of `kinds` that `wanted` names, ignoring case; else Unsloth's mix of it.

    A form names the type that has about its bits.
    """
    by_name = {kind.lower(): kind for kind in kinds if kind}
    meant = (wanted, f"{_UNSLOTH}{wanted}", *_FORM_TYPES.get(wanted.lower(), ()))
    return next((by_name[name.lower()] for name in meant if name.lower() in by_name), None)


def usual_type(sizes: Mapping[str, int]) -> str:
    """Return the type to download where none is named: Q4_K_M or one near it, else the smallest.

    `sizes` are the bytes of the models by type. Of types that run, if there are any.
    """
    running = {kind: size for kind, size in sizes.items() if runs(kind)} or sizes
    found = [kind for kind in _USUAL_TYPES if kind in running]
    return found[0] if found else min(running, key=lambda kind: running[kind])


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _stem(name: str) -> str:
    return _SHARD.sub("", name[: -len(_GGUF)])


def _type_of(stem: str) -> str | None:
    found = _TYPE.search(_base(stem))
    return found[1].upper() if found else None


def _is_complete(files: list[str]) -> bool:
    shard = _SHARD.search(files[0][: -len(_GGUF)])
    return shard is None or len(files) == int(shard[2])
