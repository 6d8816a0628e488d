"""A long run at six tenths of full load, with faults: memory and descriptors stay flat, nothing is lost (R40).

A good minute; ``make soak MINUTES=60`` for longer.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process import books
from tests.process.server import Server, until
from tests.process.soak import CountingPublishers, CountingReceiver, Faults
from tests.process.test_crash_mixed import LOST

MINUTES = float(os.environ.get("SOAK_MINUTES") or 1.2)
TYPE = "soak.load"
LOAD = 0.6
CONNECTIONS = 8
FULL_LOAD_S = 4.0
FAULT_EVERY_S = 5.0 if MINUTES <= 10 else 20.0
GROWTH_MIB_MAX = 6.0
"""From the third to the last quarter: a leak of a kilobyte an event is more even in the shortest run."""
MORE_FILES_MAX = 2
IDLE_S = 45
"""Within which an idle server has closed its connections to endpoints."""
POLICY = {"retry": {"base_s": 0.1, "cap_s": 1}, "max_in_flight": 50, "timeout_s": 2}
ALWAYS = {"enabled": False}
PATHS: dict[str, dict[str, object]] = {
    "/steady": {"circuit": ALWAYS},
    "/moody": {},
    "/ordered": {"circuit": ALWAYS, "ordering": "by-key"},
}


class Sample(NamedTuple):
    """The process at one moment."""

    at_s: float
    rss_mib: float
    files: int


def _files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def _sample(server: Server, began: float) -> Sample:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return Sample(time.monotonic() - began, int(status.partition("VmRSS:")[2].split()[0]) / 1024, _files(server))


def _quarter(samples: list[Sample], number: int) -> list[Sample]:
    end = samples[-1].at_s
    return [one for one in samples if number * end / 4 <= one.at_s <= (number + 1) * end / 4]


def _slope_mib_h(samples: list[Sample]) -> float:
    half = samples[len(samples) // 2 :]
    slope = statistics.linear_regression([one.at_s for one in half], [one.rss_mib for one in half]).slope
    return slope * 3600


def _prefill(server: Server) -> None:
    """Fill the database's caches, which grow to their bounds as the file does: that is no leak."""
    padding = "x" * 50_000
    for number in range(40):
        events = [{"type": "soak.nobody", "data": {"n": number, "padding": padding}} for _ in range(40)]
        server.post("/events/batch", {"events": events})
    after = None
    while True:
        page = server.get("/events", limit=250, after=after)
        after = page["next"]
        if after is None:
            return


@pytest.mark.timeout(60 * MINUTES + 180)
def test_memory_and_descriptors_stay_flat(own_server: Server) -> None:
    """Load, a kill, then faults every few seconds: what the process holds does not grow, and every event arrives."""
    passing, server = threading.Event(), own_server.start()
    files = _files(server)
    with CountingReceiver() as receiver:
        for path, more in PATHS.items():
            server.endpoint(receiver.hook(path), TYPE, policy={**POLICY, **more})
        _prefill(server)
        with CountingPublishers(server, TYPE, CONNECTIONS) as publishers:
            passing.wait(FULL_LOAD_S)
            full_rate = sum(publishers.counts) / FULL_LOAD_S
            publishers.pace_s = CONNECTIONS / (full_rate * LOAD)
            server.restart()
            _prefill(server)
            faults = Faults(server, receiver, "/moody", passing.wait)
            samples = _run(server, faults, passing)
        rate = sum(publishers.counts) / (samples[-1].at_s + FULL_LOAD_S)
        until(lambda: books.count(server.database, "delivery") == 0, "everything delivered", 60)

        _check_nothing_lost(server, publishers, receiver)
        third, last = _quarter(samples, 2), _quarter(samples, 3)
        growth = statistics.median(one.rss_mib for one in last) - statistics.median(one.rss_mib for one in third)
        until(lambda: _files(server) <= files + MORE_FILES_MAX, "no descriptor is left open", IDLE_S)
        print(
            f"\n{MINUTES:g} minutes at {rate:.0f} events/s of {full_rate:.0f}, {sum(faults.done.values())} faults"
            f" {dict(faults.done)}, acknowledged {sum(publishers.counts)}, lost 0,"
            f" refusals {dict(publishers.refusals)},"
            f"\nRSS {samples[0].rss_mib:.0f} to {samples[-1].rss_mib:.0f} MiB, last quarter {growth:+.1f} MiB, slope of"
            f" the second half {_slope_mib_h(samples):+.1f} MiB/h, descriptors {files} at first,"
            f" {max(one.files for one in samples)} at most, {_files(server)} at the end"
        )
        assert growth < GROWTH_MIB_MAX
        assert server.stop() == 0


def _run(server: Server, faults: Faults, passing: threading.Event) -> list[Sample]:
    """Sample the process; between, something is done to it."""
    began = fault_at = time.monotonic()
    samples: list[Sample] = []
    while time.monotonic() - began < MINUTES * 60 - FULL_LOAD_S:
        passing.wait(0.5)
        samples.append(_sample(server, began))
        if time.monotonic() - fault_at > FAULT_EVERY_S:
            faults.next()
            fault_at = time.monotonic()
    return samples


def _check_nothing_lost(server: Server, publishers: CountingPublishers, receiver: CountingReceiver) -> None:
    """Every publisher's events are there, each once and whole, and no request was sent that no attempt tells of."""
    for number, count in enumerate(publishers.counts):
        stored = books.count(server.database, f"event WHERE uid GLOB '{number}-*'")
        assert count <= stored <= count + 1, "the last one may be stored and not yet acknowledged"
    assert books.count(server.database, LOST) == 0
    assert books.rows(server.database, "SELECT reason, count(*) FROM dead_letter GROUP BY 1") == []
    attempts = books.rows(server.database, "SELECT sum(number) FROM history")[0][0]
    assert sum(receiver.received.values()) <= attempts
