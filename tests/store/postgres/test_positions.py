"""Positions: rising, of one's own slot, together where they belong together, and never given twice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ackpost.store.postgres.ledger import COUNTER_BITS, COUNTER_END, SLOT_BITS, Ledger

MS = 1_700_000_000_000
steps = st.lists(
    st.tuples(st.integers(1, COUNTER_END), st.one_of(st.none(), st.integers(MS - 5, MS + 5))), min_size=1, max_size=40
)  # fmt: skip


def _ledger(slot: int, bound: int) -> Ledger:
    ledger = Ledger(None)
    ledger.adopt(node="a", incarnation=1, slot=slot, position_bound=bound)
    return ledger


@given(st.integers(0, (1 << SLOT_BITS) - 1), steps)
def test_positions_rise_and_stay_in_their_slot(slot: int, wanted: list[tuple[int, int | None]]) -> None:
    """Each range lies above the last one, whole in one millisecond, and every position of it names the slot."""
    ledger = _ledger(slot, 0)
    last = 0
    for count, now_ms in wanted:
        first = ledger.allocate(count, now_ms)
        assert first > last
        last = first + count - 1
        assert last == ledger.last_position
        for position in (first, last):
            assert position >> COUNTER_BITS & ((1 << SLOT_BITS) - 1) == slot
            assert position >> 20 == first >> 20
        assert now_ms is None or first >> 20 >= now_ms


@given(st.integers(0, 63), st.integers(0, 63), steps, steps)
def test_two_slots_never_give_the_same_position(
    slot: int, other: int, wanted: list[tuple[int, int | None]], others: list[tuple[int, int | None]]
) -> None:
    """Nodes that do not know of each other, with whatever clocks, give different positions."""
    ranges: list[tuple[int, int]] = []
    for number, asked in ((slot, wanted), (other if other != slot else (slot + 1) % 64, others)):
        ledger = _ledger(number, 0)
        ranges += [(first, first + count) for count, now_ms in asked if (first := ledger.allocate(count, now_ms))]
    ranges.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))


@given(st.integers(0, 63), st.integers(0, 63), steps, steps)
def test_what_follows_a_crash_lies_above_the_bound(
    slot: int, next_slot: int, wanted: list[tuple[int, int | None]], others: list[tuple[int, int | None]]
) -> None:
    """The bound that is stored with a commit covers all that was given, also for a new owner of the slot."""
    ledger = _ledger(slot, 0)
    for count, now_ms in wanted:
        ledger.allocate(count, now_ms)
    given_last = ledger.last_position
    ledger.committed()
    assert ledger.stored_bound >= given_last
    following = _ledger(next_slot, ledger.stored_bound)
    for count, now_ms in others:
        assert following.allocate(count, now_ms) > given_last


def test_a_failed_commit_gives_no_position_again() -> None:
    """What a commit of unknown outcome was given is not given to the next one, and the bound is stored with that."""
    ledger = _ledger(0, 0)
    ledger.committed()
    before = ledger.stored_bound
    first = ledger.allocate(3, MS)
    ledger.failed(0)
    assert ledger.stored_bound == before
    assert ledger.allocate(1, MS) == first + 3
    ledger.committed()
    assert ledger.stored_bound > first
