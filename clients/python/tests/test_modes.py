"""Readers and permits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis.asyncio
from conftest import eventually, holders, waiters

import lockward.asyncio
from lockward import Lock, LockError, LockRefused


def test_readers_hold_together_and_a_writer_waits(own_server: Any) -> None:
    server = own_server()
    client = server.client()
    readers = [Lock(client, "a", timeout=30, auto_renewal=True, shared=True) for _ in range(2)]
    assert all(reader.acquire(blocking=False) for reader in readers)
    server.kill()
    server.restart("quarantine 60000")  # it has forgotten the readers, and restores them as readers
    assert readers[0].reacquire()
    readers[1] = Lock.resume(client, readers[1].handle(detach=True))
    client.execute_command("CONFIG", "SET", "lock.quarantine", 0)
    for reader in readers:
        with pytest.raises(LockError, match="already"):
            reader.acquire(blocking=False)
    writing = threading.Thread(target=Lock(client, "a").acquire, daemon=True)
    writing.start()
    eventually(lambda: waiters(client, "a") == 1)
    assert not Lock(client, "a", shared=True).acquire(blocking=False)
    assert len(holders(client, "a")) == 2
    for reader in readers:
        reader.release()
    writing.join(20)
    assert len(holders(client, "a")) == 1


def test_two_of_three_permits(client: redis.Redis) -> None:
    two, one = Lock(client, "a", slots=3, weight=2), Lock(client, "a", slots=3)
    assert two.acquire() and one.acquire()
    assert not Lock(client, "a", slots=3).acquire(blocking=False)
    two.release()
    assert Lock(client, "a", slots=3, weight=2, reentrant=True).acquire(blocking=False)
    with pytest.raises(LockRefused, match="WEIGHT"):
        Lock(client, "a", slots=3, weight=4).acquire()


def test_readers_hold_together_in_asyncio(server: Any) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port) as own:
            reader = lockward.asyncio.Lock(own, "a", shared=True, reentrant=True)
            async with reader, lockward.asyncio.Lock(own, "a", shared=True):
                assert await reader.acquire() and reader.holds == 2
                assert not await lockward.asyncio.Lock(own, "a").acquire(blocking=False)

    asyncio.run(main())
