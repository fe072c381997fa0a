"""Servers for the tests, each with a folder and a port of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

import pytest
import redis

PROGRAM = Path(__file__).parents[3] / "target" / "release" / "lockward-test-server"


def eventually(condition: Callable[[], Any], within: float = 20.0) -> Any:
    """Wait until the condition is true, and return its value."""
    until = time.monotonic() + within
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, "the condition is still false"
        time.sleep(0.005)


async def eventually_in_loop(condition: Callable[[], Any], within: float = 20.0) -> Any:
    """As `eventually`, but other tasks run meanwhile."""
    until = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < until, "the condition is still false"
        await asyncio.sleep(0.005)
    return found


class Process:
    """Runs the program of tests/src/bin/lockward-test-server.rs, which describes its protocol."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts = self._answer()
        self.port = int(self.facts["port"])

    def ask(self, command: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the server has ended: see the error output"
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0, "the server has crashed: see the error output"


class Server(Process):
    def __init__(self, *config: str, module: str = "") -> None:
        super().__init__("server", "--module", module, *config)

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, **options)

    def stop(self) -> None:
        self.ask("pause")

    def resume(self) -> None:
        self.ask("resume")

    def kill(self) -> None:
        self.ask("kill")

    def restart(self, module: str = "") -> None:
        """`module` has more arguments for the module."""
        if module:
            self.ask(f"module {module}")
        self.ask("restart")


@pytest.fixture(scope="session")
def shared() -> Any:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(shared: Server) -> Server:
    """An empty server that all tests share."""
    shared.client().flushall()
    return shared


@pytest.fixture
def own_server() -> Any:
    """A function that starts a server for this test alone."""
    servers = []

    def start(*config: str, module: str = "") -> Server:
        servers.append(Server(*config, module=module))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


@pytest.fixture
def client(server: Server) -> Any:
    with server.client() as client:
        yield client


def holders(client: Any, name: Any) -> list[bytes]:
    info = as_map(client.execute_command("LOCK.INFO", name))
    return [as_map(holder)[b"owner"] for holder in info[b"holders"]] if info else []


def waiters(client: Any, name: Any) -> int:
    info = as_map(client.execute_command("LOCK.INFO", name))
    return int(info[b"waiters"]) if info else 0


def held_for(client: Any, name: Any) -> float:
    """For how many seconds the only holder has held the lock."""
    [holder] = as_map(client.execute_command("LOCK.INFO", name))[b"holders"]
    return int(as_map(holder)[b"held-for"]) / 1000


def as_map(reply: Any) -> Any:
    return dict(zip(reply[::2], reply[1::2])) if isinstance(reply, list) else reply


def calls(client: redis.Redis, command: str) -> int:
    """How often the server has received a command."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])
