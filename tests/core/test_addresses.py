"""The address policy: what may be dialled, judged for the address itself (contract §6)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.addresses import AddressPolicy, judge_at_save
from ackpost.core.target import parse_target
from ackpost.errors import ConfigError, InvalidInput

_NOTHING_ALLOWED = AddressPolicy()
_V4 = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.mark.parametrize(
    ("ip", "rule"),
    [
        ("127.0.0.1", "loopback (127.0.0.0/8)"), ("127.255.255.254", "loopback"),
        ("0.0.0.0", "this host"), ("0.1.2.3", "this host"),
        ("10.0.0.0", "private (10.0.0.0/8)"), ("10.255.255.255", "private"),
        ("172.16.0.0", "private"), ("172.31.255.255", "private"), ("192.168.1.1", "private"),
        ("100.64.0.1", "shared address space"), ("100.127.255.255", "shared address space"),
        ("169.254.0.1", "link-local"),
        ("169.254.169.254", "metadata"), ("168.63.129.16", "metadata"), ("100.100.100.200", "metadata"),
        ("192.0.0.192", "metadata"), ("fd00:ec2::254", "metadata"),
        ("192.0.0.1", "reserved"), ("192.0.2.9", "documentation"), ("198.51.100.1", "documentation"),
        ("203.0.113.7", "documentation"), ("192.88.99.1", "6to4"), ("198.18.0.1", "benchmarking"),
        ("198.19.255.255", "benchmarking"), ("224.0.0.1", "multicast"), ("239.255.255.250", "multicast"),
        ("240.0.0.1", "reserved"), ("255.255.255.255", "broadcast"),
        ("::", "this host"), ("::1", "loopback"),
        ("::ffff:127.0.0.1", "IPv4-mapped"), ("::ffff:8.8.8.8", "IPv4-mapped"),
        ("::ffff:a9fe:a9fe", "IPv4-mapped"), ("0:0:0:0:0:ffff:7f00:1", "IPv4-mapped"),
        ("::7f00:1", "IPv4-compatible"), ("::127.0.0.1", "IPv4-compatible"), ("::ffff:0:7f00:1", "IPv4-translated"),
        ("::5efe:7f00:1", "reserved"), ("64:ff9b::a9fe:a9fe", "NAT64"), ("64:ff9b::808:808", "NAT64"),
        ("64:ff9b:1::1", "NAT64"), ("64:ff9b:1::a9fe:a9fe", "NAT64"), ("2002:7f00:1::1", "6to4"),
        ("2002:a9fe:a9fe::1", "6to4"), ("2001::1", "Teredo"), ("2001:1::1", "reserved"), ("2001:20::1", "reserved"),
        ("2001:db8::1", "documentation"), ("3fff::1", "documentation"), ("5f00::1", "segment routing"),
        ("100::1", "discard"), ("fc00::1", "private"), ("fdff::1", "private"), ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"), ("fec0::1", "site-local"), ("ff02::1", "multicast"), ("ff0e::1", "multicast"),
        ("200::1", "reserved"), ("4000::1", "reserved"), ("9000::1", "reserved"), ("fe00::1", "reserved"),
    ],
)  # fmt: skip
def test_internal_and_special_addresses_are_refused(ip: str, rule: str) -> None:
    """Each way to an internal network is refused; the text names address, rule and setting."""
    refusal = _NOTHING_ALLOWED.refusal(ip, 443)
    assert refusal is not None
    assert rule in refusal
    assert refusal.startswith(ip)
    assert "--allow-target" in refusal


@pytest.mark.parametrize(
    "ip",
    [
        "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
        "128.0.0.0", "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255",
        "172.32.0.0", "192.0.1.0", "192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0",
        "198.17.255.255", "198.20.0.0", "198.51.101.0", "203.0.114.0", "223.255.255.255",
        "2001:200::", "2606:4700::1111", "2001:db7::1", "2001:db9::1", "2003::1", "2a00::1", "3ffe::1", "2000::1",
    ],
)  # fmt: skip
def test_public_addresses_pass(ip: str) -> None:
    """Nothing public is refused, right up to the edges of the refused ranges."""
    assert _NOTHING_ALLOWED.refusal(ip, 443) is None


@given(_V4)
def test_no_ipv6_form_of_an_ipv4_address_opens_more(number: int) -> None:
    """Mapped, translated, compatible, NAT64 and 6to4 forms are refused for every IPv4 address."""
    for prefix in (0xFFFF << 32, 0xFFFF << 48, 0, 0x64FF9B << 96):
        assert _NOTHING_ALLOWED.refusal(str(IPv6Address(prefix | number)), 443) is not None
    assert _NOTHING_ALLOWED.refusal(str(IPv6Address(0x2002 << 112 | number << 80 | 1)), 443) is not None


@given(_V4)
def test_an_opened_nat64_range_inherits_the_ipv4_verdict(number: int) -> None:
    """Where an operator opens NAT64 or another embedding, what lies behind it is still judged."""
    policy = AddressPolicy(["64:ff9b::/96", "::ffff:0:0/96", "2002::/16"])
    expected = _NOTHING_ALLOWED.refusal(str(IPv4Address(number)), 443) is None
    for embedded in (0x64FF9B << 96 | number, 0xFFFF << 32 | number, 0x2002 << 112 | number << 80):
        assert (policy.refusal(str(IPv6Address(embedded)), 443) is None) is expected


@given(st.integers(min_value=0, max_value=2**128 - 1))
def test_only_global_unicast_passes(number: int) -> None:
    """No IPv6 address outside 2000::/3 is ever dialled."""
    if _NOTHING_ALLOWED.refusal(str(IPv6Address(number)), 443) is None:
        assert number >> 125 == 1


def test_an_operator_opens_ranges() -> None:
    """--allow-target takes CIDRs and single addresses, blanks around them ignored, of both families."""
    policy = AddressPolicy([" 10.0.0.0/8 ", "192.168.3.207", "::1", "fd00::/8", "169.254.169.254/32"])
    for ip in ("10.0.0.5", "192.168.3.207", "::1", "fd12::1", "fd00:ec2::254", "169.254.169.254"):
        assert policy.refusal(ip, 443) is None
    for ip in ("11.0.0.1", "1.1.1.1"):
        assert policy.refusal(ip, 443) is None
    for ip in ("192.168.3.208", "127.0.0.1", "::2", "169.254.169.253", "::ffff:10.0.0.5"):
        assert policy.refusal(ip, 443) is not None


@pytest.mark.parametrize("entry", ["10.0.0.5/8", "a.example", "", "10.0.0.0/33", "10.0.0"])
def test_a_wrong_entry_stops_the_start(entry: str) -> None:
    """An entry that is no CIDR is named in the error."""
    with pytest.raises(ConfigError, match="--allow-target") as caught:
        AddressPolicy(["10.0.0.0/8", entry])
    assert repr(entry) in str(caught.value)


def test_own_ports_are_never_reachable() -> None:
    """Ackpost does not send to itself, not even where its range is allowed or through another spelling."""
    policy = AddressPolicy(
        ["0.0.0.0/0", "::/0"], own_addresses=["198.20.0.9", "2a00::9", "10.1.1.1"], own_ports=[8080, 5432]
    )
    for ip in (
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::1", "198.20.0.9", "2a00::9", "10.1.1.1",
        "::ffff:127.0.0.1", "::ffff:10.1.1.1", "64:ff9b::10.1.1.1", "2002:7f00:1::",
    ):  # fmt: skip
        for port in (8080, 5432):
            refusal = policy.refusal(ip, port)
            assert refusal is not None, ip
            assert "Ackpost itself" in refusal
        assert policy.refusal(ip, 8081) is None
    assert policy.refusal("198.20.0.10", 8080) is None


def test_own_addresses_are_refused_like_private_ones() -> None:
    """The node's own public address is closed until its range is opened."""
    closed = AddressPolicy(own_addresses=["198.20.0.9"]).refusal("198.20.0.9", 443)
    assert closed is not None
    assert "this server" in closed
    assert AddressPolicy(["198.20.0.9"], own_addresses=["198.20.0.9"]).refusal("198.20.0.9", 443) is None


