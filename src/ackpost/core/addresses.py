"""Which addresses Ackpost may dial (contract §6): an explicit deny list, judged for the very address dialled.

``ipaddress.is_global`` is not used: on supported Python versions it calls multicast, NAT64, 6to4, Teredo and other
ways into a private network global. Source: IANA special-purpose registries, RFC 6890, RFC 6052, RFC 4291.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from ackpost.core.target import Target
from ackpost.errors import ConfigError, FieldError, InvalidInput

_VERDICTS_MAX: Final = 4_096
_METADATA_IP: Final = "169.254.169.254"
_METADATA_NAMES: Final = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "rancher-metadata",
    }
)


class _Net(NamedTuple):
    """An address range as numbers, both ends included."""

    first: int
    last: int
    cidr: str
    rule: str


def _net(cidr: str, rule: str = "") -> _Net:
    network = ip_network(cidr)
    return _Net(int(network.network_address), int(network.broadcast_address), cidr, rule)


# The first match names the rule, so single addresses come before the ranges around them.
_DENIED_V4: Final = tuple(
    _net(cidr, rule)
    for cidr, rule in (
        ("169.254.169.254/32", "a cloud metadata service"),
        ("168.63.129.16/32", "a cloud metadata service"),
        ("100.100.100.200/32", "a cloud metadata service"),
        ("192.0.0.192/32", "a cloud metadata service"),
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared address space"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_DENIED_V6: Final = tuple(
    _net(cidr, rule)
    for cidr, rule in (
        ("fd00:ec2::254/128", "a cloud metadata service"),
        ("::/128", "this host"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "an IPv4-mapped address"),
        ("::ffff:0:0:0/96", "an IPv4-translated address"),
        ("::/96", "an IPv4-compatible address"),
        ("64:ff9b::/32", "NAT64"),
        ("::/8", "reserved"),
        ("100::/64", "discard-only"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
        ("5f00::/16", "segment routing"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        # Global unicast is 2000::/3; the rest is set aside.
        ("::/3", "reserved"),
        ("4000::/2", "reserved"),
        ("8000::/1", "reserved"),
    )
)
# Unspecified addresses connect to loopback.
_THIS_NODE: Final = {4: (_net("0.0.0.0/32"), _net("127.0.0.0/8")), 6: (_net("::/127"),)}

# Where an IPv6 address carries an IPv4 one in its last 32 bits: what it reaches is judged too when a range is opened.
_EMBEDDING: Final = tuple(_net(cidr) for cidr in ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "::/96"))
_SIX_TO_FOUR: Final = _net("2002::/16")


class AddressPolicy:
    """What this process may dial: everything public, and the ranges an operator opened, but never its own ports.

    Args:
        allowed: CIDRs (or single addresses) of ``--allow-target``.
        own_addresses: this node's addresses; refused like private ones.
        own_ports: ports Ackpost listens on; never reachable on loopback or on an own address, whatever is allowed.

    Raises:
        ConfigError: an entry of ``allowed`` is no CIDR; the text names it.
    """

    __slots__ = ("_allowed", "_own", "_own_ports", "_verdicts")

    def __init__(
        self, allowed: Iterable[str] = (), own_addresses: Iterable[str] = (), own_ports: Collection[int] = ()
    ) -> None:
        self._allowed = tuple(_parse_allowed(text) for text in allowed)
        self._own = frozenset(_version_and_number(text) for text in own_addresses)
        self._own_ports = frozenset(own_ports)
        self._verdicts: dict[str, tuple[str | None, bool]] = {}

    def refusal(self, ip: str, port: int) -> str | None:
        """Say why ``ip`` must not be dialled (rule and setting are named), or None when it may be."""
        known = self._verdicts.get(ip)
        if known is None:
            if len(self._verdicts) >= _VERDICTS_MAX:
                self._verdicts.clear()
            known = self._verdicts[ip] = self._judge(ip)
        verdict, reaches_this_node = known
        if reaches_this_node and port in self._own_ports:
            return f"{ip} port {port} is Ackpost itself; no setting opens it"
        return verdict

    def _judge(self, ip: str) -> tuple[str | None, bool]:
        """Give the verdict that holds for any port, and whether the address leads to this node."""
        try:
            version, number = _version_and_number(ip)
        except ValueError:
            return "the resolver's answer is not an IP address", False
        inner = _embedded_v4(number) if version == 6 else None
        numbers = [(version, number)] if inner is None else [(version, number), (4, inner)]
        reaches_this_node = any(self._reaches_this_node(*pair) for pair in numbers)
        for pair in numbers:
            refusal = self._refuse_number(ip, *pair)
            if refusal is not None:
                return refusal, reaches_this_node
        return None, reaches_this_node

    def _refuse_number(self, shown: str, version: int, number: int) -> str | None:
        if any(v == version and net.first <= number <= net.last for v, net in self._allowed):
            return None
        for net in _DENIED_V4 if version == 4 else _DENIED_V6:
            if net.first <= number <= net.last:
                return f"{shown} is {net.rule} ({net.cidr}); the operator opens a range with --allow-target"
        if (version, number) in self._own:
            return f"{shown} is an address of this server; the operator opens it with --allow-target"
        return None

    def _reaches_this_node(self, version: int, number: int) -> bool:
        return (version, number) in self._own or any(net.first <= number <= net.last for net in _THIS_NODE[version])


def judge_at_save(target: Target, policy: AddressPolicy) -> None:
    """Refuse what is known without DNS: literal addresses, names of metadata services, ``localhost``.

    Raises:
        InvalidInput: with code ``blocked_target``, naming the field, the rule and the setting.
    """
    if target.literal_ip is not None:
        reason = policy.refusal(target.literal_ip, target.port)
    elif target.host in _METADATA_NAMES:
        reason = policy.refusal(_METADATA_IP, target.port)
    elif target.host == "localhost" or target.host.endswith(".localhost"):
        # RFC 6761: always loopback, of either family.
        reasons = [policy.refusal(ip, target.port) for ip in ("127.0.0.1", "::1")]
        reason = reasons[0] if None not in reasons else None
    else:
        reason = None
    if reason is not None:
        message = f"must not lead to an internal address: {reason}"
        raise InvalidInput(f"The URL {message}.", code="blocked_target", errors=[FieldError(("body", "url"), message)])


def _parse_allowed(text: str) -> tuple[int, _Net]:
    try:
        network = ip_network(text.strip())
    except ValueError as error:
        raise ConfigError(f"--allow-target: {text.strip()!r} is not a CIDR like 10.0.0.0/8 ({error})") from error
    return network.version, _net(str(network))


def _version_and_number(text: str) -> tuple[int, int]:
    address: IPv4Address | IPv6Address = ip_address(text)
    return address.version, int(address)


def _embedded_v4(number: int) -> int | None:
    if number > 1 and any(net.first <= number <= net.last for net in _EMBEDDING):
        return number & 0xFFFF_FFFF
    if _SIX_TO_FOUR.first <= number <= _SIX_TO_FOUR.last:
        return (number >> 80) & 0xFFFF_FFFF
    return None
