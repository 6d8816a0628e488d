"""A network of bytes: both ends of a connection are asyncio transports; what is written comes late and in pieces.

An end of stream, a reset or a broken line overtakes nothing that was sent before it, but a reset may destroy what was
not read yet. What lies unread makes the connection's socket readable for ``poll``, though the loop has not told.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
from collections import deque
from typing import Any, Final, Protocol, cast

from tests.simulation.loop import Process, VirtualLoop, process_here

END: Final = "end"
RESET: Final = "reset"
Item = bytes | str
PIECES_MAX: Final = 4


class Watch(Protocol):
    """Sees what the client's side writes and reads."""

    def written(self, end: End, data: bytes) -> None:
        """Bytes are about to be put on the line."""

    def read(self, item: Item) -> None:
        """Bytes, an end or a reset are about to be told."""


class _Socket:
    """Readable exactly while something lies unread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._is_readable = False
        self._open = True

    def fileno(self) -> int:
        """What ``poll`` watches."""
        return self._reading

    def show(self, *, readable: bool) -> None:
        """Be readable or not."""
        if self._open and readable != self._is_readable:
            self._is_readable = readable
            if readable:
                os.write(self._writing, b"x")
            else:
                os.read(self._reading, 1)

    def close(self) -> None:
        """Give the descriptors back."""
        if self._open:
            self._open = False
            os.close(self._reading)
            os.close(self._writing)


class End(asyncio.Transport):
    """One side of a connection. Its protocol's callbacks run in ``context``; the line itself belongs to the world."""

    peer: End

    def __init__(self, wire: Wire, context: contextvars.Context, process: Process | None, *, has_socket: bool) -> None:
        super().__init__()
        self._wire = wire
        self._context = context
        self.process = process
        self.socket = _Socket() if has_socket else None
        self.protocol: asyncio.Protocol | None = None
        self.muted = False
        self.is_lost = False
        self.is_cut = False
        """The line is broken without a word: nothing comes through any more."""
        self.watch: Watch | None = None
        self._closing = False
        self._reading = True
        self._pumping = False
        self._inbox: deque[Item] = deque()
        self._line: deque[Item] = deque()
        self._line_until_s = 0.0
        self._unread_bytes = 0
        self._room_bytes = wire.random.choice([100, 4096, 65536])
        self._high, self._low = 65536, 16384
        self._paused = False

    # ---- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Only the socket is known."""
        return self.socket if name == "socket" and self.socket is not None else default

    def is_closing(self) -> bool:
        """Closed or lost."""
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Call this one from now on."""
        self.protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is called."""
        assert self.protocol is not None
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to call ``pause_writing`` and ``resume_writing``."""
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """What does not fit into the socket."""
        return max(0, self._unread_bytes - self._room_bytes)

    def is_reading(self) -> bool:
        """Whether bytes are told."""
        return self._reading

    def pause_reading(self) -> None:
        """Tell nothing for a while."""
        self._reading = False

    def resume_reading(self) -> None:
        """Tell again."""
        self._reading = True
        self._pump_soon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Put bytes on the line, cut into pieces."""
        if self._closing:
            return
        data = bytes(data)
        if self.watch is not None:
            self.watch.written(self, data)
        self._unread_bytes += len(data)
        for piece in self._wire.cut(data):
            self._put(piece)
        if self.get_write_buffer_size() > self._high and not self._paused:
            self._paused = True
            self.get_protocol().pause_writing()

    def can_write_eof(self) -> bool:
        """It is never done."""
        return False

    def close(self) -> None:
        """End the stream; a close with unread bytes is a reset, as it is with TCP."""
        if not self._closing:
            self._close(RESET if any(isinstance(item, bytes) for item in self._inbox) else END)

    def abort(self) -> None:
        """Reset the connection."""
        if not self._closing:
            self._close(RESET)
        else:
            self._put(RESET)

    # ---- the line

    def begin(self, protocol: asyncio.Protocol) -> None:
        """The connection stands. To be called in the end's own context."""
        self.protocol = protocol
        protocol.connection_made(self)
        self._pump_soon()

    def drop(self) -> None:
        """The process died: the system resets its connections."""
        if not self.is_lost:
            self._closing = self.is_lost = True
            self._put(RESET)
            self._forget()

    def ended(self) -> bool:
        """Whether the other side has closed, as far as this machine knows."""
        return self.is_lost or any(isinstance(item, str) for item in self._inbox)

    def has_unread(self) -> bool:
        """Whether this machine has got something that the protocol was not told."""
        return bool(self._inbox)

    def _close(self, item: Item) -> None:
        self._closing = True
        self._put(item)
        self._wire.loop.call_soon(self._lose, None, context=self._context)

    def _put(self, item: Item) -> None:
        loop = self._wire.loop
        self._line_until_s = max(self._line_until_s, loop.time() + self._wire.latency_s())
        self._line.append(item)
        loop.call_at(self._line_until_s, self._arrive, context=self._wire.context)

    def _arrive(self) -> None:
        item, peer = self._line.popleft(), self.peer
        if self.is_cut or peer.is_cut:
            return
        if not peer._closing:
            peer._take(item)
        elif isinstance(item, bytes) and not self.is_lost:
            peer._put(RESET)

    def _take(self, item: Item) -> None:
        if item == RESET and self._wire.random.random() < 0.5:
            self._inbox.clear()
        self._inbox.append(item)
        if self.socket is not None:
            self.socket.show(readable=True)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if self._inbox and not self._pumping and self._reading and self.protocol is not None:
            self._pumping = True
            self._wire.loop.call_soon(self._pump, context=self._context)

    def _pump(self) -> None:
        self._pumping = False
        if self.is_lost or self._closing or not self._reading or not self._inbox:
            return
        item = self._next_item()
        if self.socket is not None:
            self.socket.show(readable=bool(self._inbox))
        if self.watch is not None:
            self.watch.read(item)
        protocol = self.protocol
        assert protocol is not None
        if isinstance(item, bytes):
            self.peer._was_read(len(item))
            protocol.data_received(item)
        elif item == END:
            if not protocol.eof_received():
                self.close()
        else:
            self._closing = True
            self._lose(ConnectionResetError("simulated"))
        self._pump_soon()

    def _next_item(self) -> Item:
        """One read gives what came in one piece, or more."""
        item = self._inbox.popleft()
        while isinstance(item, bytes) and self._inbox and isinstance(self._inbox[0], bytes):
            if self._wire.random.random() < 0.5:
                break
            item += cast("bytes", self._inbox.popleft())
        return item

    def _was_read(self, count: int) -> None:
        self._unread_bytes -= count
        if self._paused and not self.is_lost and self.get_write_buffer_size() <= self._low:
            self._paused = False
            self._wire.loop.call_soon(self._resume, context=self._context)

    def _resume(self) -> None:
        if not self.is_lost and not self._paused:
            self.get_protocol().resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._forget()
            if self.protocol is not None and not self.muted:
                self.protocol.connection_lost(error)

    def _forget(self) -> None:
        self._inbox.clear()
        if self.socket is not None:
            self.socket.close()
        self._wire.ends.pop(id(self), None)


