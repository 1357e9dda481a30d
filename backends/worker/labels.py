"""Checks of labels and weights on a rank: those of data that the driver has not seen, and what the model adds."""

from __future__ import annotations

from collections.abc import Iterable

from orca.backends.base import Replica
from orca.shards.checks import Array, LargestClass, check_weights
from orca.shards.feed import Rows
from orca.shards.tree import Tree, leaves, row_count

Largest = dict[str, LargestClass]
"""The largest class of each array of labels, by its dotted name."""


def check_labels(replica: Replica, rows: Rows, start: int, stop: int) -> Largest:
    """Check some rows, and return their largest classes."""
    largest: Largest = {}
    row = start
    for part in rows.views(row, stop):
        largest = largest_of([largest, check_part(replica, part, row)])
        row += row_count(part)
    return largest


def check_part(replica: Replica, part: Tree, first_row: int = 0) -> Largest:
    """Check rows that stand together, the first of which has this number; return their largest classes."""
    largest: Largest = {}
    if not isinstance(part, dict):
        return largest
    rules = replica.label_rules()
    check_weights(part.get("w"), first_row)
    labels: Array
    for name, labels in leaves(part["y"]) if "y" in part else ():
        rule = rules.get(name)
        if rule is not None:
            rule.check(labels, f"y.{name} of the data" if name else "y of the data", first_row)
            found = rule.largest(labels, first_row)
            if found is not None:
                largest[name] = found
    return largest


def largest_of(parts: Iterable[Largest]) -> Largest:
    """Return the largest classes of all parts; of equal ones the first."""
    largest: Largest = {}
    for part in parts:
        for name, found in part.items():
            if name not in largest or found.value > largest[name].value:
                largest[name] = found
    return largest
