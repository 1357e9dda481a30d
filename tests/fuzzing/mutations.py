"""Damage to bytes: flipped bits, cuts, insertions and copies, as lists of edits."""

from __future__ import annotations

import os

from hypothesis import strategies as st

WORDS = (
    b"\x00",
    b"\xff",
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"{}",
    b"[",
    b"null",
    b"-1",
    b'"',
    b"1e999",
    b"NaN",
    b"\n",
)
EDITS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1 << 20), st.integers(0, 255), st.binary(max_size=6)),
    min_size=1,
    max_size=6,
)
"""Each edit is a kind, a place, a number and some bytes."""


def damaged(content: bytes, edits: list[tuple[int, int, int, bytes]]) -> bytes:
    """Apply edits one after another.

    >>> damaged(b"abcd", [(1, 2, 0, b"")])
    b'ab'
    """
    for kind, place, number, more in edits:
        place %= len(content) + 1
        if kind == 0:
            content = (
                content[:place] + bytes([content[place] ^ (1 << number % 8)]) + content[place + 1 :]
                if place < len(content)
                else content + bytes([number])
            )
        elif kind == 1:
            content = content[:place]
        elif kind == 2:
            content = content[:place] + more + content[place:]
        elif kind == 3:
            word = WORDS[number % len(WORDS)]
            content = content[:place] + word + content[place + len(word) :]
        else:
            content = content[:place] + content[place + number :]
    return content


def write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def shared_memory() -> str | None:
    """A folder in memory for files that are written once per case, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
