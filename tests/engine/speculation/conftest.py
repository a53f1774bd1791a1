"""The model that the tests of prediction heads share."""

from pathlib import Path

import pytest

from tests.support import tiny


@pytest.fixture(scope="package")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path
