"""Turns the Python blocks of a documentation page into a program that also checks the results shown in comments.

A page's blocks run in order, in one process and one namespace. Three comments steer this:

- ``<!-- setup`` … ``-->`` holds code that runs but is not shown.
- ``<!-- skip: reason -->`` above a block leaves that block out.
- A result after an expression, ``shape  # (2, 3)``, or after a print, is compared; ``…`` stands for anything.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRELUDE = "from tests.documentation import printing as _printing, session as _session, showing as _showing"
SECONDS = 280


@dataclass(frozen=True)
class Block:
    """Lines of code on a page; ``first`` is the number of the first one."""

    first: int
    lines: list[str]
    skipped: str = ""

    @property
    def source(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True)
class Page:
    """A Markdown file and the Python blocks in it."""

    path: Path
    blocks: list[Block]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name

    @property
    def runnable(self) -> list[Block]:
        return [block for block in self.blocks if not block.skipped]

    def needs(self, word: str) -> bool:
        """Whether code that runs contains the word."""
        return any(word in block.source for block in self.runnable)


def pages() -> list[Page]:
    """Read README.md and all pages below docs/."""
    paths = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [read(path) for path in paths if "_build" not in path.parts]


def read(path: Path) -> Page:
    """Find a page's Python blocks and hidden set-up."""
    blocks, skip = [], ""
    lines = path.read_text().splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if match := re.fullmatch(r"\s*<!-- skip: (.+) -->", line):
            skip = match[1]
        elif match := re.match(r"( *)(`{3,})(.*)", line):
            end = _end(lines, number, rf" *{match[2]}`*\s*")
            code = [text.removeprefix(match[1]) for text in lines[number:end]]
            if match[3].strip() in ("python", "pycon"):
                blocks.append(Block(number + 1, code, skip))
            number, skip = end + 1, ""
        elif line.strip() == "<!-- setup":
            end = _end(lines, number, r"-->\s*")
            blocks.append(Block(number + 1, lines[number:end]))
            number = end + 1
        elif line.strip():
            skip = ""
    return Page(path, blocks)


def _end(lines: list[str], start: int, pattern: str) -> int:
    return next(number for number in range(start, len(lines)) if re.fullmatch(pattern, lines[number]))


def program(page: Page) -> str:
    """Assemble the page's code so that line numbers in tracebacks are those of the page."""
    lines = [""] * len(page.path.read_text().splitlines())
    lines[0] = PRELUDE
    for block in page.runnable:
        if block.source.lstrip().startswith(">>>"):
            lines[block.first - 1] = f"_session({block.source!r}, globals(), {page.name!r}, {block.first})"
        else:
            lines[block.first - 1 : block.first - 1 + len(block.lines)] = _checked(block).split("\n")[:-1]
    return "\n".join(lines) + "\n"


def _checked(block: Block) -> str:
    """Wrap expressions that are followed by their result."""
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(StringIO(block.source).readline)
        if token.type == tokenize.COMMENT and token.line.strip() != token.string
    }
    lines = [line.encode() for line in block.source.split("\n")]
    for node in reversed(list(_expressions(ast.parse(block.source)))):
        comment = comments.get(node.end_lineno or 0, "")
        value, place = node.value, block.first + node.lineno - 1
        printed = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"
        result = comment if printed else _result(comment)
        if not result:
            continue
        call = f"_{'printing' if printed else 'showing'}({result!r}, {place})".encode()
        first, last = node.lineno - 1, (node.end_lineno or 0) - 1
        if not printed:
            lines[last] = lines[last][: node.end_col_offset] + b"))" + lines[last][node.end_col_offset :]
        skipped = len("print") if printed else 0
        start = node.col_offset
        lines[first] = lines[first][:start] + call + (b"" if printed else b"((") + lines[first][start + skipped :]
    return b"\n".join(lines).decode()


def _expressions(tree: ast.AST) -> Iterator[ast.Expr]:
    """Expression statements outside of functions and classes, in the order of the page."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _expressions(node)


def _result(comment: str) -> str:
    """The part of a comment that is a Python value: all of it, or what comes before a colon."""
    cuts = [match.start() for match in re.finditer(": ", comment)]
    for cut in [*cuts, len(comment)]:
        text = comment[:cut]
        if re.fullmatch(r"<\w+: .+>|array\(.+\)", text):
            return text
        try:
            ast.literal_eval(re.sub(r"'[^']*'", "''", text).replace("…", "..."))
        except (SyntaxError, ValueError):
            continue
        return text
    return ""


def showing(result: str, line: int) -> Callable[[Any], None]:
    """Return a function that compares a value with the result that the page shows."""

    def check(value: Any) -> None:
        _compare(result, repr(_plain(value)), line)

    return check


def printing(result: str, line: int) -> Callable[..., None]:
    """Return a ``print`` that compares what it prints with what the page shows."""

    def check(*values: Any) -> None:
        _compare(result, " ".join(map(str, values)), line)

    return check


def session(text: str, namespace: dict[str, Any], name: str, line: int) -> None:
    """Run an interactive session in the namespace of the page."""
    test = doctest.DocTestParser().get_doctest(text, namespace, name, name, line - 1)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test, clear_globs=False).failed == 0, f"line {line}: the session shows something else"
    namespace.update(test.globs)


def _plain(value: Any) -> Any:
    """Numbers of numpy as those of Python, also within tuples, lists and dicts."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_plain(entry) for entry in value)
    return value.item() if getattr(value, "shape", None) == () else value


def _compare(result: str, shown: str, line: int) -> None:
    pattern = ".*".join(map(re.escape, result.replace('"', "'").split("…")))
    assert re.fullmatch(pattern, shown.replace('"', "'"), re.DOTALL), f"line {line}: {shown}, the page says {result}"


def run(page: Page, folder: Path) -> None:
    """Run a page's code in a process of its own, with ``folder`` as working directory."""
    script = folder / "page.py"
    script.write_text(program(page))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, f"{page.name} (line numbers are the page's):\n{(done.stdout + done.stderr)[-4000:]}"
