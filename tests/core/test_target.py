"""Target URLs: one strict parser decides what is stored, shown and dialled."""

from __future__ import annotations

import pytest

from ackpost.core.target import Target, parse_target, shown_url
from ackpost.errors import FieldError, InvalidInput


def parsed(url: str) -> Target:
    """Parse with http allowed."""
    return parse_target(url, allow_http=True)


def refused(url: str, *, allow_http: bool = True) -> str:
    """Give the message of the refusal, after checking its form."""
    with pytest.raises(InvalidInput) as caught:
        parse_target(url, allow_http=allow_http)
    error = caught.value
    assert (error.status, error.code) == (422, "invalid")
    [field] = error.errors
    assert isinstance(field, FieldError)
    assert field.loc == ("body", "url")
    assert field.message in error.detail
    return field.message


def test_every_part_of_a_target() -> None:
    """A plain https URL gives all that a request needs."""
    target = parsed("HTTPS://Example.COM/Hooks/a%2Fb?x=1&y=%20")
    assert target == Target(
        scheme="https",
        host="example.com",
        port=443,
        host_header="example.com",
        path_query="/Hooks/a%2Fb?x=1&y=%20",
        request_head=b"POST /Hooks/a%2Fb?x=1&y=%20 HTTP/1.1\r\nHost: example.com\r\n",
        pool_key="https://example.com:443",
        literal_ip=None,
        origin="https://example.com",
    )
    assert target.url == "https://example.com/Hooks/a%2Fb?x=1&y=%20"


@pytest.mark.parametrize(
    ("url", "host_header", "path_query"),
    [
        ("https://h.example", "h.example", "/"),
        ("https://h.example?a=b", "h.example", "/?a=b"),
        ("https://h.example?a=/b", "h.example", "/?a=/b"),
        ("https://h.example/?", "h.example", "/?"),
        ("https://h.example:443/x", "h.example", "/x"),
        ("https://h.example:8443/x", "h.example:8443", "/x"),
        ("http://h.example:443/x", "h.example:443", "/x"),
        ("http://h.example:80/x", "h.example", "/x"),
        ("http://intranet:8080/x", "intranet:8080", "/x"),
        ("https://a_b.example/../a/./b//", "a_b.example", "/../a/./b//"),
        ("https://h.example./x", "h.example", "/x"),
        ("https://h.example/a@b?c=d@e", "h.example", "/a@b?c=d@e"),
        ("https://1.h2/x", "1.h2", "/x"),
        ("https://192.0.2.1/x", "192.0.2.1", "/x"),
        ("https://[2606:4700:0:0::1111]:8443/", "[2606:4700::1111]:8443", "/"),
        ("https://[2606:4700::1111]", "[2606:4700::1111]", "/"),
        ("https://h.example/" + "p" * 300, "h.example", "/" + "p" * 300),
    ],
)
def test_host_port_and_path_are_kept(url: str, host_header: str, path_query: str) -> None:
    """Port, path and query stay as given; only a default port and a trailing dot are left out."""
    target = parsed(url)
    assert (target.host_header, target.path_query) == (host_header, path_query)
    assert parsed(target.url) == target


def test_literal_addresses_are_known_as_such() -> None:
    """A canonical address is judged as one; IPv6 is shortened, its brackets stay in the Host header only."""
    v4, v6 = parsed("http://192.0.2.1:81/"), parsed("http://[::FFFF:127.0.0.1]:81/")
    assert (v4.host, v4.literal_ip, v4.port) == ("192.0.2.1", "192.0.2.1", 81)
    assert (v6.host, v6.literal_ip, v6.host_header) == ("::ffff:7f00:1", "::ffff:7f00:1", "[::ffff:7f00:1]:81")
    assert v6.pool_key == "http://[::ffff:7f00:1]:81"


