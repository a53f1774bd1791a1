"""docs/models.md says what the tests show."""

from tests.support import models_table


def test_the_page_about_models_is_up_to_date() -> None:
    """If not: `python -m tests.support.models_table`."""
    assert models_table.PAGE.read_text(encoding="utf-8") == models_table.page()
