"""The errors of locks. Calls may also raise redis-py's own errors."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError, LockError, LockNotOwnedError, ResponseError


class LockLostError(LockNotOwnedError):
    """The tenure ended before the program released the lock. Another owner may hold the lock now."""


class LockRefusedError(LockError, ResponseError):
    """The server has replied with an error, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE. The refused request has not changed
    the lock."""


class UnreplicatedError(LockError):
    """Fewer replicas than wanted have confirmed the grant in time. The client releases the lock."""


class UnreachableError(ConnectionError):
    """No server has answered within the patience or the wait limit. If the server has granted the lock, the lock ends
    with its lease at the latest. A guarded command may have run."""


def lock_error(kind: type[LockError], what: str, name: Any) -> LockError:
    """The error, with the name of its lock. Before redis-py 5.1, the constructor does not take the name."""
    error = kind(f"{what} (lock {readable(name)!r})")
    error.lock_name = readable(name)
    return error


def lost(verb: str, name: Any, reply: Any = None) -> LockError:
    what = f"Cannot {verb} a lock that's no longer owned" + (f": {reply}" if reply else "")
    return lock_error(LockLostError, f"{what}. Stop the work that it protects", name)


def refused(reply: Exception, name: Any) -> LockError:
    return lock_error(LockRefusedError, str(reply), name)


def readable(name: Any) -> str:
    return str(name) if isinstance(name, (str, int, float)) else bytes(name).decode(errors="replace")
