"""Every Python block of the documentation runs and shows what it says; links work, and lines are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import documentation
from tests.documentation import ROOT, Page

PAGES = documentation.pages()
FILES = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
FILES += [page.path for page in PAGES]


def _marked(page: Page) -> object:
    marks = [pytest.mark.slow] if page.name != "README.md" else []
    marks += [getattr(pytest.mark, name) for name in ("ray", "spark") if page.needs(f'(runtime="{name}"')]
    return pytest.param(page, marks=marks, id=page.name)


@pytest.mark.timeout(documentation.SECONDS + 20)
@pytest.mark.parametrize("page", [_marked(page) for page in PAGES if page.runnable and not page.needs("import mxnet")])
def test_blocks_of_a_page_run_in_order(page, tmp_path):
    documentation.run(page, tmp_path)


GOOD = """
# Page

<!-- setup
three = 3
-->

```python
three + 1  # 4: more than three
[three, "…"]  # [3, …]
print("a", three)  # a 3
```

```python
>>> three * 2
6
```

<!-- skip: needs a cluster -->
```python
raise RuntimeError
```
"""


def test_a_page_with_right_results_passes(tmp_path):
    (tmp_path / "page.md").write_text(GOOD)
    page = documentation.read(tmp_path / "page.md")
    assert [block.skipped for block in page.blocks] == ["", "", "", "needs a cluster"]
    documentation.run(page, tmp_path)


@pytest.mark.parametrize("wrong", ["three + 2  # 4", "print(three)  # a 3", ">>> three\n4", "undefined"])
def test_a_page_with_a_wrong_result_fails(tmp_path, wrong):
    (tmp_path / "page.md").write_text(f"# Page\n\n```python\nthree = 3\n```\n\n```python\n{wrong}\n```\n")
    with pytest.raises(AssertionError, match=r"line (8|7)"):
        documentation.run(documentation.read(tmp_path / "page.md"), tmp_path)


def test_few_blocks_are_skipped():
    skipped = [f"{page.name}:{block.first} {block.skipped}" for page in PAGES for block in page.blocks if block.skipped]
    print(f"{len(skipped)} blocks are skipped:", *skipped, sep="\n")
    assert len(skipped) <= 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_and_headings_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, heading = target.partition("#")
        file = (path.parent / name) if name else path
        assert file.exists(), f"{path.name} links to {target}"
        assert not heading or heading in _headings(file), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_wrapped(path):
    long = [line for line in path.read_text().splitlines() if len(line) > 120]
    assert not long, long


def _prose(path: Path) -> str:
    """The text without code blocks."""
    return re.sub(r"^( *)(`{3,}).*?^\1\2$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def _headings(path: Path) -> set[str]:
    """The anchors that GitHub and MyST give to headings."""
    titles = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
