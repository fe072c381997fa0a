"""What can go wrong, beside what redis-py itself raises."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError, LockError, LockNotOwnedError, ResponseError

__all__ = ["LockError", "LockLost", "LockNotOwnedError", "LockRefused", "Unreachable", "Unreplicated"]


class LockLost(LockNotOwnedError):
    """The tenure is over, or was never this owner's: whoever goes on with the work may not be alone."""


class LockRefused(LockError, ResponseError):
    """The server refuses, in its own words: MAXWAITERS, OOM, NOPERM, WRONGTYPE... Nothing has changed."""


class Unreplicated(LockError):
    """Fewer replicas than wanted have heard of the grant in time. The lock has been given back."""


class Unreachable(ConnectionError):
    """No server has answered for as long as the patience, or the wait limit, lasts. What had been asked for ends
    with its lease at the latest."""


def told(kind: type[LockError], message: str, name: Any) -> LockError:
    """The error with the name of its lock, which redis-py before 5.1 cannot take."""
    error = kind(message)
    error.lock_name = name if isinstance(name, str) else _readable(name)
    return error


def _readable(name: Any) -> str | None:
    return bytes(name).decode(errors="replace") if isinstance(name, (bytes, bytearray, memoryview)) else str(name)
