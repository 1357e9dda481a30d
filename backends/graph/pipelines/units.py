"""Cuts files into units of work of bounded size, for some number of workers."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from orca.backends.graph.pipelines.records import Format, Piece
from orca.shards.readers.paths import File


def units_of(files: Sequence[File], form: Format, count: int, most_records: int) -> list[list[Piece]]:
    """Return the pieces of each unit: groups of files, or parts of files where there are fewer files than units.

    Args:
        files: The files, in order.
        form: How they are cut into records.
        count: The number of units to make at least, if the records can be divided.
        most_records: The approximate number of records that a unit may have.
    """
    ends = list(itertools.accumulate(file.size for file in files))
    total = ends[-1]
    splits = form.splits and all(file.local for file in files)
    if not splits:
        groups = min(len(files), max(count, math.ceil(len(files) / most_records)))
        return [[Piece(file.url, file.label, storage=file.storage) for file in group] for group in _even(files, groups)]
    cuts = [total * index // count for index in range(count + 1)]
    if len(files) >= count:
        cuts = sorted({min([0, *ends], key=lambda end: abs(end - cut)) for cut in cuts} | {0, total})
    sample = next((file for file in files if file.size), files[0])
    most = max(1.0, most_records * form.record_bytes(sample.url, sample.size))
    cuts = [bound for low, high in itertools.pairwise(cuts) for bound in _bounded(low, high, most)] + [total]
    return [pieces for low, high in itertools.pairwise(cuts) if (pieces := _pieces(files, ends, low, high))]


def _even(files: Sequence[File], count: int) -> list[list[File]]:
    """Return groups of consecutive files with about as many bytes each, none of them empty."""
    groups: list[list[File]] = []
    left, rest = list(files), sum(file.size for file in files)
    for remaining in range(count, 0, -1):
        share, group = rest / remaining, [left.pop(0)]
        while len(left) >= remaining and sum(file.size for file in group) + left[0].size / 2 < share:
            group.append(left.pop(0))
        if remaining == 1:
            group += left
        groups.append(group)
        rest -= sum(file.size for file in group)
    return groups


def _bounded(low: int, high: int, most: float) -> list[int]:
    """Return the beginnings of parts of a range that are not longer than `most`."""
    count = max(1, math.ceil((high - low) / most))
    return [low + (high - low) * index // count for index in range(count)]


def _pieces(files: Sequence[File], ends: Sequence[int], low: int, high: int) -> list[Piece]:
    """Return the pieces of files that lie in a range of the bytes of all files."""
    pieces = []
    for number in range(bisect.bisect_right(ends, low), len(files)):
        begin = ends[number] - files[number].size
        if begin >= high:
            break
        first, last = max(low, begin) - begin, min(high, ends[number]) - begin
        file = files[number]
        if (first, last) == (0, file.size):
            pieces.append(Piece(file.url, file.label))
        elif first < last:
            pieces.append(Piece(file.url, file.label, first, last))
    return pieces
