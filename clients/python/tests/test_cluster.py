"""Clients of a cluster."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import Server, calls, eventually, eventually_in_loop, holders, waiters
from redis.asyncio.cluster import RedisCluster as AsyncCluster
from redis.cluster import ClusterNode, RedisCluster

import lockward.asyncio
from lockward import Lock, MultiLock, UnreachableError

SLOTS = 16384
NAME = "{a}lock"  # in slot 15495


@pytest.fixture(scope="session")
def nodes() -> Any:
    nodes = [Server("cluster-enabled yes", "cluster-node-timeout 5000") for _ in range(2)]
    first, second = (node.client() for node in nodes)
    first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS // 2)
    second.execute_command("CLUSTER", "ADDSLOTSRANGE", SLOTS // 2 + 1, SLOTS - 1)
    bus = second.config_get("cluster-port")["cluster-port"]
    first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, bus)
    eventually(lambda: all(is_ready(client) for client in (first, second)))
    yield nodes
    for node in nodes:
        node.close()


def is_ready(client: redis.Redis) -> bool:
    return client.cluster("INFO")["cluster_state"] == "ok" and len(client.cluster("SLOTS")) == 2


def test_locks_in_a_cluster(nodes: Any) -> None:
    cluster, direct = RedisCluster(port=nodes[0].port, host="127.0.0.1"), nodes[1].client()
    mine, elsewhere = Lock(cluster, NAME, lease=2), Lock(cluster, "b", lease=2)
    assert mine.acquire() and elsewhere.acquire()
    assert holders(direct, NAME) and holders(nodes[0].client(), "b")
    granted = threading.Event()

    def wait() -> None:
        with Lock(cluster, NAME):
            granted.set()

    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: waiters(direct, NAME) == 1)
    renewals = [calls(node.client(), "lock.renew") for node in nodes]
    for node, before in zip(nodes, renewals):
        stats = node.client()
        eventually(lambda stats=stats, before=before: calls(stats, "lock.renew") > before + 3)
    assert mine.owned() and elsewhere.held
    mine.release()
    assert granted.wait(20)
    elsewhere.release()


def test_a_dropped_cluster_client_leaves_no_thread(nodes: Any) -> None:
    before = set(threading.enumerate())
    cluster = RedisCluster(port=nodes[0].port, host="127.0.0.1")
    with Lock(cluster, NAME):
        [thread] = [each for each in threading.enumerate() if each not in before and each.name == "lockward"]
    del cluster
    gc.collect()
    eventually(lambda: not thread.is_alive())


def test_locks_in_a_cluster_with_asyncio(nodes: Any) -> None:
    async def main() -> None:
        cluster = AsyncCluster(host="127.0.0.1", port=nodes[0].port)
        try:
            async with lockward.asyncio.Lock(cluster, NAME) as lock:
                assert holders(nodes[1].client(), NAME) and await lock.owned()
                other = lockward.asyncio.Lock(cluster, NAME)
                assert not await other.acquire(blocking_timeout=1)
                waiting = asyncio.create_task(other.acquire())
                await eventually_in_loop(lambda: waiters(nodes[1].client(), NAME) == 1)
            assert await waiting
            await other.release()
        finally:
            await (cluster.aclose() if hasattr(cluster, "aclose") else cluster.close())

    asyncio.run(main())


def test_a_slot_that_the_clients_map_lacks_is_found(nodes: Any) -> None:
    cluster, direct = RedisCluster(port=nodes[0].port, host="127.0.0.1"), nodes[1].client()
    lock = Lock(cluster, NAME, lease=2)
    remove_slot(cluster)
    assert lock.acquire()
    before = calls(direct, "lock.renew")
    eventually(lambda: calls(direct, "lock.renew") > before + 2)
    assert lock.guarded("SET", "{a}data", "1") == b"OK" and direct.get("{a}data") == b"1"
    lock.release()


def test_locks_of_a_node_that_is_gone_are_renewed_at_another_node(nodes: Any) -> None:
    cluster, direct = RedisCluster(port=nodes[0].port, host="127.0.0.1"), nodes[1].client()
    locks = [Lock(cluster, name, lease=3) for name in (NAME, "{a}other", "foo")]  # in two slots of the second node
    for lock in locks:
        assert lock.acquire() and holders(direct, lock.name)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # the port is bound but not listening, so connections are refused
        for lock in locks:
            gone = ClusterNode("127.0.0.1", unused.getsockname()[1], "primary")
            cluster.nodes_manager.slots_cache[cluster.keyslot(lock.name)] = [gone]
        before = calls(direct, "lock.renew")
        eventually(lambda: calls(direct, "lock.renew") > before + 9)
    for lock in locks:
        assert lock.held
        lock.release()


def test_the_grant_of_one_node_is_released_if_another_node_does_not_answer(nodes: Any) -> None:
    cluster, direct = RedisCluster(port=nodes[0].port, host="127.0.0.1"), nodes[1].client()
    names = [Lock(cluster, NAME), Lock(cluster, "b")]
    nodes[0].stop()
    try:
        with pytest.raises(UnreachableError):
            MultiLock(names, patience=0.5, response_limit=0.2, timeout=1000).acquire()
        assert calls(direct, "lock.acquire") > 0
        eventually(lambda: not holders(direct, NAME))
    finally:
        nodes[0].resume()
    eventually(lambda: not holders(nodes[0].client(), "b"))


@pytest.mark.parametrize("silent", [0, 1])
def test_a_silent_node_does_not_delay_what_a_caller_gives_back_to_another_node(nodes: Any, silent: int) -> None:
    cluster, direct = RedisCluster(port=nodes[0].port, host="127.0.0.1"), nodes[1 - silent].client()
    names = ["b", NAME]  # in the order in which the client asks for them
    both = MultiLock([Lock(cluster, name) for name in names], timeout=1000, patience=60, response_limit=60)
    nodes[silent].stop()
    try:
        acquired, released = calls(direct, "lock.acquire"), calls(direct, "lock.release")
        assert not both.acquire(blocking_timeout=0.5)
        eventually(lambda: calls(direct, "lock.release") > released and not holders(direct, names[1 - silent]))
        assert calls(direct, "lock.acquire") == acquired + 1, "the call goes on after its wait limit"
    finally:
        nodes[silent].resume()
    eventually(lambda: not holders(nodes[silent].client(), names[silent]))


@pytest.mark.parametrize("silent", [0, 1])
def test_a_silent_node_does_not_delay_the_release_at_another_node(nodes: Any, silent: int) -> None:
    cluster, direct = RedisCluster(port=nodes[0].port, host="127.0.0.1"), nodes[1 - silent].client()
    names = ["b", NAME]  # in the order in which the client asks for them
    locks = [Lock(cluster, name) for name in names]
    both = MultiLock(locks, timeout=1000, patience=60, response_limit=60, thread_local=False)
    assert both.acquire()
    nodes[silent].stop()
    try:
        releasing = threading.Thread(target=both.release, daemon=True)
        releasing.start()
        eventually(lambda: not holders(direct, names[1 - silent]))
    finally:
        nodes[silent].resume()
    releasing.join(20)
    assert not releasing.is_alive() and not holders(nodes[silent].client(), names[silent])


@pytest.mark.parametrize("silent", [0, 1])
def test_a_cancelled_call_for_several_nodes_asks_no_node_again(nodes: Any, silent: int) -> None:
    async def main() -> None:
        cluster, direct = AsyncCluster(host="127.0.0.1", port=nodes[0].port), nodes[1 - silent].client()
        names = ["b", NAME]
        await cluster.initialize()
        both = lockward.asyncio.MultiLock([lockward.asyncio.Lock(cluster, name) for name in names], timeout=1000)
        nodes[silent].stop()
        try:
            acquiring = asyncio.create_task(both.acquire())
            await eventually_in_loop(lambda: holders(direct, names[1 - silent]))
            acquiring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquiring
        finally:
            nodes[silent].resume()
        for node, name in zip(nodes, names):
            await eventually_in_loop(lambda node=node, name=name: not holders(node.client(), name))
        await (cluster.aclose() if hasattr(cluster, "aclose") else cluster.close())

    asyncio.run(main())


def test_an_interrupted_call_for_several_nodes_asks_no_node_later(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks each node in its own thread. A late thread must not acquire a key after the call has given up."""
    cluster = RedisCluster(port=nodes[0].port, host="127.0.0.1")
    both = MultiLock([Lock(cluster, "b"), Lock(cluster, NAME)], timeout=1000)
    runtime, go_on, late = both._runtime, threading.Event(), []
    send, wait = runtime.send, runtime.wait

    async def send_later(node: Any, requests: Any, *others: Any) -> None:
        if requests[0].key == NAME.encode():
            late.append(threading.current_thread())
            assert go_on.wait(20)
        await send(node, requests, *others)

    async def interrupt(started: Any, limit: float) -> None:
        if limit > 1000:  # the call waits for the late thread
            raise KeyboardInterrupt
        await wait(started, limit)

    monkeypatch.setattr(runtime, "send", send_later)
    monkeypatch.setattr(runtime, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        both.acquire()
    eventually(lambda: late)
    go_on.set()
    late[0].join(20)
    assert not late[0].is_alive() and not holders(nodes[1].client(), NAME)
    eventually(lambda: not holders(nodes[0].client(), "b"))


def remove_slot(cluster: Any) -> None:
    """Remove the slot from the client's map, as if no node had the slot when the client loaded the map."""
    cluster.nodes_manager.slots_cache.pop(cluster.keyslot(NAME), None)


def test_a_waiter_survives_a_redirection_to_a_dead_node(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each redirection is an answer, which starts the patience again. So the call goes on until a node serves the slot."""
    cluster, granted = RedisCluster(port=nodes[0].port, host="127.0.0.1"), threading.Event()
    lock = Lock(cluster, NAME, patience=0.2)
    servers, first, redirected = lock._runtime.servers, ("127.0.0.1", nodes[0].port), []
    with socket.socket() as unused, monkeypatch.context() as patch:
        unused.bind(("127.0.0.1", 0))  # the port is bound but not listening, so connections are refused
        patch.setattr(servers, "node_of", lambda *_: first)
        patch.setattr(servers, "redirect", lambda *_: redirected.append(True) or unused.getsockname())
        threading.Thread(target=lambda: lock.acquire(blocking_timeout=20) and granted.set(), daemon=True).start()
        eventually(lambda: len(redirected) > 6)  # the pauses between the attempts are longer than the patience
        assert not granted.is_set()
    assert granted.wait(20)
