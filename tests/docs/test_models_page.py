"""docs/models.md matches the tests."""

from tests.support import models_table


def test_models_page_is_up_to_date() -> None:
    """Run `python -m tests.support.models_table` to update the page."""
    assert models_table.PAGE.read_text(encoding="utf-8") == models_table.page()
