"""Locks on Redis and Valkey servers with the Lockward module, through redis-py.

`lockward.Lock` has the interface of `redis.lock.Lock`, `lockward.asyncio.Lock` that of `redis.asyncio.lock.Lock`.
"""

from ._sync import Lock
from .errors import LockError, LockLost, LockNotOwnedError, LockRefused, Unreachable, Unreplicated

__all__ = ["Lock", "LockError", "LockLost", "LockNotOwnedError", "LockRefused", "Unreachable", "Unreplicated"]
__version__ = "0.1.0"
