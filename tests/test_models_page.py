"""docs/models.md says what the tests show."""

import models_table


def test_the_page_about_models_is_up_to_date() -> None:
    """If not: `python tests/models_table.py`."""
    assert models_table.PAGE.read_text(encoding="utf-8") == models_table.page()
