"""The Python blocks of the pages on MXNet run and show what they say."""

from __future__ import annotations

import pytest

from tests import documentation

PAGES = [page for page in documentation.pages() if page.needs("import mxnet")]


@pytest.mark.slow
@pytest.mark.timeout(documentation.SECONDS + 20)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of_a_page_run_in_order(page, tmp_path):
    documentation.run(page, tmp_path)
