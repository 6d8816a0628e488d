"""Certificates made for one test run: an authority, and servers' certificates good and bad."""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

YEARS = (2020, 2120)


class Authority:
    """An authority that signs server certificates; with ``issuer`` it is an intermediate one."""

    def __init__(self, name: str, issuer: Authority | None = None) -> None:
        signer = issuer or self
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (
            _builder(self.name, signer.name, self.key, YEARS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(signer.key, hashes.SHA256())
        )

    def trusting_context(self) -> ssl.SSLContext:
        """A client's context that trusts this authority and no other."""
        context = ssl.create_default_context(cadata=self.certificate.public_bytes(Encoding.DER))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def server_context(self, host: str, *, years: tuple[int, int] = YEARS, send_own: bool = False) -> ssl.SSLContext:
        """A server's context with a certificate for ``host``; ``send_own`` adds the authority's own to the chain."""
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = (
            _builder(x509.Name([]), self.name, key, years)
            .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return _server_context(key, [leaf, self.certificate] if send_own else [leaf])


def self_signed_context(host: str) -> ssl.SSLContext:
    """A server's context with a certificate that nobody vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    leaf = (
        _builder(name, name, key, YEARS)
        .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _server_context(key, [leaf])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, years: tuple[int, int]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(years[0], 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(years[1], 1, 1, tzinfo=UTC))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _server_context(key: ec.EllipticCurvePrivateKey, chain: list[x509.Certificate]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem += b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "chain.pem")
        path.write_bytes(pem)
        context.load_cert_chain(path)
    return context
