"""Why an attempt has no answer: exceptions of sockets, DNS and TLS as outcome codes with texts that are safe to show.

The texts never quote a URL, a header or what the exception says (it may hold addresses or names of ours).
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Final

from ackpost.core.outcome import (
    CONNECT_ERROR,
    CONNECT_REFUSED,
    CONNECT_TIMEOUT,
    DNS_ERROR,
    LOCAL_ERROR,
    TLS_ERROR,
)

# What this machine ran out of: no attempt is used for it.
_LOCAL: Final = {
    errno.EMFILE: "this server has no file descriptor left",
    errno.ENFILE: "this machine has no file descriptor left",
    errno.ENOBUFS: "this machine has no socket buffer left",
    errno.ENOMEM: "this machine has no memory left",
    errno.EADDRNOTAVAIL: "this machine has no local port left, or no address of this family",
}
_CONNECT: Final = {
    errno.ENETUNREACH: "the network is unreachable",
    errno.EHOSTUNREACH: "the host is unreachable",
    errno.ECONNRESET: "the connection was reset while it was opened",
    errno.ECONNABORTED: "the connection was aborted while it was opened",
    errno.EACCES: "a firewall of this machine forbids the connection",
    errno.EPERM: "a firewall of this machine forbids the connection",
}
_LOCAL_DNS: Final = frozenset({socket.EAI_MEMORY, socket.EAI_SYSTEM})
# X.509 verification results. Source: OpenSSL, x509_vfy.h.
_CERTIFICATE: Final = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is self-signed",
    19: "the certificate chain ends in an authority that is not trusted here",
    20: "the certificate's issuer is unknown here, or an intermediate certificate is missing",
    21: "the certificate's issuer is unknown here, or an intermediate certificate is missing",
    62: "the certificate is for another host name",
    64: "the certificate is for another IP address",
}


class AttemptFailed(Exception):
    """An attempt that ended before a connection stood."""

    def __init__(self, code: str, detail: str, *, phase: str | None = None, remote_ip: str | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.phase = phase
        self.remote_ip = remote_ip


def connect_failure(error: OSError, ip: str) -> AttemptFailed:
    """Classify what a connect to ``ip`` raised."""
    number = error.errno
    if isinstance(error, ConnectionRefusedError):
        return AttemptFailed(CONNECT_REFUSED, "the connection was refused", phase="connect", remote_ip=ip)
    if isinstance(error, TimeoutError):
        return AttemptFailed(CONNECT_TIMEOUT, "no answer to the connection request", phase="connect", remote_ip=ip)
    if number in _LOCAL:
        return AttemptFailed(LOCAL_ERROR, _LOCAL[number], phase="connect")
    name = errno.errorcode.get(number or 0, "unknown error")
    detail = _CONNECT.get(number or 0, f"the connection could not be opened ({name})")
    return AttemptFailed(CONNECT_ERROR, detail, phase="connect", remote_ip=ip)


def dns_failure(error: OSError) -> AttemptFailed:
    """Classify what getaddrinfo raised."""
    if not isinstance(error, socket.gaierror) or error.errno in _LOCAL_DNS:
        return AttemptFailed(LOCAL_ERROR, "this machine could not ask its resolver", phase="dns")
    if error.errno == socket.EAI_NONAME:
        return AttemptFailed(DNS_ERROR, "the host name does not exist", phase="dns")
    if error.errno == socket.EAI_AGAIN:
        return AttemptFailed(DNS_ERROR, "the resolver has no answer for now", phase="dns")
    return AttemptFailed(DNS_ERROR, "the resolver refused or has no address for this host name", phase="dns")


def tls_detail(error: BaseException) -> str:
    """Say why a TLS connection could not be opened or was broken off by the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _CERTIFICATE.get(error.verify_code, f"the certificate is not accepted (code {error.verify_code})")
    reason: str | None = getattr(error, "reason", None)  # errors that an event loop makes itself have none
    if isinstance(error, ssl.SSLError) and reason:
        return "TLS failed: " + reason.replace("_", " ").lower()
    return "the connection was lost during the TLS handshake"


def tls_failure(error: BaseException, ip: str) -> AttemptFailed:
    """Classify what a TLS handshake with ``ip`` raised."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno in _LOCAL:
        return AttemptFailed(LOCAL_ERROR, _LOCAL[error.errno], phase="tls")
    return AttemptFailed(TLS_ERROR, tls_detail(error), phase="tls", remote_ip=ip)