@pytest.mark.parametrize(
    ("url", "normalised"),
    [
        ("https://bücher.example/ü?q=é", "https://xn--bcher-kva.example/%C3%BC?q=%C3%A9"),
        ("https://BÜCHER.example", "https://xn--bcher-kva.example/"),
        ("https://bücher。example．/", "https://xn--bcher-kva.example/"),
        ("https://straße.example/", "https://xn--strae-oqa.example/"),
        ("https://ｅｘａｍｐｌｅ.com/", "https://example.com/"),
        ("https://a_b.bücher.example/", "https://a_b.xn--bcher-kva.example/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("https://h.example/😀", "https://h.example/%F0%9F%98%80"),
    ],
)
def test_international_names_become_ascii(url: str, normalised: str) -> None:
    """IDN hosts become A-labels, other characters percent-encoded UTF-8."""
    assert parsed(url).url == normalised


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "0x7f000001", "0X7F000001", "0177.0.0.1", "127.1", "127.0.1", "0", "0.0.0.0.", "127.0.0.1.",
        "１２７.0.0.1", "127。0。0。1", "①②⑦.0.0.1", "127.0.0.256", "1.2.3.4.5", "h.0x", "h.1", "127.0.0.01",
    ],
)  # fmt: skip
def test_odd_forms_of_addresses_are_refused(host: str) -> None:
    """What getaddrinfo would read as an address but is not plain dotted decimal never gets that far."""
    assert "four plain decimal numbers" in refused(f"http://{host}/")
    assert "four plain decimal numbers" in refused(f"http://{host}:80")


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("", "must not be empty"),
        ("https://h.example/" + "p" * 2_031, "at most 2,048 characters"),
        ("https://h.example/" + "é" * 400, "once its characters are percent-encoded"),
        ("https://h.example/a b", "percent-encode"),
        (" https://h.example/", "percent-encode"),
        ("https://h.example/\n", "percent-encode"),
        ("https://h.exa\tmple/", "percent-encode"),
        ("https://h.example/\x7f", "percent-encode"),
        ("https://h.example/\x85", "percent-encode"),
        ("https://h.example/\u2028", "percent-encode"),
        ("https://h.example/\ud800", "percent-encode"),
        ("https://h.example\u3000/", "percent-encode"),
        ("https://good.example\\@127.0.0.1/", "backslashes"),
        ("https://good.example#@127.0.0.1/", "fragment"),
        ("https://h.example/#x", "fragment"),
        ("https://a@127.0.0.1/", "user name or password"),
        ("https://@h.example/", "user name or password"),
        ("https://user:p%40ss@h.example/", "user name or password"),
        ("h.example/x", "https://"),
        ("//h.example/x", "https://"),
        ("file:///etc/passwd", "https://"),
        ("gopher://h.example", "https://"),
        ("http+unix://h", "https://"),
        ("unix:/x", "https://"),
        ("ftp://h.example", "https://"),
        ("HTTPS:/x", "two slashes"),
        ("https:h.example", "two slashes"),
        ("https:///x", "name a host"),
        ("https://", "name a host"),
        ("https://:80/", "name a host"),
        ("https://?x", "name a host"),
        ("https://h.example:/", "between 1 and 65535"),
        ("https://h.example:0/", "between 1 and 65535"),
        ("https://h.example:00443/", "between 1 and 65535"),
        ("https://h.example:65536/", "between 1 and 65535"),
        ("https://h.example:99999/", "between 1 and 65535"),
        ("https://h.example:-1/", "between 1 and 65535"),
        ("https://h.example:８０/", "between 1 and 65535"),
        ("https://[::1]:0/", "between 1 and 65535"),
        ("https://h.example:80:80/", "in brackets"),
        ("https://::1/", "in brackets"),
        ("https://[127.0.0.1]/", "valid IPv6"),
        ("https://[v1.x]/", "valid IPv6"),
        ("https://[]/", "valid IPv6"),
        ("https://[::1%25lo]/", "zone id"),
        ("https://[fe80::1%25eth0]/", "zone id"),
        ("https://[::1/", "then nothing or :port"),
        ("https://[::1]x/", "then nothing or :port"),
        ("https://127%2e0.0.1/", "letters, digits"),
        ("https://h..example/", "letters, digits"),
        ("https://.example/", "letters, digits"),
        ("https://./", "letters, digits"),
        ("https://h.example../", "letters, digits"),
        ("https://-h.example/", "letters, digits"),
        ("https://h-.example/", "letters, digits"),
        ("https://h!.example/", "letters, digits"),
        ("https://" + "a" * 64 + ".example/", "letters, digits"),
        ("https://℀.example/", "letters, digits"),
        ("https://" + ".".join(["a" * 60] * 5) + "/", "at most 253"),
        ("https://☃.example/", "xn-- form"),
        ("https://" + "é" * 64 + ".example/", "xn-- form"),
    ],
)  # fmt: skip
def test_unclear_urls_are_refused_with_a_fix(url: str, fix: str) -> None:
    """Whatever two parsers could read differently is refused, and the message says what to do."""
    assert fix in refused(url)


def test_http_needs_the_setting() -> None:
    """Without --allow-http only https passes, in whatever case the scheme is written."""
    for url in ("http://h.example/", "HTTP://h.example/", "hTTp://h.example"):
        assert "--allow-http" in refused(url, allow_http=False)
        assert parsed(url).scheme == "http"
    assert parse_target("hTTps://h.example/", allow_http=False).scheme == "https"


def test_a_refusal_never_repeats_the_url() -> None:
    """A URL may hold secrets, so errors do not quote it."""
    for url in ("https://u:SECRET@h.example/", "ftp://h/SECRET", "https://h:SECRET/", "https://[SECRET]/"):
        assert "SECRET" not in refused(url)


def test_origin_changes_with_scheme_host_or_port_only() -> None:
    """Secret headers are dropped exactly when the origin changes."""
    origin = parsed("https://h.example/a").origin
    assert parsed("HTTPS://H.example:443/b?c").origin == origin
    for other in ("http://h.example/a", "https://i.example/a", "https://h.example:444/a"):
        assert parsed(other).origin != origin
        assert parsed(other).pool_key != parsed("https://h.example/a").pool_key


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h.example/a?token=S3#f", "https://h.example/a"),
        ("https://u:S3@h.example/a@b", "https://h.example/a@b"),
        ("https://h.example#S3", "https://h.example"),
        ("nonsense?S3", "nonsense"),
    ],
)
def test_shown_url_has_no_query(url: str, shown: str) -> None:
    """Logs show a URL without the parts that most often hold tokens."""
    assert shown_url(url) == shown
