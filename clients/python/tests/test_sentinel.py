"""Clients that find the primary through Sentinels."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import SentinelServer, eventually, holders, waiters
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

import lockward.asyncio
from lockward import Lock, _probe


@pytest.fixture
def deployment(own_server: Any) -> Any:
    """The port of a Sentinel, its primary and replica, and a client of the Sentinel."""
    primary, replica = own_server(), own_server()
    replica.client().execute_command("REPLICAOF", "127.0.0.1", primary.port)
    eventually(lambda: replica.client().info("replication")["master_link_status"] == "up")
    sentinel = SentinelServer()
    monitor = sentinel.client()
    monitor.execute_command("SENTINEL", "MONITOR", "it", "127.0.0.1", str(primary.port), "1")
    monitor.execute_command("SENTINEL", "SET", "it", "failover-timeout", "10000")
    yield sentinel.port, primary, replica, monitor
    print(Path(sentinel.facts["log"]).read_text())  # pytest shows it if the test fails
    sentinel.close()


def test_holders_and_waiters_survive_a_failover(deployment: Any) -> None:
    port, primary, replica, monitor = deployment
    client = Sentinel([("127.0.0.1", port)], socket_timeout=1).master_for("it")
    lock, granted = Lock(client, "a"), threading.Event()
    lock.acquire()
    lost = lock.lost
    eventually(lambda: holders(replica.client(), "a"))  # the replica has the lock

    def wait() -> None:
        with Lock(client, "a"):
            granted.set()

    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: waiters(primary.client(), "a") == 1)
    eventually(lambda: has_failed_over(monitor, replica.client()), 60)
    eventually(lambda: waiters(replica.client(), "a") == 1 or granted.is_set(), 60)
    assert lock.owned() and not lost.is_set() and not granted.is_set()
    lock.release()
    assert granted.wait(20)


#: Wait limit and probe interval: the stopped server does not answer a probe; or the Sentinel names another before one.
PROBES = [(None, 0.3), (60, 6.0)]


@pytest.mark.parametrize(("limit", "interval"), PROBES)
def test_a_waiter_leaves_a_stopped_primary(
    deployment: Any, monkeypatch: pytest.MonkeyPatch, limit: float | None, interval: float
) -> None:
    monkeypatch.setattr(_probe, "PROBE_INTERVAL", interval)
    client = Sentinel([("127.0.0.1", deployment[0])], socket_timeout=1).master_for("it")
    lock, granted = Lock(client, "a"), threading.Event()
    lock.acquire()

    def wait() -> None:
        with Lock(client, "a", blocking_timeout=limit):
            granted.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    fail_over_a_stopped_primary(deployment)
    assert lock.owned() and not granted.is_set()
    lock.release()
    waiting.join(20)
    assert granted.is_set() and not waiting.is_alive()


@pytest.mark.parametrize(("limit", "interval"), PROBES)
def test_a_waiter_leaves_a_stopped_primary_in_asyncio(
    deployment: Any, monkeypatch: pytest.MonkeyPatch, limit: float | None, interval: float
) -> None:
    monkeypatch.setattr(_probe, "PROBE_INTERVAL", interval)

    async def main() -> None:
        sentinel = AsyncSentinel([("127.0.0.1", deployment[0])], socket_timeout=1)
        client = sentinel.master_for("it")
        lock, other = (lockward.asyncio.Lock(client, "a", blocking_timeout=limit) for _ in range(2))
        await lock.acquire()
        waiting = asyncio.create_task(other.acquire())
        await asyncio.to_thread(fail_over_a_stopped_primary, deployment)
        assert await lock.owned() and not waiting.done()
        await lock.release()
        assert await asyncio.wait_for(waiting, 20)
        await other.release()
        await close(client, *sentinel.sentinels)

    asyncio.run(main())


def fail_over_a_stopped_primary(deployment: Any) -> None:
    """Stop the primary, and wait until its waiter waits at the replica. The stopped primary keeps its connections."""
    _, primary, replica, monitor = deployment
    eventually(lambda: waiters(primary.client(), "a") == 1 and holders(replica.client(), "a"))
    eventually(lambda: monitor.execute_command("SENTINEL", "REPLICAS", "it"))
    primary.stop()
    eventually(lambda: has_failed_over(monitor, replica.client()), 60)
    eventually(lambda: waiters(replica.client(), "a") == 1, 60)


def has_failed_over(monitor: redis.Redis, replica: redis.Redis) -> bool:
    try:
        if replica.info("replication")["role"] == "master":
            return True
        monitor.execute_command("SENTINEL", "FAILOVER", "it")
    except redis.ConnectionError:  # a replica that is promoted closes its connections
        pass
    except redis.ResponseError:  # the Sentinel does not know the replica yet, or a failover is under way
        pass
    return False


def test_sentinels_in_asyncio(deployment: Any) -> None:
    port, primary, _, _ = deployment

    async def main() -> None:
        sentinel = AsyncSentinel([("127.0.0.1", port)], socket_timeout=1)
        client = sentinel.master_for("it")
        async with lockward.asyncio.Lock(client, "a"):
            assert holders(primary.client(), "a")
            assert not await lockward.asyncio.Lock(client, "a").acquire(blocking_timeout=0.05)
        await close(client, *sentinel.sentinels)

    asyncio.run(main())


async def close(*clients: Any) -> None:
    for each in clients:
        await (each.aclose() if hasattr(each, "aclose") else each.close())
