"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import as_map, eventually_in_loop, held_for, holders, waiters

from lockward import LockError, LockLostError, LockNotOwnedError, LockRefusedError, UnreplicatedError
from lockward.asyncio import Lock


@asynccontextmanager
async def connected(server: Any, **options: Any) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis(port=server.port, **options)
    try:
        yield client
    finally:
        await (client.aclose() if hasattr(client, "aclose") else client.close())


def in_loop(test: Any) -> Any:
    """Run the test in a new event loop, and check that the test leaves nothing open."""

    @functools.wraps(test)
    def run(server: Any, client: Any) -> None:
        async def main() -> None:
            async with connected(server) as own:
                await asyncio.wait_for(test(server, client, own), 60)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.run(main())
            gc.collect()

    del run.__wrapped__  # with __wrapped__, pytest would treat the parameters of `test` as fixtures
    return run


@in_loop
async def test_only_one_caller_holds_the_lock(server: Any, client: Any, own: Any) -> None:
    mine, other = Lock(own, "a"), Lock(own, "a")
    assert await mine.acquire() and mine.held and await mine.owned() and await mine.locked()
    assert not await other.acquire(blocking=False)
    assert not await other.acquire(blocking_timeout=1)
    assert not other.held and not await other.owned()
    with pytest.raises(LockError):
        await other.release()
    await mine.release()
    assert not mine.held and not await mine.locked() and mine.fencing_token is None
    async with other:
        assert other.fencing_token
    async with own.lock("a", lock_class=Lock):
        assert holders(client, "a")


@in_loop
async def test_tasks_with_one_object_exclude_each_other(server: Any, client: Any, own: Any) -> None:
    lock, inside = Lock(own, "a"), []

    async def count() -> None:
        for _ in range(10):
            async with lock:
                inside.append(1)
                await asyncio.sleep(0)
                assert len(inside) == 1
                inside.clear()

    await asyncio.gather(*(count() for _ in range(5)))
    assert not await lock.locked()


@in_loop
async def test_a_task_that_lost_the_lock_does_not_release_another_one(server: Any, client: Any, own: Any) -> None:
    lock, lost, done = Lock(own, "a", timeout=30), asyncio.Event(), asyncio.Event()

    async def loser() -> None:
        await lock.acquire()
        lost.set()
        await done.wait()
        with pytest.raises(LockNotOwnedError):
            await lock.release()

    losing = asyncio.create_task(loser())
    await lost.wait()
    client.delete("a")
    assert await lock.acquire()
    done.set()
    await losing
    assert lock.held and await lock.owned()
    await lock.release()
    assert not await lock.locked()


@in_loop
async def test_a_lock_acquired_in_one_task_is_released_in_another(server: Any, client: Any, own: Any) -> None:
    lock = Lock(own, "a")
    await asyncio.create_task(lock.acquire())
    assert lock.fencing_token and lock.held
    await lock.release()
    assert not await lock.locked()


