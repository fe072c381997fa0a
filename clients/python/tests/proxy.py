"""A proxy that loses requests and replies at random."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any


class Proxy:
    """A proxy for the server on `port`, in another thread. After a loss it closes the connection."""

    def __init__(self, port: int, rate: float, seed: int) -> None:
        self.server, self.rate, self.random = port, rate, random.Random(seed)
        self.requests_lost = self.replies_lost = 0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(20)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        listener = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = listener.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        for task in (tasks := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        listener.close()
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    async def _serve(self, reader: Any, writer: Any) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.server)
        try:
            while request := await reader.read(65536):
                fate = self.random.random() if b"LOCK." in request or b"EVAL" in request else 1.0
                if fate < self.rate / 3:
                    self.requests_lost += 1
                    return
                to_server.write(request)
                reply = await from_server.read(65536)
                if not reply:
                    return
                if fate < self.rate:
                    self.replies_lost += 1
                    return
                writer.write(reply)
        except OSError:
            pass
        finally:
            writer.close()
            to_server.close()
