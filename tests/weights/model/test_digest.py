"""The digest of a model's files."""

from pathlib import Path
from typing import Any

import pytest

from swiftchat.weights.model.digest import model_digest


def test_every_file_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    digests = [model_digest(tmp_path)]
    (tmp_path / "config.json").write_text("[]")
    digests.append(model_digest(tmp_path))
    (tmp_path / "notes").write_text("text")
    digests.append(model_digest(tmp_path))
    assert len(set(digests)) == 3 and digests[-1] == model_digest(tmp_path)


def test_a_file_without_the_right_to_read_it_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "private").write_text("text")
    open_file = Path.open

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == "private":
            raise PermissionError(13, "Permission denied", str(self))
        return open_file(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    before = model_digest(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert model_digest(tmp_path) != before
