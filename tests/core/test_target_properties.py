"""Target URLs, whatever is typed: a refusal or a target that reads the same everywhere."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from ackpost.core.target import URL_CHARS_MAX, parse_target
from ackpost.errors import InvalidInput

_PIECES = st.sampled_from(
    ["https://", "http://", "HTTP:", "a", "h.example", "127.0.0.1", "0x7f", "[::1]", "[", "]", ":", "@", "/", "?", "#",
     "\\", "%", "%25", ".", "。", "ü", "①", "xn--", "-", "_", "80", "0", " ", "\t", "\x00", "\ud800", "\u200d", "😀"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=12).map("".join)), st.booleans())
@example("https://ü.example/", False)
def test_any_text_is_refused_or_parsed(text: str, allow_http: bool) -> None:
    """Nothing but InvalidInput is ever raised, and an accepted URL is stable and safe to put on the wire."""
    for url in (text, "https://" + text, "http://h.example/" + text):
        try:
            target = parse_target(url, allow_http=allow_http)
        except InvalidInput:
            continue
        assert target.scheme == "https" or allow_http
        assert 1 <= target.port <= 65_535
        assert re.fullmatch(rb"POST /[\x21-\x7e]* HTTP/1\.1\r\nHost: [\x21-\x7e]+\r\n", target.request_head)
        assert len(target.url) <= URL_CHARS_MAX
        assert parse_target(target.url, allow_http=allow_http) == target


@given(st.lists(_PIECES, max_size=8).map("".join))
def test_the_standard_library_agrees_on_what_is_accepted(text: str) -> None:
    """For each accepted URL another parser sees the same host and port (no parser differential)."""
    try:
        target = parse_target("https://" + text, allow_http=False)
    except InvalidInput:
        return
    other = urlsplit(target.url)
    assert (other.hostname, other.port or 443, other.username) == (target.host, target.port, None)
