"""What callers may set of an endpoint: shapes, checks against the limits, how a change is applied (contract §3, §7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ackpost.core import limits
from ackpost.core.addresses import AddressPolicy, judge_at_save
from ackpost.core.formats import Format
from ackpost.core.merge_patch import merge_patch
from ackpost.core.model import Endpoint
from ackpost.core.policy import effective_policy
from ackpost.core.signing import SignatureKind, normalise_secret, seal, unseal
from ackpost.core.target import parse_target
from ackpost.errors import FieldError, InvalidInput, SigningError

_BODY: Final = ("body",)
_SHARED_SECRET_KINDS: Final = frozenset({"standard", "sha256-hex"})


class RetryInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When a failed attempt is repeated: exponential (`base_s` …) or a list (`schedule_s`), never both."""

    base_s: float | UnsetType | None = UNSET
    factor: float | UnsetType | None = UNSET
    cap_s: float | UnsetType | None = UNSET
    jitter: Literal["full", "equal", "none"] | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    max_age_s: float | UnsetType | None = UNSET
    retry_on: list[str] | UnsetType | None = UNSET
    schedule_s: list[float] | UnsetType | None = UNSET
    jitter_ratio: float | UnsetType | None = UNSET


class CircuitInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When an endpoint is spared and how it comes back."""

    enabled: bool | UnsetType | None = UNSET
    failures: int | UnsetType | None = UNSET
    ratio: float | UnsetType | None = UNSET
    attempts_min: int | UnsetType | None = UNSET
    window_s: float | UnsetType | None = UNSET
    span_min_s: float | UnsetType | None = UNSET
    open_s: float | UnsetType | None = UNSET
    open_max_s: float | UnsetType | None = UNSET
    successes: int | UnsetType | None = UNSET
    on_open: Literal["park", "fail-fast"] | UnsetType | None = UNSET


class PolicyInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A policy as set: what is left out comes from the preset."""

    preset: Literal["messaging", "store", "standard-webhooks"] | UnsetType | None = UNSET
    retry: RetryInput | UnsetType | None = UNSET
    timeout_s: float | UnsetType | None = UNSET
    max_in_flight: int | UnsetType | None = UNSET
    rate_per_s: float | UnsetType | None = UNSET
    ordering: Literal["best-effort", "by-key"] | UnsetType | None = UNSET
    on_dead: Literal["skip", "hold"] | UnsetType | None = UNSET
    on_gone: Literal["disable", "fail"] | UnsetType | None = UNSET
    circuit: CircuitInput | UnsetType | None = UNSET
    disable_after_s: float | UnsetType | None = UNSET


class EndpointFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What can be set at any time. `format` left out: the tenant's default."""

    url: str
    description: str = ""
    event_types: list[str] = msgspec.field(default_factory=lambda: ["*"])
    channels: list[str] = msgspec.field(default_factory=list)
    format: Format | None = None
    key_field: str | None = None
    signature: SignatureKind = "standard"
    signature_header: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    policy: PolicyInput = msgspec.field(default_factory=PolicyInput)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class EndpointInput(EndpointFields, kw_only=True):
    """A whole endpoint, to make or to replace one. `secret` left out: one is generated."""

    uid: str | None = None
    secret: str | None = None
    secret_headers: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"EndpointInput(uid={self.uid!r})"


class EndpointPatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON Merge Patch of an endpoint: `null` resets to the default, objects merge, lists replace."""

    url: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    event_types: list[str] | UnsetType | None = UNSET
    channels: list[str] | UnsetType | None = UNSET
    format: Format | UnsetType | None = UNSET
    key_field: str | UnsetType | None = UNSET
    signature: SignatureKind | UnsetType | None = UNSET
    signature_header: str | UnsetType | None = UNSET
    headers: dict[str, str | None] | UnsetType | None = UNSET
    secret_headers: dict[str, str | None] | UnsetType | None = UNSET
    policy: PolicyInput | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET

    def __repr__(self) -> str:
        return "EndpointPatch()"


class TargetRules(msgspec.Struct, frozen=True):
    """Which URLs this server may send to."""

    addresses: AddressPolicy
    allow_http: bool


def new_endpoint(
    given: EndpointInput, tenant: int, default_format: str | None, rules: TargetRules, now_ms: int
) -> Endpoint:
    """Make an endpoint without secrets from a whole description.

    Raises: InvalidInput naming every refused field.
    """
    errors: list[FieldError] = []
    if given.uid is not None:
        limits.check_uid(given.uid, (*_BODY, "uid"), errors)
    blank = Endpoint(position=0, tenant=tenant, uid=given.uid, url="", created_at_ms=now_ms, updated_at_ms=now_ms)
    return _applied(blank, given, given.secret_headers, default_format, rules, errors)


def replaced_endpoint(
    endpoint: Endpoint, given: EndpointInput, default_format: str | None, rules: TargetRules
) -> Endpoint:
    """Put a whole description in the place of what an endpoint had; state, circuit and secrets stay.

    Raises: InvalidInput, also when ``secret`` is given and is not the present one.
    """
    errors: list[FieldError] = []
    if given.secret is not None and not _is_current(endpoint, given.secret):
        errors.append(FieldError((*_BODY, "secret"), "is not the present one: POST …/secret/rotate changes it"))
    return _applied(endpoint, given, given.secret_headers, default_format, rules, errors)


def patched_endpoint(
    endpoint: Endpoint, patch: EndpointPatch, default_format: str | None, rules: TargetRules
) -> Endpoint:
    """Apply a merge patch to the document as the API shows it.

    Changing scheme, host or port drops the secret headers that the patch does not set again (case S25).
    Raises: InvalidInput naming every refused field.
    """
    given = msgspec.to_builtins(patch)
    given_secrets = given.pop("secret_headers", {})
    fields = msgspec.convert(merge_patch(document(endpoint), given), EndpointFields)
    kept = {} if _leaves_origin(endpoint.url, fields.url, rules) else _plain_secret_headers(endpoint, given_secrets)
    secret_headers = merge_patch(kept, given_secrets) or {}
    return _applied(endpoint, fields, secret_headers, default_format, rules, [])


def document(endpoint: Endpoint) -> dict[str, Any]:
    """Give what can be set of an endpoint, as the API shows it, but for the secret headers; nulls left out."""
    shown = {
        "url": endpoint.url,
        "description": endpoint.description,
        "event_types": list(endpoint.event_types),
        "channels": list(endpoint.channels),
        "format": endpoint.format,
        "key_field": endpoint.key_field,
        "signature": endpoint.signature,
        "signature_header": endpoint.signature_header,
        "headers": endpoint.headers,
        "policy": endpoint.policy,
        "metadata": endpoint.metadata,
    }
    return {name: value for name, value in shown.items() if value is not None}


def checked_secret(kind: SignatureKind, text: str) -> str:
    """Check a secret given by a caller and write it in its one form.

    Raises: InvalidInput naming ``secret``, never with its text.
    """
    try:
        return normalise_secret(kind, text)
    except SigningError as error:
        raise InvalidInput(f"secret: {error}", errors=[FieldError((*_BODY, "secret"), str(error))]) from None


def _applied(
    endpoint: Endpoint,
    fields: EndpointFields,
    secret_headers: Mapping[str, str],
    default_format: str | None,
    rules: TargetRules,
    errors: list[FieldError],
) -> Endpoint:
    url = _checked_url(fields.url, endpoint.url, rules, errors)
    event_types = limits.check_event_types(fields.event_types, (*_BODY, "event_types"), errors)
    channels = limits.check_channels(fields.channels, limits.ENDPOINT_CHANNELS_MAX, (*_BODY, "channels"), errors)
    limits.check_text(fields.description, limits.DESCRIPTION_CHARS_MAX, (*_BODY, "description"), errors)
    limits.check_key_field(fields.key_field, (*_BODY, "key_field"), errors)
    limits.check_signature_header(fields.signature_header, fields.signature, (*_BODY, "signature_header"), errors)
    limits.check_headers(fields.headers, secret_headers, fields.signature_header, _BODY, errors)
    limits.check_metadata(msgspec.json.encode(fields.metadata), (*_BODY, "metadata"), errors)
    policy = _checked_policy(fields.policy, errors)
    _check_signature_change(endpoint, fields.signature, errors)
    limits.refuse(errors)
    return msgspec.structs.replace(
        endpoint,
        url=url,
        description=fields.description,
        event_types=event_types,
        channels=channels,
        format=fields.format or default_format or "standard",
        key_field=fields.key_field,
        signature=fields.signature,
        signature_header=fields.signature_header,
        headers=dict(fields.headers),
        secret_headers={name: seal(value) for name, value in secret_headers.items()},
        policy=policy,
        metadata=fields.metadata,
    )


def _checked_url(url: str, present: str, rules: TargetRules, errors: list[FieldError]) -> str:
    """Give the normalised URL; the present one is not judged again, and a new endpoint (empty) has none.

    A blocked target alone keeps its own code.
    """
    if url and url == present:
        return url
    try:
        target = parse_target(url, allow_http=rules.allow_http)
        judge_at_save(target, rules.addresses)
    except InvalidInput as error:
        if error.code != "invalid":
            raise
        errors.extend(error.errors)
        return url
    return target.url


def _checked_policy(policy: PolicyInput, errors: list[FieldError]) -> dict[str, Any]:
    stored: dict[str, Any] = msgspec.to_builtins(policy)
    try:
        effective_policy(stored)
    except InvalidInput as error:
        errors.extend(error.errors)
    return stored


def _check_signature_change(endpoint: Endpoint, kind: SignatureKind, errors: list[FieldError]) -> None:
    """The secrets stay, so each must fit the new kind as well."""
    if kind == endpoint.signature or not endpoint.secrets:
        return
    fits = {kind, endpoint.signature} <= _SHARED_SECRET_KINDS
    for secret in endpoint.secrets if fits else ():
        try:
            normalise_secret(kind, unseal(secret.sealed))
        except SigningError:
            fits = False
    if not fits:
        text = f"cannot become {kind}: the present secret does not fit it; make another endpoint"
        errors.append(FieldError((*_BODY, "signature"), text))


def _is_current(endpoint: Endpoint, secret: str) -> bool:
    try:
        normalised = normalise_secret(endpoint.signature, secret)
    except SigningError:
        return False
    return bool(endpoint.secrets) and unseal(endpoint.secrets[0].sealed) == normalised


def _plain_secret_headers(endpoint: Endpoint, given: Mapping[str, Any] | None) -> dict[str, str]:
    """Give the present secret headers but for those given anew, in whatever case: names do not differ by it."""
    again = {name.lower() for name in given or ()}
    return {name: unseal(value) for name, value in endpoint.secret_headers.items() if name.lower() not in again}


def _leaves_origin(old_url: str, new_url: str, rules: TargetRules) -> bool:
    if old_url == new_url:
        return False
    try:
        # The old URL may be from before the server's rules: it is read leniently, so that it can be compared.
        old = parse_target(old_url, allow_http=True)
        new = parse_target(new_url, allow_http=rules.allow_http)
    except InvalidInput:
        return True
    return old.origin != new.origin
