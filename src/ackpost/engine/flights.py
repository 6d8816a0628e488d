"""Requests under way, and the marks of what went out and is not recorded yet (rules E5, E6)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ackpost.core.model import DeliveryRef
from ackpost.core.outcome import LOCAL_ERROR, Outcome
from ackpost.engine.lane import Lane
from ackpost.engine.slots import Slots
from ackpost.ports.transport import InFlight


class Flight(msgspec.Struct, gc=False):
    """One request under way, and what to count when it ends."""

    request: InFlight
    lane: Lane
    host: str
    troubled: bool
    done: Callable[[Outcome], None]


class Flights:
    """By delivery. A mark is set before a request begins, and taken away when its result is durable."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._marks: dict[int, int] = {}
        self._flights: dict[int, Flight] = {}

    def __len__(self) -> int:
        """Requests under way."""
        return len(self._flights)

    def unrecorded(self) -> int:
        """Answers whose results are not durable yet."""
        return len(self._marks) - len(self._flights)

    def mark(self, ref: DeliveryRef) -> None:
        """A delivery is about to go out."""
        self._marks[ref.position] = self._slots.take(ref.position, ref.round, ref.number)

    def unmark(self, delivery: int) -> None:
        """Its result is durable, or it did not go out."""
        slot = self._marks.pop(delivery, None)
        if slot is not None:
            self._slots.free(slot)

    def began(self, delivery: int, flight: Flight) -> None:
        """A request is under way."""
        self._flights[delivery] = flight

    def ended(self, delivery: int) -> None:
        """An answer, or none, is here."""
        self._flights.pop(delivery, None)

    def abort_all(self) -> None:
        """Close the sockets; the marks stay, so that the next start counts them."""
        for flight in self._flights.values():
            flight.request.abort()

    def cut_off(self, why: str) -> None:
        """Abort all: their time is over. None of them counts as an attempt."""
        for delivery, flight in list(self._flights.items()):
            flight.request.abort()
            if delivery in self._flights:
                flight.done(Outcome(LOCAL_ERROR, detail=why))

    def forget_all(self) -> dict[int, Flight]:
        """Abort all and take their marks away, as others send them again; give what there was."""
        flights, self._flights = self._flights, {}
        for delivery, flight in flights.items():
            flight.request.abort()
            self.unmark(delivery)
        return flights
