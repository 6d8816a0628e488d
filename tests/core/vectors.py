"""Published signatures that must come out byte for byte.

Source: Standard Webhooks' own tests (Python, Rust), the documentation of Svix, the README of
Cosium/standard-webhooks-consumer, and the server of Svix for ed25519.
"""

from __future__ import annotations

from typing import NamedTuple


class Vector(NamedTuple):
    """One signed request as published."""

    secret: str
    event_id: str
    timestamp_s: int
    body: bytes
    signature: bytes


_MSG = "msg_p5jXN8AQM9LWM0D4loKWxJek"
_TEST = b'{"test": 2432232314}'

HMAC = (
    Vector(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", _MSG, 1614265330, _TEST,
        b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    ),
    Vector(
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1649367553,
        b'{"email":"test@example.com","username":"test_user"}',
        b"v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
    ),
    Vector(
        "whsec_plJ3nmyCDGBKInavdOK15jsl", "msg_loFOjxBNrRLzqYUf", 1731705121,
        b'{"event_type":"ping","data":{"success":true}}',
        b"v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    ),
    Vector(
        "whsec_b6Ovv5eS7H5seJrGSStBYDivs8v2/KrFjfMaVZYsi7w=", "7a2486b3-31cf-4bd3-a460-df8845d16cd5", 1737987215,
        b'{"greetings": "Hello World"}',
        b"v1,iayM3VaiYCEDP/CxWUFWcxUCJk2YmBDQHtHTsaHzrwo=",
    ),
)  # fmt: skip

ED25519_PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
ED25519 = Vector(
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
    _MSG, 1614265330, _TEST,
    b"v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
)  # fmt: skip
