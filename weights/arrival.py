"""A model of the hub that is quantized while it is downloaded, one weight file at a time.

The result is that of `convert --quantize` of the downloaded model, byte for byte. At most the
result and the largest weight file are on the disk.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.tensors import tensor_name
from swiftchat.weights.convert.conversion import SAMPLE_BYTES, Conversion
from swiftchat.weights.convert.journal import Journal
from swiftchat.weights.files.disk import (
    Progress,
    as_file_system_error,
    flush_files,
    require_space,
)
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.files.reading import encode_json, read_json
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.formats.weight_files import SAFETENSORS_INDEX
from swiftchat.weights.hub.blobs import Blobs
from swiftchat.weights.hub.client import Hub
from swiftchat.weights.hub.listing import HubFile, Listing
from swiftchat.weights.hub.skeleton import fill_skeleton, write_skeleton
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.quantization.settings_files import SETTINGS_FILES, split_settings
from swiftchat.weights.sources import huggingface
from swiftchat.weights.sources.plan import Arrival

_SCHEMES: Mapping[str, str] = MappingProxyType({"4bit": "int4", "8bit": "int8"})
_SETTINGS = ("config.json", SAFETENSORS_INDEX, *SETTINGS_FILES)
_MAX_SETTINGS_BYTES = 16 * 1024 * 1024  # as of an index in a download
_NUM_CONNECTIONS = 8
_VERSION = 1  # raised when the same weights are written differently


@dataclass(frozen=True)
class ArrivalSizes:
    """Bytes of the result, of what must be downloaded, in all and still, and of free disk space.

    `has_changed` says that an interrupted download was of other weights and starts again.
    """

    result_bytes: int
    source_bytes: int
    missing_bytes: int
    needed_bytes: int
    has_changed: bool


@dataclass(frozen=True)
class ArrivingModel:
    """The model `name`: `files` of a repository, quantized as `form` says: 4bit or 8bit.

    `cached` are the files that a plain download has stored. `destination` is the model directory
    to make, `work` the folder that keeps what an interrupted run has done:

        source/     the small files; the weight files: links to what has arrived, or to skeletons
        skeletons/  weight files that consist of their ends and a hole
        blobs/      files that arrive, and those that have
        result/     what is written; `journal` has its tensors
        identity    what it is made of
    """

    name: str
    form: str
    hub: Hub
    listing: Listing
    files: Sequence[HubFile]
    cached: Blobs
    destination: Path
    work: Path

    def sizes(self) -> ArrivalSizes:
        """Read the headers of the weight files and return what a run would need; changes nothing.

        Of a model that is complete, only the size. Raises `BadModelFile` for one that cannot be
        quantized like this.
        """
        if self.destination.exists():
            files = filter(Path.is_file, self.destination.rglob("*"))
            return ArrivalSizes(sum(file.stat().st_size for file in files), 0, 0, 0, False)
        if not self._weight_files:
            raise self._refused("its weights are pickled files (.bin)")
        if "config.json" not in self.listing.files:
            raise BadModelFile(f"{self.listing.repo} has no config.json", "use another model")
        with (
            as_file_system_error(Path(tempfile.gettempdir(), "swiftchat"), self._largest_bytes),
            tempfile.TemporaryDirectory(prefix="swiftchat-") as folder,
        ):
            source = Path(folder).resolve()
            try:
                return self._sizes(self._outline(source))
            except BadModelFile as error:  # what it says is of the files on the hub
                message = error.message.replace(str(source), self.listing.repo)
                raise type(error)(message, error.hint) from error

    def run(self, progress: Progress | None) -> Path:
        """Make the model directory and return it; goes on where an interrupted run has stopped.

        Raises the errors of a download and of a conversion. Waits for another process that makes
        the same model.
        """
        bar = _Bar(f"quantizing {self.name} as it arrives", progress)
        with as_file_system_error(self.work, self._largest_bytes):
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.destination, bar.wait):
                if not self.destination.exists():
                    self._begin()
                    self._make(bar)
                shutil.rmtree(self.work, ignore_errors=True)
        return self.destination

    def _outline(self, source: Path) -> Conversion:
        """Return the conversion, from settings and headers, which are written to a new folder."""
        for file in self._small_files:
            if file.name in _SETTINGS:
                content = self.hub.content(self.listing, file, _MAX_SETTINGS_BYTES)
                (source / file.name).write_bytes(content)
        self._require_plain(source)
        self._write_skeletons(source, 0)
        return self._conversion(source)

    @property
    def _weight_files(self) -> list[HubFile]:
        return [file for file in self.files if file.name.endswith(".safetensors")]

    @property
    def _small_files(self) -> list[HubFile]:
        return [file for file in self.files if not file.name.endswith(".safetensors")]

    @property
    def _largest_bytes(self) -> int:
        return max(file.size_bytes for file in self._weight_files)

    @property
    def _identity(self) -> str:
        parts = {
            "version": _VERSION,
            "form": self.form,
            "files": {
                file.name: file.digest
                for file in self.files
                if file in self._weight_files or file.name in _SETTINGS
            },
        }
        return hashlib.sha256(encode_json(parts)).hexdigest()

    @property
    def _journal(self) -> Journal:
        return Journal(self.work / "journal")

    @property
    def _blobs(self) -> Blobs:
        return Blobs(self.work / "blobs")

    def _is_continued(self) -> bool:
        """Return whether the work folder is of these weights; one that is not may be of others."""
        identity = self.work / "identity"
        return identity.is_file() and identity.read_text() == self._identity

    def _begin(self) -> None:
        """Create the work folder, or keep what an interrupted run has done."""
        if not self._is_continued():
            shutil.rmtree(self.work, ignore_errors=True)
            for folder in ("source", "skeletons", "blobs", "result"):
                (self.work / folder).mkdir(parents=True)
            (self.work / "identity").write_text(self._identity)
        self._blobs.remove_stale_parts(self.files)

    def _make(self, bar: "_Bar") -> None:
        bar.start(sum(file.size_bytes for file in self._weight_files), 0)
        for file in self._small_files:
            _link(self.work / "source" / file.name, self._fetched(file, lambda *_: None))
        self._require_plain(self.work / "source")
        self._write_skeletons(self.work / "skeletons", SAMPLE_BYTES)
        for file in self._weight_files:
            _link(self.work / "source" / file.name, self._skeleton(file))
        if not self._journal.path.exists():
            self._fill_output_matrices()
        conversion = self._conversion(self.work / "source", self._arrival(bar))
        sizes = self._sizes(conversion)
        require_space(self.work, sizes.needed_bytes)
        unread_bytes = sum(file.size_bytes for file in self._unread_files(conversion))
        bar.start(sizes.source_bytes, sizes.source_bytes - unread_bytes)
        result = self.work / "result"
        with as_file_system_error(self.work, sizes.needed_bytes):
            conversion.write(result, bar.report_conversion, self._journal)
            flush_files(result)
            result.rename(self.destination)

    def _write_skeletons(self, folder: Path, end_bytes: int) -> None:
        """Write those skeletons that are not in `folder` yet, several at a time."""

        def write(file: HubFile) -> None:
            if not (folder / file.name).exists():
                write_skeleton(self.hub, self.listing, file, folder / file.name, end_bytes)

        with ThreadPoolExecutor(_NUM_CONNECTIONS) as pool:
            list(pool.map(write, self._weight_files))

    def _arrival(self, bar: "_Bar") -> Arrival:
        files = {file.name: file for file in self._weight_files}

        @contextmanager
        def arrival(path: Path | None) -> Iterator[None]:
            if path is None:  # constants, which are in no file
                yield
                return
            file = files[path.name]
            found = self._fetched(file, bar.report_file)
            bar.end_file(file.size_bytes)
            if not _begins_alike(found, self._skeleton(file)):
                raise BadModelFile(
                    f"{file.name} of {self.listing.repo}: the hub sent another beginning before",
                    f"swiftchat rm {self.name}, then download it again",
                )
            _link(path, found)
            yield
            _link(path, self._skeleton(file))
            if found == self._blobs.path(file):
                found.unlink()

        return arrival

    def _fetched(self, file: HubFile, report: Callable[[str, int], None]) -> Path:
        blobs = self.cached if self.cached.path(file).exists() else self._blobs
        return blobs.fetch(self.hub, self.listing, file, report)

    def _skeleton(self, file: HubFile) -> Path:
        return self.work / "skeletons" / file.name

    def _conversion(self, source: Path, arrival: Arrival = nullcontext) -> Conversion:
        """Return the conversion of a folder with skeletons."""
        names = [name for file in self._weight_files for name in read_header(source / file.name)[0]]
        if len(names) != len(set(names)):
            raise self._refused("a tensor is in several of its files")
        spec = QuantizationSpec(_SCHEMES[self.form])
        plan = huggingface.plan(source, None, arrival).with_constants()
        return Conversion.of(plan.quantize(spec))

    def _fill_output_matrices(self) -> None:
        """Complete two matrices of the skeletons that decide whether the head is tied.

        They are compared if a file has a head although `config.json` ties it to the embeddings.
        """
        source = self.work / "source"
        config = read_model_config(split_settings(source, read_json(source / "config.json"))[0])
        checkpoint = Checkpoint.open(source)
        checkpoint.use_standard_names(config)
        names = [tensor_name(config, "lm_head"), tensor_name(config, "embed")]
        files = {file.name: file for file in self._weight_files}
        if config.head.tied and all(name in checkpoint.tensors for name in names):
            for info in (checkpoint.tensors[name] for name in names):
                file, end = files[info.file.name], info.offset + info.nbytes
                skeleton = self._skeleton(file)
                fill_skeleton(self.hub, self.listing, file, skeleton, info.offset, end)

    def _require_plain(self, source: Path) -> None:
        _, settings = split_settings(source, read_json(source / "config.json"))
        if settings is not None:
            method = str(settings.get("quant_method"))[:40]
            raise self._refused(f"it is quantized already ({method})", is_ready=True)

    def _refused(self, reason: str, *, is_ready: bool = False) -> BadModelFile:
        download = f"swiftchat download {self.listing.repo}"
        convert = f"swiftchat convert --quantize {_SCHEMES[self.form]} {self.listing.repo} FOLDER"
        return BadModelFile(
            f"{self.listing.repo} cannot be quantized as it arrives: {reason}",
            f"it runs as it is: {download}" if is_ready else f"{download}, then {convert}",
        )

    def _unread_files(self, conversion: Conversion) -> list[HubFile]:
        """Return the weight files with tensors that are not written yet."""
        written = self._journal.checksums() if self._is_continued() else {}
        by_file = conversion.plan.by_file(conversion.missing(written))
        names = {path.name for path in by_file if path is not None}
        return [file for file in self._weight_files if file.name in names]

    def _sizes(self, conversion: Conversion) -> ArrivalSizes:
        plan = conversion.plan
        needed = {path.name for path in plan.by_file(plan.shapes) if path is not None}
        weights = [file for file in self._weight_files if file.name in needed]
        unread = self._unread_files(conversion)
        missing = [
            self._blobs.missing_bytes([file])
            for file in (*unread, *self._small_files)
            if not self.cached.path(file).exists()
        ]
        # The small files that have not come yet are copied.
        small = {file.name: file.size_bytes for file in self._small_files}
        copied = {name: size for name, size in small.items() if name not in _SETTINGS}
        result_bytes = sum({**copied, **conversion.file_bytes()}.values())
        written_bytes = sum(
            file.stat().st_blocks * 512 for file in (self.work / "result").glob("*.safetensors")
        )
        return ArrivalSizes(
            result_bytes,
            sum(file.size_bytes for file in weights),
            sum(missing),
            max(0, result_bytes - written_bytes) + max(missing, default=0),
            self.work.exists() and not self._is_continued(),
        )


class _Bar:
    """One bar for what has arrived and what has been quantized; each counts half."""

    def __init__(self, label: str, progress: Progress | None) -> None:
        self._label = label
        self._progress = progress
        self._total_bytes = self._arrived_bytes = self._file_bytes = 0
        self._quantized = 0.0

    def wait(self) -> None:
        """Say that another process does the work."""
        if self._progress:
            self._progress("waiting for another process", 0, 0)

    def start(self, total_bytes: int, arrived_bytes: int) -> None:
        """Begin with the bytes of the weight files, in all and those that have arrived."""
        self._total_bytes, self._arrived_bytes = total_bytes, arrived_bytes
        self._show()

    def report_file(self, label: str, file_bytes: int) -> None:
        """Show the bytes of the file that arrives; verifying it takes nothing back."""
        self._file_bytes = max(self._file_bytes, file_bytes)
        self._show()

    def end_file(self, file_bytes: int) -> None:
        """Count a file that has arrived."""
        self._arrived_bytes += file_bytes
        self._file_bytes = 0

    def report_conversion(self, label: str, done_bytes: int, total_bytes: int) -> None:
        """Show the bytes that are written, or at the end those that are checked."""
        if label == "converting":
            self._quantized = done_bytes / total_bytes
            self._show()
        elif self._progress:
            self._progress(label, done_bytes, total_bytes)

    def _show(self) -> None:
        if self._progress:
            arrived_bytes = self._arrived_bytes + self._file_bytes
            done_bytes = (arrived_bytes + self._quantized * self._total_bytes) / 2
            self._progress(self._label, int(done_bytes), self._total_bytes)


def _link(path: Path, target: Path) -> None:
    """Let `path` be a link to `target`, whatever it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(target, path.parent))
    new.replace(path)


def _begins_alike(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        length = first.read(8)
        rest = min(int.from_bytes(length, "little"), one.stat().st_size)
        return length == second.read(8) and first.read(rest) == second.read(rest)
