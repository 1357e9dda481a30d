"""Every Python block of the documentation runs and shows what it says; links lead somewhere, lines are short."""

from __future__ import annotations

import re

import pytest

from tests import documentation
from tests.documentation import ROOT, Page

PAGES = documentation.pages()


def _marked(page: Page) -> object:
    marks = [pytest.mark.slow] if page.name != "README.md" else []
    marks += [getattr(pytest.mark, name) for name in ("ray", "spark") if page.needs(f'runtime="{name}", ')]
    return pytest.param(page, marks=marks, id=page.name)


@pytest.mark.timeout(documentation.SECONDS + 20)
@pytest.mark.parametrize("page", [_marked(page) for page in PAGES if page.runnable and not page.needs("import mxnet")])
def test_blocks_of_a_page_run_in_order(page, tmp_path):
    documentation.run(page, tmp_path)
