"""Write docs/faults.md from the docstrings of the tests in this folder."""

from tests.support.faults_page import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
