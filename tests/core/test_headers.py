"""Own headers: names that are refused, values that could break a request, values that are masked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.headers import is_sensitive, masked, name_fault, signature_name_fault, value_fault

REFUSED = [
    "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Trailer", "Keep-Alive", "Expect",
    "Proxy-Authorization", "Proxy-Connection", "HTTP2-Settings", "Content-Type", "User-Agent", "ackpost-attempt",
]  # fmt: skip
OURS = ["webhook-id", "Webhook-Signature", "X-Webhook-Anything"]


@pytest.mark.parametrize("name", REFUSED + OURS)
@pytest.mark.parametrize("spell", [str, str.lower, str.upper, str.swapcase])
def test_framing_and_own_names_are_refused_in_any_case(name: str, spell: type[str]) -> None:
    """Framing, hop-by-hop and Ackpost's own names cannot be set, however they are spelt."""
    assert name_fault(spell(name)) is not None
    assert (signature_name_fault(spell(name)) is not None) == (name not in OURS)


@pytest.mark.parametrize("name", ["X-Webhook-Id", "x-webhook-TIMESTAMP"])
def test_the_signature_header_cannot_replace_its_neighbours(name: str) -> None:
    """Id and timestamp have their names beside a renamed signature."""
    assert signature_name_fault(name) is not None


@pytest.mark.parametrize("name", ["Authorization", "X-API-KEY", "x", "hosts", "te-x", "~!#$%&'*+-.^_`|1", "x" * 64])
def test_other_names_are_allowed(name: str) -> None:
    """Any token of at most 64 characters."""
    assert name_fault(name) is None
    assert signature_name_fault(name) is None


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a:", "a\r\nb", "a\x00", "é", "a\n", "(a)", "a/b", '"a"'])
def test_no_header_names(name: str) -> None:
    """Separators, blanks, control characters, other alphabets and long names."""
    assert name_fault(name) is not None
    assert signature_name_fault(name) is not None


@pytest.mark.parametrize("value", ["", "a", "Bearer abc", "a\tb", "é ÿ", "x" * 1024, 'a: b; c="d"'])
def test_allowed_values(value: str) -> None:
    """Printable Latin-1 with blanks inside, and nothing at all."""
    assert value_fault(value) is None


@pytest.mark.parametrize(
    "value",
    ["a\r\nX-Inj: 1", "a\n", "\ra", "a\x00b", "a\x7f", "a\x85b", " a", "a ", "\ta", "ключ", "😊", "x" * 1025, " "],
)
def test_refused_values(value: str) -> None:
    """Line ends, control characters, blanks at the ends, what Latin-1 lacks, and long ones."""
    assert value_fault(value) is not None


@given(st.text(max_size=40))
def test_an_allowed_value_is_one_line_of_bytes(value: str) -> None:
    """Whatever is allowed can be sent, and survives a receiver's trimming."""
    if value_fault(value) is None:
        sent = value.encode("latin-1")
        assert sent.strip(b" \t") == sent
        assert not set(sent) & {*range(9), *range(10, 32), *range(127, 160)}


@pytest.mark.parametrize(
    "name", ["authorization", "AUTHORIZATION", "X-Api-Key", "Cookie", "Set-Cookie", "Proxy-Authorization",
             "x_api_key", "X-APIKEY", "X-Auth", "X-Access-Token", "webhook-signature", "Client-Secret"],
)  # fmt: skip
def test_sensitive_headers_are_masked_in_any_spelling(name: str) -> None:
    """Values of such names are never shown."""
    assert is_sensitive(name)
    assert masked(name, "MARK") == "***"


@pytest.mark.parametrize("name", ["content-type", "X-Request-Id", "Retry-After", "keep"])
def test_other_headers_are_shown(name: str) -> None:
    """Values of harmless names stay readable."""
    assert masked(name, "MARK") == "MARK"