class Wire:
    """All connections of a world."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, context: contextvars.Context) -> None:
        self.loop = loop
        self.random = rng
        self.context = context
        self.ends: dict[int, End] = {}
        self._mean_s = rng.choice([0.0002, 0.005, 0.03])
        self._most_pieces = rng.choice([1, 2, PIECES_MAX])

    def pair(self) -> tuple[End, End]:
        """Connect who asks, a process, with a receiver."""
        client = End(self, contextvars.copy_context(), process_here(), has_socket=True)
        server = End(self, self.context, None, has_socket=False)
        client.peer, server.peer = server, client
        self.ends[id(client)], self.ends[id(server)] = client, server
        return client, server

    def latency_s(self) -> float:
        """How long a piece is on the line."""
        return self.random.expovariate(1 / self._mean_s)

    def cut(self, data: bytes) -> list[bytes]:
        """Cut at places drawn by chance."""
        count = self.random.randint(1, self._most_pieces)
        places = sorted(self.random.randint(0, len(data)) for _ in range(count - 1))
        pieces = zip([0, *places], [*places, len(data)], strict=True)
        return [data[start:stop] for start, stop in pieces if start < stop]

    def kill(self, process: Process) -> None:
        """Reset the connections of a process that died."""
        for end in list(self.ends.values()):
            if end.process is process:
                end.drop()

    def close(self) -> None:
        """Give all descriptors back."""
        for end in self.ends.values():
            if end.socket is not None:
                end.socket.close()
        self.ends.clear()
