"""Clients of a primary that Sentinels know."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import SERVER, Server, eventually, holders, waiters
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

import lockward.asyncio
from lockward import Lock


@pytest.fixture
def watched(own_server: Any, tmp_path: Path) -> Any:
    """A primary, its replica, and a Sentinel: its port, and the servers."""
    plain = ("--save", "", "--repl-diskless-sync-delay", "0")
    primary, replica = own_server(*plain), own_server(*plain)
    replica.client().execute_command("REPLICAOF", "127.0.0.1", primary.port)
    eventually(lambda: replica.client().info("replication")["master_link_status"] == "up")
    sentinel = SentinelServer(tmp_path)
    monitor = sentinel.client()
    monitor.execute_command("SENTINEL", "MONITOR", "it", "127.0.0.1", str(primary.port), "1")
    monitor.execute_command("SENTINEL", "SET", "it", "failover-timeout", "10000")
    yield sentinel.port, primary, replica, monitor
    sentinel.kill()
    print((tmp_path / "log").read_text())  # shown if the test has failed


class SentinelServer(Server):
    def __init__(self, folder: Path) -> None:
        (folder / "sentinel.conf").write_text("")
        super().__init__(folder, str(folder / "sentinel.conf"))

    def start(self) -> None:
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [SERVER, self.arguments[0], "--port", str(self.port), "--bind", "127.0.0.1", "--sentinel"],
                stdout=log,
                stderr=log,
            )
        eventually(self.answers)


def test_a_failover_leaves_holders_and_waiters_as_they_are(watched: Any) -> None:
    port, primary, replica, monitor = watched
    client = Sentinel([("127.0.0.1", port)], socket_timeout=1).master_for("it")
    lock, granted = Lock(client, "a"), threading.Event()
    lock.acquire()
    lost = lock.lost
    eventually(lambda: holders(replica.client(), "a"))  # it has heard of the grant

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


def has_failed_over(monitor: redis.Redis, replica: redis.Redis) -> bool:
    if replica.info("replication")["role"] == "master":
        return True
    try:
        monitor.execute_command("SENTINEL", "FAILOVER", "it")
    except redis.ResponseError:  # it has not seen the replica yet, or is at it
        pass
    return False


def test_sentinels_in_asyncio(watched: Any) -> None:
    port, primary, _, _ = watched

    async def main() -> None:
        client = AsyncSentinel([("127.0.0.1", port)], socket_timeout=1).master_for("it")
        async with lockward.asyncio.Lock(client, "a"):
            assert holders(primary.client(), "a")
            assert not await lockward.asyncio.Lock(client, "a").acquire(blocking_timeout=0.05)
        await (client.aclose() if hasattr(client, "aclose") else client.close())

    asyncio.run(main())
