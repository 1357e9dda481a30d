"""Penalties on weights: they are added to gradients, not to the reported loss."""

from __future__ import annotations

from orca.core.arguments import check_number


class L1L2Regularizer:
    """Adds `l1 * sign(w) + l2 * w` to the gradient of a weight.

    Args:
        l1: The factor of the sign.
        l2: The factor of the weight.
    """

    def __init__(self, l1: float, l2: float, bigdl_type: str = "float") -> None:
        self.l1, self.l2 = check_number("l1", l1), check_number("l2", l2)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.l1}, {self.l2})"


class L1Regularizer(L1L2Regularizer):
    """Adds `l1 * sign(w)` to the gradient of a weight.

    Args:
        l1: The factor.
    """

    def __init__(self, l1: float, bigdl_type: str = "float") -> None:
        super().__init__(l1, 0.0)


class L2Regularizer(L1L2Regularizer):
    """Adds `l2 * w` to the gradient of a weight.

    Args:
        l2: The factor.
    """

    def __init__(self, l2: float, bigdl_type: str = "float") -> None:
        super().__init__(0.0, l2)
