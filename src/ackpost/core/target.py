"""The one parser of target URLs: what is validated is what is dialled (contract §6).

A URL that two parsers could read differently is refused, not repaired. Only the host (case, IDN, trailing dot, IPv6
spelling) and non-ASCII characters of path and query (percent-encoded as UTF-8) are normalised.
"""

from __future__ import annotations

import re
import unicodedata
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NoReturn

import idna
import msgspec

from ackpost.errors import FieldError, InvalidInput

URL_CHARS_MAX: Final = 2_048

_HOST_CHARS_MAX: Final = 253
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BAD_ASCII: Final = re.compile(r"[\x00-\x20\x7f\\]")
_BAD_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zs", "Zl", "Zp"})


class Target(msgspec.Struct, frozen=True, gc=False):
    """A parsed URL, made once per endpoint and used for each of its requests.

    ``host`` is ASCII, lower-case, without brackets and trailing dot; ``literal_ip`` is the same when the host is an
    IP address. ``origin`` (default port left out) changes exactly when scheme, host or port do; ``pool_key`` is the
    same with the port always present. ``request_head`` is the request line and the Host header.
    """

    scheme: str
    host: str
    port: int
    host_header: str
    path_query: str
    request_head: bytes
    pool_key: str
    literal_ip: str | None
    origin: str

    @property
    def url(self) -> str:
        """The normalised URL. It may hold secrets in path and query: for logs there is ``shown_url``."""
        return self.origin + self.path_query


def parse_target(url: str, *, allow_http: bool) -> Target:
    """Parse a target URL strictly.

    Raises:
        InvalidInput: the URL is refused; the error names the field ``("body", "url")`` and the fix, never the URL.
    """
    _check_characters(url)
    scheme, rest = _split_scheme(url, allow_http=allow_http)
    if "#" in rest:
        _refuse("must not have a fragment: remove '#' and what follows it")
    cut = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    authority, path_query = rest[:cut], _ascii_path(rest[cut:])
    if "@" in authority:
        _refuse("must not hold user name or password: send them as a secret header of the endpoint")
    host, port_text, literal_ip = _split_authority(authority)
    port = _parse_port(port_text) if port_text is not None else _DEFAULT_PORTS[scheme]
    shown_host = f"[{host}]" if ":" in host else host
    host_header = shown_host if port == _DEFAULT_PORTS[scheme] else f"{shown_host}:{port}"
    origin = f"{scheme}://{host_header}"
    if len(origin) + len(path_query) > URL_CHARS_MAX:
        _refuse(f"must be at most {URL_CHARS_MAX:,} characters long once its characters are percent-encoded")
    return Target(
        scheme=scheme,
        host=host,
        port=port,
        host_header=host_header,
        path_query=path_query,
        request_head=f"POST {path_query} HTTP/1.1\r\nHost: {host_header}\r\n".encode("ascii"),
        pool_key=f"{scheme}://{shown_host}:{port}",
        literal_ip=literal_ip,
        origin=origin,
    )


def shown_url(url: str) -> str:
    """Give the part of a URL that logs may show: without user info, query and fragment."""
    head = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, separator, rest = head.partition("://")
    if not separator:
        return head
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def _refuse(message: str) -> NoReturn:
    raise InvalidInput(f"The URL {message}.", errors=[FieldError(("body", "url"), message)])


def _check_characters(url: str) -> None:
    if not url:
        _refuse("must not be empty: give one like https://example.com/webhooks")
    if len(url) > URL_CHARS_MAX:
        _refuse(f"must be at most {URL_CHARS_MAX:,} characters long")
    if _BAD_ASCII.search(url) is not None:
        _refuse("must not hold whitespace, control characters or backslashes: percent-encode them")
    if not url.isascii() and any(unicodedata.category(char) in _BAD_CATEGORIES for char in url):
        _refuse("must not hold whitespace, control characters or surrogates: percent-encode them")


def _split_scheme(url: str, *, allow_http: bool) -> tuple[str, str]:
    match = _SCHEME.match(url)
    scheme = match.group(1).lower() if match is not None else ""
    if match is None or scheme not in _DEFAULT_PORTS:
        _refuse("must begin with https:// or http://" if allow_http else "must begin with https://")
    if scheme == "http" and not allow_http:
        _refuse("must begin with https:// (http is allowed only where the server was started with --allow-http)")
    rest = url[match.end() :]
    if not rest.startswith("//"):
        _refuse(f"must have two slashes after the scheme: {scheme}://host/path")
    return scheme, rest[2:]


def _split_authority(authority: str) -> tuple[str, str | None, str | None]:
    """Give host, the port's text if a colon announces one, and the host again if it is an IP address."""
    if authority.startswith("["):
        inside, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            _refuse("must have an IPv6 address in brackets, then nothing or :port")
        host = _parse_ipv6(inside)
        return host, after[1:] if after else None, host
    if authority.count(":") > 1:
        _refuse("must have its IPv6 address in brackets: https://[2001:db8::1]/")
    text, colon, port_text = authority.partition(":")
    host, literal_ip = _parse_host(text)
    return host, port_text if colon else None, literal_ip


def _parse_port(text: str) -> int:
    if _PORT.fullmatch(text) is None or int(text) > 65_535:
        _refuse("must have a port between 1 and 65535 after the colon, or no colon")
    return int(text)


def _parse_ipv6(text: str) -> str:
    if "%" in text:
        _refuse("must not hold an IPv6 zone id: give an address that is reachable without one")
    try:
        return IPv6Address(text).compressed
    except AddressValueError:
        _refuse("must have a valid IPv6 address between the brackets")


def _parse_host(text: str) -> tuple[str, str | None]:
    if not text:
        _refuse("must name a host: https://example.com/webhooks")
    lowered = text.lower() if text.isascii() else text
    literal = _canonical_ipv4(lowered)
    if literal is not None:
        return literal, literal
    labels = _ascii_labels(lowered)
    if _NUMBER_LABEL.fullmatch(labels[-1]) is not None:
        _refuse("must have a host name, or an IPv4 address as four plain decimal numbers (192.0.2.1)")
    host = ".".join(labels)
    if len(host) > _HOST_CHARS_MAX:
        _refuse(f"must have a host name of at most {_HOST_CHARS_MAX} characters")
    return host, None


def _canonical_ipv4(text: str) -> str | None:
    """Give the address if ``text`` is dotted decimal without leading zeros, the only form every parser reads alike."""
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        return None


def _ascii_labels(host: str) -> list[str]:
    """Split a host name into A-labels; one trailing dot is dropped. Source: UTS #46 (non-transitional), RFC 5891."""
    try:
        if not host.isascii():
            host = idna.uts46_remap(host, std3_rules=False, transitional=False)
        labels = [
            label if label.isascii() else idna.alabel(label).decode("ascii")
            for label in host.removesuffix(".").split(".")
        ]
    except idna.IDNAError:
        _refuse("must have a valid international host name: check its spelling, or give it in its xn-- form")
    if any(_LABEL.fullmatch(label) is None for label in labels):
        _refuse("must have a host name of letters, digits, '-' and '_' in parts of 1 to 63 characters between dots")
    return labels


def _ascii_path(path_query: str) -> str:
    """Keep path and query as given but for non-ASCII characters, which become percent-encoded UTF-8."""
    if not path_query.startswith("/"):
        path_query = "/" + path_query
    if path_query.isascii():
        return path_query
    return "".join(c if c.isascii() else "".join(f"%{byte:02X}" for byte in c.encode()) for c in path_query)
