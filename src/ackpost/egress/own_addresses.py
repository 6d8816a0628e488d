"""The addresses of this machine, so that a target that leads back to it is noticed."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

_LOCAL_V4: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


def own_addresses(proc_net: Path = Path("/proc/net")) -> frozenset[str]:
    """List this machine's addresses: from the kernel's tables on Linux, elsewhere those of its host name."""
    trie, inet6 = proc_net / "fib_trie", proc_net / "if_inet6"
    found: set[str] = set()
    if trie.exists():
        found.update(_LOCAL_V4.findall(trie.read_text("ascii")))
    if inet6.exists():
        found.update(IPv6Address(int(line.split()[0], 16)).compressed for line in inet6.read_text("ascii").splitlines())
    return frozenset(found or _of_host_name())


def _of_host_name() -> set[str]:
    try:
        infos = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return set()  # a host name that resolves to nothing has no address to guard
    return {str(info[4][0]).partition("%")[0] for info in infos}
