"""A store for models and datasets: `Store`, its versions and signatures, and `virtualobj`."""

from __future__ import annotations

try:
    import sqlalchemy  # noqa: F401
except ImportError as error:
    from orca.errors import MissingPackageError

    raise MissingPackageError(
        'A store needs sqlalchemy, which is not installed. Run: pip install "orca-estimator[store]"'
    ) from error

from orca.store.data.virtual import virtualobj
from orca.store.handles import Handle
from orca.store.store import Store
from orca.store.tokens import Token
from orca.store.values import Port, Signature, Version

__all__ = ["Handle", "Port", "Signature", "Store", "Token", "Version", "virtualobj"]
