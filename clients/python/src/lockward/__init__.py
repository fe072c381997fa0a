"""Locks on Redis and Valkey servers with the Lockward module, through redis-py.

`lockward.Lock` has the interface of `redis.lock.Lock`. `lockward.asyncio.Lock` has that interface for asyncio.
"""

from redis.exceptions import LockError as LockError
from redis.exceptions import LockNotOwnedError as LockNotOwnedError

from ._sync import Lock, MultiLock, ReadWriteLock, Semaphore, lead
from .errors import LockLostError, LockRefusedError, UnreachableError, UnreplicatedError

__all__ = ["Lock", "MultiLock", "ReadWriteLock", "Semaphore", "lead"]
__all__ += ["LockError", "LockLostError", "LockNotOwnedError", "LockRefusedError"]
__all__ += ["UnreachableError", "UnreplicatedError"]
__version__ = "0.1.0"