@in_loop
async def test_a_cancelled_wait_leaves_the_queue(server: Any, client: Any, own: Any) -> None:
    holder = Lock(own, "a")
    await holder.acquire()
    for _ in range(3):
        waiting = asyncio.create_task(Lock(own, "a").acquire())
        await eventually_in_loop(lambda: waiters(client, "a") == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually_in_loop(lambda: waiters(client, "a") == 0)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(Lock(own, "a").acquire(), 0.05)
    await eventually_in_loop(lambda: waiters(client, "a") == 0)
    await holder.release()
    assert not await holder.locked()


@in_loop
async def test_a_wait_cancelled_at_the_moment_of_the_grant_leaves_no_lock_held(
    server: Any, client: Any, own: Any
) -> None:
    for attempt in range(30):
        holder = Lock(own, "a")
        await holder.acquire()
        waiting = asyncio.create_task(Lock(own, "a").acquire())
        await eventually_in_loop(lambda: waiters(client, "a") == 1)
        releasing = asyncio.create_task(holder.release())
        for _ in range(attempt % 10):
            await asyncio.sleep(0)
        waiting.cancel()
        try:
            await waiting
            break  # the server has granted the lock before the cancellation
        except asyncio.CancelledError:
            pass
        await releasing
        await eventually_in_loop(lambda: not holders(client, "a"))


@in_loop
async def test_a_reentrant_lock_counts_for_one_task(server: Any, client: Any, own: Any) -> None:
    lock = Lock(own, "a", reentrant=True)
    async with lock, lock:
        assert lock.holds == 2
        other = asyncio.create_task(lock.acquire(blocking=False))
        assert not await other
    assert lock.holds == 0 and not await lock.locked()
    with pytest.raises(LockError, match="reentrant=True"):
        async with Lock(own, "b") as plain:
            await plain.acquire()


@in_loop
async def test_a_lock_whose_key_is_deleted_or_overwritten_is_lost(server: Any, client: Any, own: Any) -> None:
    reported: list[Any] = []
    for theft in (("DEL", "a"), ("SET", "a", "1")):
        client.delete("a")
        lock = Lock(own, "a", lease=0.5, on_lost=reported.append)
        await lock.acquire()
        lost = lock.lost
        client.execute_command(*theft)
        await lost.wait()
        assert not lock.held and reported[-1] is lock
        with pytest.raises(LockLostError):
            await lock.release()
    assert len(reported) == 2
    client.delete("a")
    lock = Lock(own, "a", timeout=0.1)
    await lock.acquire()
    await lock.lost.wait()
    with pytest.raises(LockLostError), warnings.catch_warnings():
        await eventually_in_loop(lambda: not holders(client, "a"))
        await lock.release()


@in_loop
async def test_extend_and_reacquire(server: Any, client: Any, own: Any) -> None:
    lock = Lock(own, "a", timeout=100)
    await lock.acquire()
    assert await lock.extend(100) and 190_000 < client.pttl("a") <= 200_000
    assert await lock.extend(50, replace_ttl=True) and 40_000 < client.pttl("a") <= 50_000
    assert await lock.reacquire() and 90_000 < client.pttl("a") <= 100_000
    client.delete("a")
    with pytest.raises(LockLostError):
        await lock.extend(1)
    assert not lock.held
    with pytest.raises(LockError):
        await Lock(own, "b").reacquire()


@in_loop
async def test_another_client_resumes_a_lock_by_its_handle(server: Any, client: Any, own: Any) -> None:
    lock = Lock(own, "a")
    await lock.acquire(token="job")
    token, handle = lock.fencing_token, lock.handle(detach=True)
    async with connected(server, decode_responses=True) as other:
        async with await Lock.resume(other, handle) as resumed:
            assert resumed.fencing_token == token and resumed.local.token == b"job" and await resumed.owned()
        with pytest.raises(LockLostError):
            await Lock.resume(other, handle)


@in_loop
async def test_a_dropped_lock_is_not_renewed(server: Any, client: Any, own: Any) -> None:
    lock = Lock(own, "a", lease=0.5)
    await lock.acquire()
    del lock
    gc.collect()
    await eventually_in_loop(lambda: not holders(client, "a"))


@in_loop
async def test_server_errors_and_missing_replicas(server: Any, client: Any, own: Any) -> None:
    client.set("a", "1")
    with pytest.raises(LockRefusedError, match="WRONGTYPE"):
        await Lock(own, "a").acquire()
    lock = Lock(own, "b", replicas=(1, 0.05))
    with pytest.raises(UnreplicatedError):
        await lock.acquire()
    assert not await lock.locked()
    with pytest.raises(UnreplicatedError):  # the replicas' time may be longer than the patience
        await Lock(own, "b", replicas=(1, 0.5), patience=0.3).acquire()
    with pytest.raises(TypeError, match="must be used with lockward"):
        Lock(client, "a")


def test_each_event_loop_has_its_own_connections(server: Any, client: Any) -> None:
    own = redis.asyncio.Redis(port=server.port)

    async def main() -> None:
        async with Lock(own, "a"):
            assert holders(client, "a")
        await own.connection_pool.disconnect()

    asyncio.run(main())
    asyncio.run(main())
    assert as_map(client.execute_command("LOCK.INFO", "a")) is None


@in_loop
async def test_locks_are_renewed_after_all_tasks_were_cancelled(server: Any, client: Any, own: Any) -> None:
    locks = [Lock(own, name, lease=2) for name in ("a", "b", "c")]
    for lock in locks:
        await lock.acquire()
        if lock is not locks[0]:
            await asyncio.sleep(0)  # now the watcher begins; the first watcher is cancelled before it begins
        if lock is not locks[-1]:
            [watcher] = [task for task in asyncio.all_tasks() if task.get_name() == "lockward"]
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
    for lock in locks:  # without renewals, the lease would end earlier
        await eventually_in_loop(lambda lock=lock: held_for(client, lock.name) > 2.5)
        assert lock.held and await lock.owned()
        await lock.release()
