"""Public ids and partitions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core import ids

POSITIONS = st.integers(0, 2**63 - 1)
SALTS = st.integers(0, 2**64 - 1)
PREFIXES = st.sampled_from([ids.TENANT, ids.ENDPOINT, ids.EVENT, ids.DELIVERY, ids.API_KEY, ids.JOB])
NOW = 1_790_000_000_000 << 20


@given(PREFIXES, POSITIONS, SALTS)
def test_an_id_reads_back_to_its_position(prefix: str, position: int, salt: int) -> None:
    """What ``public_id`` makes, ``parse_id`` reads: prefix, underscore and 26 characters."""
    text = ids.public_id(prefix, position, salt)
    assert len(text) == len(prefix) + 27
    assert ids.parse_id(prefix, text, salt) == position


@given(POSITIONS, POSITIONS, SALTS)
def test_ids_sort_as_text_in_the_order_of_positions(one: int, other: int, salt: int) -> None:
    """Time order is text order, whatever the tags are."""
    texts = ids.public_id("evt", one, salt), ids.public_id("evt", other, salt)
    assert (texts[0] < texts[1]) == (one < other)


@given(POSITIONS, SALTS, SALTS)
def test_an_id_of_another_store_is_not_read(position: int, salt: int, other: int) -> None:
    """A different salt gives a different tag."""
    text = ids.public_id("evt", position, salt)
    assert (ids.parse_id("evt", text, other) == position) == (salt == other)


@given(POSITIONS, st.integers(4, 29), st.sampled_from("0123456789ABCDEFGHJKMNPQRSTVWXYZ"))
def test_a_mistyped_character_is_noticed(position: int, index: int, character: str) -> None:
    """Changing any one character makes another id or none."""
    text = ids.public_id("evt", position, 77)
    typo = text[:index] + character + text[index + 1 :]
    assert (ids.parse_id("evt", typo, 77) == position) == (typo == text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "evt",
        "evt_",
        "dlv_01KHQZ5T0000000000000000000",
        "evt-{good}",
        "evt_{good}0",
        "evt_{good}\n",
        "evt_ {good}",
        "evt_{lower}",
        "evt_I{tail}",
        "evt_+{tail}",
        "evt__{tail}",
        "evt_4{tail}",
        "evt_{arabic}",
        "EVT_{good}",
        "evtx{good}",
    ],
)
def test_malformed_ids_are_none(text: str) -> None:
    """Another prefix, case, length, alphabet or a number beyond 127 bits is no id."""
    good = ids.public_id("evt", NOW, 5).removeprefix("evt_")
    text = text.format(good=good, lower=good.lower(), tail=good[1:], arabic=good.replace("0", "\u0660"))
    assert ids.parse_id("evt", text, 5) is None


@given(POSITIONS, POSITIONS)
def test_an_attempt_id_tells_attempt_and_delivery(attempt: int, delivery: int) -> None:
    """Both positions come back, and attempts sort by their own."""
    text = ids.attempt_id(attempt, delivery)
    assert ids.parse_attempt_id(text) == (attempt, delivery)


@pytest.mark.parametrize("text", ["", "att_", "evt_" + "0" * 26, "att_" + "0" * 12 + "Z" * 14])
def test_malformed_attempt_ids_are_none(text: str) -> None:
    """Another prefix or a delivery's position beyond 63 bits is no attempt id."""
    assert ids.parse_attempt_id(text) is None


def test_ids_and_partitions_never_change() -> None:
    """Pinned: stored references, signed ids and other nodes depend on them."""
    assert ids.public_id("evt", 1_760_000_000_000 << 20 | 7, 0x0123456789ABCDEF) == "evt_0SKJ1CR000003Y431E1Q7QFZY0"
    assert ids.attempt_id(2**63 - 1, 1) == "att_3ZZZZZZZZZZZZG000000000001"
    assert [ids.partition_of(position) for position in (0, 1, NOW, NOW + 1, 2**63 - 1)] == [0, 170, 66, 86, 8]


def test_endpoints_spread_evenly_over_partitions() -> None:
    """Endpoints made in one burst, and ones made an hour apart, fill all 256 partitions about alike."""
    for step in (1, 1 << 20, 3_600_000 << 20):
        counts = Counter(ids.partition_of(NOW + number * step) for number in range(25_600))
        assert set(counts) == set(range(ids.PARTITION_COUNT))
        assert max(counts.values()) < 200


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a", True), ("order-1_2.B", True), ("x" * 256, True), ("", False), ("x" * 257, False), ("a b", False),
        ("a/b", False), ("é", False), ("a\n", False), ("a:b", False),
    ],
)  # fmt: skip
def test_uids(text: str, valid: bool) -> None:
    """Callers' own ids: 1 to 256 of letters, digits, hyphen, underscore, dot."""
    assert ids.valid_uid(text) is valid
