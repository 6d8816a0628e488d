"""The nouns' own small knowledge: status of an event, pinned format, running clock, silent secrets."""

from __future__ import annotations

import pytest

from ackpost.core.model import Endpoint, EndpointSecret, Event


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ({}, "unmatched"),
        ({"delivered": 2}, "delivered"),
        ({"delivered": 2, "pending": 1, "dead": 1}, "pending"),
        ({"delivered": 2, "dead": 1}, "dead"),
        ({"cancelled": 1}, "delivered"),
    ],
)
def test_an_events_status_is_told_by_its_deliveries(counts: dict[str, int], status: str) -> None:
    """Pending while any is, then dead if any is dead; without deliveries unmatched."""
    assert Event(position=1, tenant=1, type="a", delivery_counts=counts).status == status


def test_a_pin_names_the_key_field_of_flat_only() -> None:
    """Other formats have no key field to keep."""
    endpoint = Endpoint(position=1, tenant=1, url="https://a.example/", key_field="message_id")
    assert endpoint.pin == "standard"
    endpoint.format = "flat"
    assert endpoint.pin == "flat:message_id"
    endpoint.key_field = None
    assert endpoint.pin == "flat"


def test_the_running_clock_stands_still_while_paused() -> None:
    """It runs with time, less what was paused, and not at all during a pause."""
    endpoint = Endpoint(position=1, tenant=1, url="https://a.example/", paused_total_ms=100)
    assert (endpoint.clock_ms(1000), endpoint.clock_ms(1001)) == (900, 901)
    endpoint.paused_since_ms = 2000
    assert (endpoint.clock_ms(2500), endpoint.clock_ms(9000)) == (1900, 1900)


def test_a_secret_is_not_shown() -> None:
    """The representation tells the times only."""
    assert "v0:hidden" not in repr(EndpointSecret("v0:hidden", 1, 2))