def test_what_is_no_address_is_refused() -> None:
    """A resolver that answers nonsense opens nothing."""
    for text in ("", "localhost", "127.1", "1.2.3.4:80"):
        assert _NOTHING_ALLOWED.refusal(text, 443) is not None


def test_verdicts_stay_right_when_many_addresses_were_seen() -> None:
    """The memory of verdicts is bounded and changes none of them."""
    policy = AddressPolicy(["10.0.0.0/24"])
    for number in range(5_000):
        ip = str(IPv4Address((10 << 24) + number))
        assert (policy.refusal(ip, 443) is None) is (number < 256)
    assert policy.refusal("10.0.0.1", 443) is None
    assert len(policy._verdicts) <= 4_096


def _refusal_at_save(url: str, policy: AddressPolicy = _NOTHING_ALLOWED) -> InvalidInput | None:
    try:
        judge_at_save(parse_target(url, allow_http=True), policy)
    except InvalidInput as error:
        return error
    return None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "https://10.0.0.1/x", "http://[::1]:9/", "http://[::ffff:127.0.0.1]/",
        "https://169.254.169.254/latest", "http://metadata.google.internal/", "https://METADATA.goog./",
        "http://localhost:3000/", "http://a.localhost/", "http://0.0.0.0:1/", "http://[::]:1/",
    ],
)  # fmt: skip
def test_known_internal_targets_are_refused_at_save(url: str) -> None:
    """Literals, metadata names and localhost are refused before anything is stored, without DNS."""
    error = _refusal_at_save(url)
    assert error is not None
    assert (error.status, error.code) == (422, "blocked_target")
    assert error.errors[0].loc == ("body", "url")
    assert "--allow-target" in error.errors[0].message


def test_names_and_opened_ranges_pass_at_save() -> None:
    """Any other name is left to the connect; what the operator opened is fine at save too."""
    loopback = AddressPolicy(["127.0.0.0/8", "::1"], own_ports=[8080])
    for url in ("https://h.example/", "https://8.8.8.8/", "https://notlocalhost/", "https://metadata.example/"):
        assert _refusal_at_save(url) is None
    for url in ("http://127.0.0.1:3000/", "http://localhost:3000/", "http://[::1]:3000/"):
        assert _refusal_at_save(url, loopback) is None
    assert _refusal_at_save("http://localhost:3000/", AddressPolicy(["127.0.0.1"])) is None
    assert _refusal_at_save("http://localhost:8080/", loopback) is not None
    assert _refusal_at_save("http://metadata/", AddressPolicy(["169.254.0.0/16"])) is None
