"""Signatures of what a store would run: an HMAC with a key that only this user can read."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from orca.errors import DataError

_BYTES = 32


def key_path() -> Path:
    """Return the file of the key: ORCA_KEY_FILE, or ``orca/store.key`` in the user's folder for settings."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(os.environ.get("ORCA_KEY_FILE") or base / "orca" / "store.key")


def sign(content: bytes) -> str:
    """Return the signature of some bytes by this user's key, which is created on first use."""
    return hmac.new(_key(create=True), content, hashlib.sha256).hexdigest()


def is_signed(content: bytes, signature: str) -> bool:
    """Return whether a signature is by this user's key."""
    key = _key(create=False)
    if not key:
        return False
    return hmac.compare_digest(hmac.new(key, content, hashlib.sha256).hexdigest(), str(signature))


def _key(create: bool) -> bytes:
    path = key_path()
    if create and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # fails if another process was faster
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor)
        if stat.S_IMODE(mode.st_mode) & 0o077 or mode.st_uid != os.getuid():
            raise DataError(f"The key {str(path)!r} can be read by other users. Run: chmod 600 {path}")
        key = file.read()
    if len(key) < _BYTES:
        raise DataError(
            f"The key {str(path)!r} is shorter than {_BYTES} bytes. Remove it, and put the virtual datasets again that "
            "it has signed."
        )
    return key
