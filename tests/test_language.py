"""Guards the language: words of a private dialect that readers stumble over stay out of code and documentation."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(
    r"\b(told|anew|for ever|is not there|so many (?:rows|steps|ranks|workers|threads)|bit by bit|mends?|mended|"
    r"whole numbers?|put together|ways? to agree|names? rows|add(?:s|ed)? up)\b",
    re.IGNORECASE,
)
SUFFIXES = (".py", ".md", ".toml", ".yml", ".cfg")
EXCEPT = ("tests/test_language.py",)


def offenders(texts: dict[str, str]) -> list[str]:
    """Return the lines with such a word."""
    return [
        f"{name}:{number}: {match[0]}: {line.strip()[:80]}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := WORDS.search(line))
    ]


def tracked() -> dict[str, str]:
    """Return the text of every file of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [ROOT / name for name in listing if name.endswith(SUFFIXES) and name not in EXCEPT]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths if path.is_file()}


def test_no_word_of_the_list_occurs():
    assert offenders(tracked()) == []


def test_the_list_is_found_where_it_occurs():
    assert offenders({"a.py": "x = 1\n# the rank is told\n"}) == ["a.py:2: told: # the rank is told"]
