"""The errors of locks, beside those of redis-py."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError, LockError, LockNotOwnedError, ResponseError

__all__ = ["LockError", "LockLost", "LockNotOwnedError", "LockRefused", "Unreachable", "Unreplicated"]


class LockLost(LockNotOwnedError):
    """The tenure ended before it was released, or was never this owner's: another owner may hold the lock now."""


class LockRefused(LockError, ResponseError):
    """The server has replied with an error, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE. Nothing has changed."""


class Unreplicated(LockError):
    """Fewer replicas than wanted have confirmed the grant in time. The lock has been given back."""


class Unreachable(ConnectionError):
    """No server has answered for as long as the patience or the wait limit. What may have been granted ends with its
    lease at the latest. A guarded command may have run."""


def lock_error(kind: type[LockError], message: str, name: Any) -> LockError:
    """The error with the name of its lock. The constructors of redis-py before 5.1 do not take it."""
    error = kind(message)
    error.lock_name = name if isinstance(name, str) else _readable(name)
    return error


def _readable(name: Any) -> str | None:
    return bytes(name).decode(errors="replace") if isinstance(name, (bytes, bytearray, memoryview)) else str(name)
