"""A place in a graph of layers: a layer with the nodes whose outputs it takes."""

from __future__ import annotations

from typing import Any

from orca.core.arguments import shown
from orca.errors import ArgumentError


class Node:
    """A layer applied to the outputs of other nodes; without any it is an input of the graph."""

    def __init__(self, layer: Any, previous: list[Node]) -> None:
        self.layer = layer
        self.previous = previous

    def element(self) -> Any:
        """Return the layer."""
        return self.layer

    def remove_pre_edges(self) -> None:
        """Disconnect the node from those before it, so that it becomes an input."""
        self.previous = []

    def __repr__(self) -> str:
        return f"Node({self.layer.name()})"


def nodes(value: Any, name: str = "x") -> list[Node]:
    """Return one node, or a list of nodes, as a list."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    for item in values:
        if not isinstance(item, Node):
            raise ArgumentError(
                f"{name}={shown(item)}: expected a Node, which calling a layer returns, or a list of them."
            )
    return values
