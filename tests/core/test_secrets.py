"""Secrets: made, checked, refused with the likely mistake, and kept."""

from __future__ import annotations

import sys
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core import signing
from ackpost.core.signing import SignatureKind, Signer, normalise_secret
from ackpost.errors import SigningError
from tests.core import vectors

KEY = bytes(range(24))
TEXT = b64encode(KEY).decode()
SEED = bytes(range(32))


@given(st.binary(min_size=24, max_size=75))
def test_a_standard_secret_keeps_its_bytes_with_and_without_prefix(key: bytes) -> None:
    """24 to 75 bytes, prefix optional; the one form has it."""
    text = b64encode(key).decode()
    assert normalise_secret("standard", text) == f"whsec_{text}"
    assert normalise_secret("standard", f"whsec_{text}") == f"whsec_{text}"


@pytest.mark.parametrize("kind", signing.SIGNATURE_KINDS)
def test_a_new_secret_of_each_kind_is_in_its_normal_form(kind: SignatureKind) -> None:
    """What is generated passes the check for given secrets unchanged, and signs."""
    secret = signing.new_secret(kind, SEED)
    assert normalise_secret(kind, secret) == secret
    assert Signer(kind, [(secret, None)]).headers("evt_1", 1, b"{}", 0)


def test_generated_secrets_are_pinned() -> None:
    """The texts made from given random bytes are those of Standard Webhooks."""
    assert signing.generate_secret(SEED) == "whsec_" + b64encode(SEED).decode()
    private, public = signing.generate_ed25519(SEED)
    assert private.startswith("whsk_AAECAwQFBgc")
    assert signing.public_key_of(private) == public
    assert signing.new_secret("sha256-hex", SEED) == SEED.hex()


def test_the_public_key_of_the_published_key() -> None:
    """The vendor's private key gives the vendor's public one."""
    assert normalise_secret("standard-ed25519", vectors.ED25519.secret) == vectors.ED25519.secret
    assert signing.public_key_of(vectors.ED25519.secret) == vectors.ED25519_PUBLIC


WRONG_STANDARD = [
    ("", "empty"),
    ("   ", "empty"),
    ("whsec_", "0 bytes"),
    (f"whsec_{TEXT}\n", "whitespace"),
    (f"whsec_{TEXT}\r\n", "whitespace"),
    (f" whsec_{TEXT}", "whitespace"),
    (f"whsec_ {TEXT}", "whitespace"),
    (f"v1,whsec_{TEXT}", "prefix"),
    (f"v1a,{TEXT}", "prefix"),
    (f"whsk_{TEXT}", "standard-ed25519"),
    (f"whpk_{TEXT}", "standard-ed25519"),
    (f"hwsec_{TEXT}", "misspelt"),
    ("whsec_" + "-_" * 16, "URL-safe"),
    ("whsec_!!!!", "not base64"),
    ("whsec_xyz!", "not base64"),
    ("whsec_%", "not base64"),
    ("whsec_é" + TEXT, "not base64"),
    ("whsec_YQ", "padding"),
    (f"whsec_{TEXT}A", "padding"),
    (f"whsec_{TEXT}YR==", "mistyped or cut"),
    (f"whsec_{TEXT}=", "padding|cut"),
    ("whsec_YQ==", "1 bytes"),
    ("whsec_" + b64encode(bytes(15)).decode(), "15 bytes"),
    ("whsec_" + b64encode(bytes(23)).decode(), "24 to 75"),
    ("whsec_" + b64encode(bytes(76)).decode(), "24 to 75"),
]


@pytest.mark.parametrize(("text", "cause"), WRONG_STANDARD)
def test_wrong_standard_secrets_name_the_likely_cause(text: str, cause: str) -> None:
    """Empty, padded by blanks, cut, mistyped, of another kind or length: refused, and the secret is not repeated."""
    with pytest.raises(SigningError, match=cause) as caught:
        normalise_secret("standard", text)
    assert TEXT not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


PRIVATE = signing.generate_ed25519(SEED)[0]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "empty"),
        (f"{PRIVATE}\n", "whitespace"),
        (f"v1a,{PRIVATE}", "prefix"),
        (vectors.ED25519_PUBLIC, "public key"),
        (f"whsec_{TEXT}", "whsk_"),
        (PRIVATE.removeprefix("whsk_"), "whsk_"),
        (PRIVATE[:-3], "padding|cut"),
        (PRIVATE[:-4], "63 bytes"),
        ("whsk_" + b64encode(SEED).decode(), "32 bytes"),
        ("whsk_" + b64encode(SEED + bytes(32)).decode(), "belong together"),
    ],
)
def test_wrong_ed25519_secrets_name_the_likely_cause(text: str, cause: str) -> None:
    """The public key, a bare seed, a cut text or halves of two keys: refused, and the secret is not repeated."""
    with pytest.raises(SigningError, match=cause) as caught:
        normalise_secret("standard-ed25519", text)
    assert text.removeprefix("whsk_") == "" or text.removeprefix("whsk_") not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "empty"), ("   ", "empty"), ("x" * 40 + "\n", "whitespace"), (" " + "x" * 40, "whitespace"),
        ("x" * 23, "23 characters"), ("x" * 257, "257 characters"), ("x" * 30 + "é", "ASCII"),
        ("x" * 20 + "\x00" + "x" * 20, "ASCII"), ("x" * 20 + "\t" + "x" * 20, "ASCII"),
    ],
)  # fmt: skip
def test_wrong_text_secrets_name_the_likely_cause(text: str, cause: str) -> None:
    """``sha256-hex`` takes 24 to 256 printable ASCII characters, without blanks at the ends."""
    with pytest.raises(SigningError, match=cause):
        normalise_secret("sha256-hex", text)


@pytest.mark.parametrize(
    "text", ["x" * 24, "y" * 256, "whsec_abcdefghijklmnopqrstuv", "a phrase with blanks inside it"]
)
def test_a_text_secret_is_taken_as_it_is(text: str) -> None:
    """The text itself is the key, whatever it looks like."""
    assert normalise_secret("sha256-hex", text) == text


def test_an_unknown_kind_is_refused() -> None:
    """Neither a secret can be checked nor a signer made for a signature that does not exist."""
    with pytest.raises(SigningError, match="must be one of"):
        normalise_secret("sha1", TEXT)
    with pytest.raises(SigningError, match="must be one of"):
        Signer("sha1", [(TEXT, None)])


@given(st.text())
def test_the_envelope_gives_back_what_it_got(secret: str) -> None:
    """Sealed and unsealed, any text is the same."""
    assert signing.unseal(signing.seal(secret)) == secret


@pytest.mark.parametrize("stored", ["v1:abc", "abc", "", "v00:x"])
def test_an_envelope_of_another_version_is_refused(stored: str) -> None:
    """A secret sealed by newer code is not taken for a secret."""
    with pytest.raises(SigningError, match="unknown version"):
        signing.unseal(stored)


def test_without_cryptography_ed25519_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base install signs with HMAC and names the extra for ed25519."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert Signer("standard", [(TEXT, None)]).headers("evt_1", 1, b"", 0)
    with pytest.raises(SigningError, match="pip install"):
        signing.generate_ed25519(SEED)
