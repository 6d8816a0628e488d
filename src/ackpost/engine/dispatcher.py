"""Fair turns (rule E12): round the tenants, then their endpoints with work.

Slots are bounded and hosts have a cap. Half of each at most go to endpoints in trouble; a quarter more is for the first
request of those that have not answered yet, so that many that hang never keep new ones, or good ones, waiting for long.
Decides who sends next; ``send`` does it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from ackpost.core.model import DeliveryRef
from ackpost.engine.lane import Lane
from ackpost.ports.clock import Clock

PUMP_SENDS_MAX: Final = 64
"""Sends in one go; then the loop gets its turn, so that accepting and sending alternate."""

Send = Callable[[Lane, DeliveryRef, int], None]


class Dispatcher:
    """Rings of lanes that may have something to send, and the timers of those that will."""

    def __init__(self, clock: Clock, send: Send, *, slots: int, host_cap: int, may_send: Callable[[], bool]) -> None:
        self._clock = clock
        self._send = send
        self._slots = slots
        self._host_cap = host_cap
        self._may_send = may_send
        self._ring: deque[tuple[int, deque[Lane]]] = deque()
        self._tenants: dict[int, deque[Lane]] = {}
        self._hosts: dict[str, int] = {}
        self._host_waiters: dict[str, deque[Lane]] = {}
        self._slot_waiters: deque[Lane] = deque()
        self._troubled: dict[str, int] = {}
        self._trouble_waiters: dict[str, deque[Lane]] = {}
        self._timers: list[tuple[int, int, Lane]] = []
        self._timer_serial = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._pumping = False
        self.in_flight = 0
        self.troubled_in_flight = 0

    def activate(self, lane: Lane) -> None:
        """A lane may have something to send."""
        if lane.queued:
            return
        lane.queued = True
        queue = self._tenants.get(lane.tenant)
        if queue is None:
            queue = self._tenants[lane.tenant] = deque()
            self._ring.append((lane.tenant, queue))
        queue.append(lane)
        self.kick()

    def kick(self) -> None:
        """Make the ring turn soon."""
        if not self._pumping and self._ring:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def started(self, host: str, *, troubled: bool) -> None:
        """Count a request that began."""
        self.in_flight += 1
        self._hosts[host] = self._hosts.get(host, 0) + 1
        if troubled:
            self.troubled_in_flight += 1
            self._troubled[host] = self._troubled.get(host, 0) + 1

    def finished(self, lane: Lane, host: str, *, troubled: bool) -> None:
        """Count a request that ended, and wake who waited for its place."""
        self.in_flight -= 1
        _count_down(self._hosts, host)
        self._wake_host_waiter(host)
        if troubled:
            self.troubled_in_flight -= 1
            _count_down(self._troubled, host)
            self._wake_trouble_waiter(host)
            self._wake_slot_waiter()
        self.activate(lane)
        self.kick()

    def _wake_host_waiter(self, host: str) -> None:
        waiters = self._host_waiters.get(host)
        while waiters:
            lane = waiters.popleft()
            lane.host_waiting = False
            self.activate(lane)
            if not waiters:
                del self._host_waiters[host]
            if _host_of(lane) == host:  # else its URL was changed meanwhile: the place is the next one's
                return

    def _wake_trouble_waiter(self, host: str) -> None:
        waiters = self._trouble_waiters.get(host)
        while waiters:
            lane = waiters.popleft()
            lane.trouble_waiting = False
            self.activate(lane)
            if not waiters:
                del self._trouble_waiters[host]
            if lane.troubled and _host_of(lane) == host:
                return

    def _wake_slot_waiter(self) -> None:
        while self._slot_waiters:
            lane = self._slot_waiters.popleft()
            lane.slot_waiting = False
            self.activate(lane)
            if lane.troubled:
                return

    def close(self) -> None:
        """Forget all timers."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._timers.clear()

    def _pump(self) -> None:
        self._pumping = False
        now_ms = self._clock.now_ms()
        budget = PUMP_SENDS_MAX
        while self._ring and budget and self.in_flight < self._slots and self._may_send():
            tenant, queue = self._ring.popleft()
            self._turn(queue.popleft(), queue, now_ms)
            if queue:
                self._ring.append((tenant, queue))
            else:
                del self._tenants[tenant]
            budget -= 1
        if self._ring and self.in_flight < self._slots and self._may_send():
            self.kick()

    def _turn(self, lane: Lane, queue: deque[Lane], now_ms: int) -> None:
        """Give one lane its turn: it sends once and goes to the back, or it waits for what will wake it."""
        host = _host_of(lane)
        if self._hosts.get(host, 0) >= self._host_cap:
            lane.queued = False
            if not lane.host_waiting:
                lane.host_waiting = True
                self._host_waiters.setdefault(host, deque()).append(lane)
            if lane.troubled:
                self._wake_slot_waiter()
            return
        if lane.troubled and self._has_too_much_trouble(lane, host):
            self._wake_host_waiter(host)
            return
        ref = lane.take(now_ms)
        if ref is None:
            lane.queued = False
            if lane.wake_ms:
                self._set_timer(lane, lane.wake_ms, now_ms)
            # It may have been woken for a place that it does not use: the next one gets it.
            self._wake_host_waiter(host)
            if lane.troubled:
                self._wake_trouble_waiter(host)
                self._wake_slot_waiter()
            return
        self._send(lane, ref, now_ms)
        queue.append(lane)

    def _has_too_much_trouble(self, lane: Lane, host: str) -> bool:
        """Let a lane in trouble wait while such lanes hold their share of all slots, or of the host's places."""
        is_new = lane.unproven and not lane.in_flight
        if self.troubled_in_flight >= _share(self._slots, is_new=is_new):
            lane.queued = False
            if not lane.slot_waiting:
                lane.slot_waiting = True
                _append(self._slot_waiters, lane, is_new=is_new)
            return True
        if self._troubled.get(host, 0) >= _share(self._host_cap, is_new=is_new):
            lane.queued = False
            if not lane.trouble_waiting:
                lane.trouble_waiting = True
                _append(self._trouble_waiters.setdefault(host, deque()), lane, is_new=is_new)
            self._wake_slot_waiter()
            return True
        return False

    def _set_timer(self, lane: Lane, when_ms: int, now_ms: int) -> None:
        if now_ms < lane.timer_ms <= when_ms:
            return
        lane.timer_ms = when_ms
        self._timer_serial += 1
        heappush(self._timers, (when_ms, self._timer_serial, lane))
        if self._alarm is None or when_ms < self._alarm_ms:
            self._set_alarm(when_ms, now_ms)

    def _set_alarm(self, when_ms: int, now_ms: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = when_ms
        delay_s = max(0, when_ms - now_ms) / 1000
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring_alarm)

    def _ring_alarm(self) -> None:
        self._alarm = None
        now_ms = self._clock.now_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            self.activate(heappop(self._timers)[2])
        if self._timers:
            self._set_alarm(self._timers[0][0], now_ms)


def _host_of(lane: Lane) -> str:
    return "" if lane.builder is None else lane.builder.target.pool_key


def _count_down(counts: dict[str, int], name: str) -> None:
    left = counts[name] - 1
    if left:
        counts[name] = left
    else:
        del counts[name]


def _share(places: int, *, is_new: bool) -> int:
    return max(1, places * 3 // 4 if is_new else places // 2)


def _append(waiters: deque[Lane], lane: Lane, *, is_new: bool) -> None:
    """Who asks for more of the places goes first: when one is free, it may be none for the others yet."""
    if is_new:
        waiters.appendleft(lane)
    else:
        waiters.append(lane)
