"""The node's own addresses: from the kernel's tables, else from its host name."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ackpost.core.addresses import AddressPolicy
from ackpost.egress.own_addresses import own_addresses

_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 198.20.0.0/16 2 0 2
        |-- 198.20.0.0
           /16 link UNICAST
        |-- 198.20.0.9
           /32 host LOCAL
        |-- 198.20.255.255
           /32 link BROADCAST
Local:
        |-- 198.20.0.9
           /32 host LOCAL
"""
_INET6 = (
    "2a000000000000000000000000000009 02 40 00 00     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n"
)


def test_the_kernels_tables_are_read(tmp_path: Path) -> None:
    """Local addresses of both families, no networks and broadcasts."""
    (tmp_path / "fib_trie").write_text(_TRIE)
    (tmp_path / "if_inet6").write_text(_INET6)
    assert own_addresses(tmp_path) == {"198.20.0.9", "2a00::9", "::1"}


def test_without_tables_the_host_name_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the host name's addresses are taken, without zones; an unknown name has none."""
    info = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%en0", 0, 0, 4)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("198.20.0.9", 0))]  # fmt: skip
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: info)
    assert own_addresses(tmp_path) == {"198.20.0.9", "fe80::1"}

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "x")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert own_addresses(tmp_path) == frozenset()


def test_this_machines_addresses_make_a_policy() -> None:
    """What is found here is understood by the policy, and refused."""
    addresses = own_addresses()
    policy = AddressPolicy(own_addresses=addresses)
    assert all(policy.refusal(ip, 443) is not None for ip in addresses)
