"""Fixtures for redis-py's own lock tests. Lockward's locks replace redis-py's. See README.md."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock

import lockward
import lockward.asyncio

PROGRAM = os.environ["LOCKWARD_TEST_SERVER"]
#: The tests that are left out, each with the reason why it cannot pass.
LEFT_OUT = {
    "test_lock": "a lock without a timeout has a lease, so its TTL is not -1",
    "test_lock_token": "two locks with the same token are two owners, so the owner is longer than the token",
    "test_lock_token_thread_local_false": "as test_lock_token",
    "test_blocking_timeout": "it replaces the clock of redis-py's module, and counts its sleeps",
    "test_context_manager_blocking_timeout": "as test_blocking_timeout",
    "test_high_sleep_small_blocking_timeout": "as test_blocking_timeout",
}

# The tests import these classes from redis-py.
redis.lock.Lock = lockward.Lock  # type: ignore[assignment,misc]
redis.asyncio.lock.Lock = lockward.asyncio.Lock  # type: ignore[assignment,misc]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.name in LEFT_OUT]
    items[:] = [item for item in items if item.name not in LEFT_OUT]
    config.hook.pytest_deselected(items=left_out)


def owner(info: Any) -> Any:
    """The owner of a Lockward lock, from LOCK.INFO. redis-py's tests read the owner with GET,
    because redis-py's lock is a string."""
    found = dict(zip(info[::2], info[1::2])) if isinstance(info, list) else info
    if not found:
        return None
    [holder, *_] = found[b"holders"]
    return (dict(zip(holder[::2], holder[1::2])) if isinstance(holder, list) else holder)[b"owner"]


class Redis(redis.Redis):
    def get(self, name: Any) -> Any:
        return owner(self.execute_command("LOCK.INFO", name))


class AsyncRedis(redis.asyncio.Redis):
    async def get(self, name: Any) -> Any:
        return owner(await self.execute_command("LOCK.INFO", name))


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    with subprocess.Popen([PROGRAM, "server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield json.loads(server.stdout.readline())["port"]
        server.communicate()  # the server ends when its input is closed


def _get_client(cls: Any, request: pytest.FixtureRequest, **options: Any) -> Any:
    client = Redis(port=request.getfixturevalue("port"), **options)
    client.flushall()
    request.addfinalizer(client.close)
    return client


@pytest.fixture
def sync_client(request: pytest.FixtureRequest) -> Any:
    return _get_client(redis.Redis, request)


@pytest_asyncio.fixture
async def create_redis(port: int) -> AsyncIterator[Any]:
    made: list[AsyncRedis] = []

    async def create(**options: Any) -> AsyncRedis:
        made.append(AsyncRedis(port=port, **options))
        await made[-1].flushall()
        return made[-1]

    yield create
    for client in made:
        await client.aclose()


@pytest_asyncio.fixture
async def async_client(create_redis: Any) -> Any:
    return await create_redis()


@pytest.fixture
def r(request: pytest.FixtureRequest) -> Any:
    is_async = "asyncio" in request.node.path.name
    return request.getfixturevalue("async_client" if is_async else "sync_client")
