"""Servers for the tests, each with a folder and a port of its own."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

import pytest
import redis

from lockward import _probe

SERVER = os.environ.get("LOCKWARD_SERVER", "redis-server")
MODULE = os.environ.get("LOCKWARD_MODULE") or str(Path(__file__).parents[3] / "target" / "release" / "liblockward.so")


def eventually(condition: Callable[[], Any], within: float = 20.0) -> Any:
    """The condition's value, once it is true."""
    until = time.monotonic() + within
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, "the condition is still false"
        time.sleep(0.005)


def free_port() -> int:
    """A port below the system's ephemeral ports. A cluster node also uses the port 10,000 above it."""
    while True:
        port = random.randint(10_000, 22_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


class Server:
    def __init__(self, folder: Path, *arguments: str, module: tuple[str, ...] = ()) -> None:
        self.folder, self.arguments, self.module = folder, arguments, module
        self.port = free_port()
        self.start()

    def start(self) -> None:
        plain = ("--save", "", "--appendonly", "no") if not self.arguments else self.arguments
        command = [SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), *plain]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([*command, "--loadmodule", MODULE, *self.module], stdout=log, stderr=log)
        eventually(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with redis.Redis(port=self.port, socket_timeout=1, retry=None) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, **options)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


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


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def server(shared: Server) -> Server:
    """A server that other tests use before and after this one."""
    shared.client().flushall()
    return shared


@pytest.fixture
def own_server(tmp_path: Path) -> Any:
    """A function that starts a server for this test alone."""
    servers = []

    def start(*arguments: str, module: tuple[str, ...] = ()) -> Server:
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(Server(folder, *arguments, module=module))
        return servers[-1]

    yield start
    for each in servers:
        each.resume()
        each.kill()


@pytest.fixture
def short_probe_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe servers sooner."""
    monkeypatch.setattr(_probe, "PROBE_INTERVAL", 0.3)


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


def as_map(reply: Any) -> Any:
    return dict(zip(reply[::2], reply[1::2])) if isinstance(reply, list) else reply


def queue(client: Any, name: Any) -> list[Any]:
    """The waiters, in the order in which they are served."""
    info = as_map(client.execute_command("LOCK.INFO", name, "WAITERS", 100))
    return [as_map(waiter) for waiter in info[b"queue"]] if info else []


def holds(client: Any, name: Any) -> int:
    info = as_map(client.execute_command("LOCK.INFO", name))
    return int(as_map(info[b"holders"][0])[b"holds"]) if info else 0


def calls(client: redis.Redis, command: str) -> int:
    """How often the server was sent a command."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])
