"""Clients of a cluster, and of Sentinels."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import Server, eventually, holders, waiters
from redis.asyncio.cluster import RedisCluster as AsyncCluster
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel

import lockward.asyncio
from lockward import Lock

SLOTS = 16384
NAME = "{a}lock"  # in slot 15495


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    nodes = []
    for number in range(2):
        folder = tmp_path_factory.mktemp(f"node{number}")
        nodes.append(Server(folder, "--cluster-enabled", "yes", "--save", "", "--cluster-node-timeout", "5000"))
    first, second = (node.client() for node in nodes)
    first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS // 2)
    second.execute_command("CLUSTER", "ADDSLOTSRANGE", SLOTS // 2 + 1, SLOTS - 1)
    first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    eventually(lambda: all(in_order(client) for client in (first, second)))
    yield nodes
    for node in nodes:
        node.kill()


def in_order(client: redis.Redis) -> bool:
    return client.cluster("INFO")["cluster_state"] == "ok" and len(client.cluster("SLOTS")) == 2


def test_a_cluster(nodes: Any) -> None:
    cluster, direct = RedisCluster(port=nodes[0].port, host="127.0.0.1"), nodes[1].client()
    mine, elsewhere = Lock(cluster, NAME, lease=1), Lock(cluster, "b", lease=1)
    assert mine.acquire() and elsewhere.acquire()
    assert holders(direct, NAME) and holders(nodes[0].client(), "b")
    granted = threading.Event()

    def wait() -> None:
        with Lock(cluster, NAME):
            granted.set()

    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: waiters(direct, NAME) == 1)
    calls = [node.client().info("commandstats").get("cmdstat_lock.renew", {"calls": 0})["calls"] for node in nodes]
    for node, before in zip(nodes, calls):
        stats = node.client()
        eventually(lambda stats=stats, before=before: renewals(stats) > before + 3)
    assert mine.owned() and elsewhere.held
    mine.release()
    assert granted.wait(20)
    elsewhere.release()


def test_a_cluster_client_that_the_program_drops_leaves_nothing(nodes: Any) -> None:
    before = set(threading.enumerate())
    cluster = RedisCluster(port=nodes[0].port, host="127.0.0.1")
    with Lock(cluster, NAME):
        [thread] = [each for each in threading.enumerate() if each not in before and each.name == "lockward"]
    del cluster
    gc.collect()
    eventually(lambda: not thread.is_alive())


def renewals(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_lock.renew", {"calls": 0})["calls"])


def test_a_cluster_in_asyncio(nodes: Any) -> None:
    async def main() -> None:
        cluster = AsyncCluster(host="127.0.0.1", port=nodes[0].port)
        try:
            async with lockward.asyncio.Lock(cluster, NAME) as lock:
                assert holders(nodes[1].client(), NAME) and await lock.owned()
                other = lockward.asyncio.Lock(cluster, NAME)
                assert not await other.acquire(blocking_timeout=0.05)
                waiting = asyncio.create_task(other.acquire())
                while waiters(nodes[1].client(), NAME) != 1:
                    await asyncio.sleep(0.005)
            assert await waiting
            await other.release()
        finally:
            await (cluster.aclose() if hasattr(cluster, "aclose") else cluster.close())

    asyncio.run(main())


def test_a_slot_that_moves_takes_its_lock_along(nodes: Any) -> None:
    """Nobody tells the client: it finds out by MOVED, while it waits, renews and releases."""
    cluster, name = RedisCluster(port=nodes[0].port, host="127.0.0.1"), "{c}lock"
    slot = cluster.keyslot(name)
    source, target = (node.client() for node in nodes)
    ids = [client.execute_command("CLUSTER", "MYID").decode() for client in (source, target)]
    lock, granted = Lock(cluster, name, lease=1), threading.Event()
    lock.acquire()
    assert holders(source, name)

    def wait() -> None:
        with Lock(cluster, name):
            granted.set()

    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: waiters(source, name) == 1)
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
    source.execute_command("MIGRATE", "127.0.0.1", nodes[1].port, name, 0, 5000)
    assert lock.owned()  # by ASK
    for client in (target, source):
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    eventually(lambda: waiters(target, name) == 1)
    before = renewals(target)
    eventually(lambda: renewals(target) > before + 3)
    assert lock.held and lock.owned() and not granted.is_set()
    lock.release()
    assert granted.wait(20)


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


class SentinelServer(Server):
    def __init__(self, folder: Path) -> None:
        (folder / "sentinel.conf").write_text("")
        super().__init__(folder, str(folder / "sentinel.conf"))

    def start(self) -> None:
        import subprocess  # noqa: PLC0415

        from conftest import SERVER  # noqa: PLC0415

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
    assert holders(primary.client(), "a")

    def wait() -> None:
        with Lock(client, "a"):
            granted.set()

    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: waiters(primary.client(), "a") == 1)
    eventually(lambda: has_failed_over(monitor, replica.client()), 60)
    eventually(lambda: waiters(replica.client(), "a") == 1, 60)
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
