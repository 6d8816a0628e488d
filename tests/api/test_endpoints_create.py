"""Making and replacing endpoints: what is refused, what is kept, what is shown once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.world import World, run

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="


def test_an_endpoint_is_made_with_defaults_and_its_secret_shown_once() -> None:
    """Only a URL is needed; the answer has the secret and the whole document."""

    async def scenario(world: World) -> None:
        made = await world.endpoint()
        assert made["secret"].startswith("whsec_")
        assert made["id"].startswith("ep_")
        assert (made["tenant"], made["state"], made["event_types"], made["format"]) == (
            "default", "enabled", ["*"], "standard",
        )  # fmt: skip
        assert made["policy"] == {}
        assert made["policy_effective"]["retry"]["max_age_s"] == 259200.0
        assert "warnings" not in made
        read = (await world.get(f"/v1/endpoints/{made['id']}")).json
        assert "secret" not in read
        assert read == {name: value for name, value in made.items() if name != "secret"}

    run(scenario)


def test_a_given_secret_is_used_for_each_signature_kind() -> None:
    """The caller's own secret is kept in its one form; a wrong one is refused without being repeated."""

    async def scenario(world: World) -> None:
        given = await world.endpoint(secret=SECRET.removeprefix("whsec_"))
        assert given["secret"] == SECRET
        text = await world.endpoint(signature="sha256-hex", secret="a-text-of-24-characters!", uid="hex")
        assert text["secret"] == "a-text-of-24-characters!"
        bad = await world.post("/v1/endpoints", {"url": "https://a.example/", "secret": "whsec_MARK!!"})
        assert (bad.status, bad.code, bad.locs) == (422, "invalid", [("body", "secret")])
        assert b"MARK" not in bad.body

    run(scenario)


def test_an_ed25519_endpoint_shows_its_public_key_and_never_the_private_one() -> None:
    """Consumers need the public key only."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(signature="standard-ed25519", uid="ed")
        assert made["public_key"].startswith("whpk_")
        assert "secret" not in made
        shown = (await world.get("/v1/endpoints/ed/secret")).json
        assert shown["public_key"] == made["public_key"]
        assert "secret" not in shown

    run(scenario)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://a.example/", "invalid"),
        ("HTTP://a.example/", "invalid"),
        ("hTTps+unix://a.example/", "invalid"),
        ("file:///etc/passwd", "invalid"),
        ("gopher://a.example/", "invalid"),
        ("ftp://a.example/", "invalid"),
        ("https://user:pass@a.example/", "invalid"),
        ("https://127.1/", "invalid"),
        ("https://127.0.0.1/", "blocked_target"),
        ("https://169.254.169.254/latest/", "blocked_target"),
        ("https://metadata.google.internal/", "blocked_target"),
        ("https://[::ffff:127.0.0.1]/", "blocked_target"),
    ],
)
def test_a_url_this_server_must_not_send_to_is_refused(url: str, code: str) -> None:
    """Schemes and addresses are the operator's to open, whatever their spelling (case S13)."""

    async def scenario(world: World) -> None:
        answer = await world.post("/v1/endpoints", {"url": url})
        assert (answer.status, answer.code, answer.locs) == (422, code, [("body", "url")])
        for field in ("allow_private", "allow_http", "allow_target"):
            opened = await world.post("/v1/endpoints", {"url": "https://a.example/", field: True})
            assert (opened.status, opened.locs) == (422, [("body", field)])

    run(scenario)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "a\r\nX: 1"),
        ("X-A", "a\nb"),
        ("X-A", "a\x00b"),
        ("X-A", "x" * 1025),
        ("X-A", 5),
        ("X-A", None),
        ("Bad Name", "a"),
        ("X:A", "a"),
        ("Host", "a"),
        ("content-length", "1"),
        ("TRANSFER-ENCODING", "chunked"),
        ("Connection", "close"),
        ("Upgrade", "h2c"),
        ("TE", "trailers"),
        ("Trailer", "X"),
        ("Keep-Alive", "1"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "x"),
        ("Content-Type", "text/plain"),
        ("User-Agent", "x"),
        ("Webhook-Signature", "x"),
        ("x-webhook-id", "x"),
        ("ackpost-attempt", "1"),
    ],
)
@pytest.mark.parametrize("field", ["headers", "secret_headers"])
def test_headers_that_would_break_or_forge_a_request_are_refused_when_set(field: str, name: str, value: Any) -> None:
    """Never first met while sending: refused at create and at update, open or secret (cases A066, S18, S19)."""

    async def scenario(world: World) -> None:
        made = await world.post("/v1/endpoints", {"url": "https://a.example/", field: {name: value}})
        assert (made.status, made.code) == (422, "invalid")
        assert made.locs[0][:2] == ("body", field)
        if value is not None:  # in a patch null takes a header away
            endpoint = await world.endpoint()
            changed = await world.patch(f"/v1/endpoints/{endpoint['id']}", {field: {name: value}})
            assert (changed.status, changed.code) == (422, "invalid")

    run(scenario)


def test_a_header_in_two_spellings_is_refused() -> None:
    """Credentials cannot be doubled by another case of the name, open or secret."""

    async def scenario(world: World) -> None:
        body = {"url": "https://a.example/", "headers": {"X-Key": "a"}, "secret_headers": {"x-key": "b"}}
        answer = await world.post("/v1/endpoints", body)
        assert (answer.status, answer.locs) == (422, [("body", "secret_headers", "x-key")])

    run(scenario)


def test_every_wrong_field_is_named_at_once() -> None:
    """One answer tells all that is to be corrected."""

    async def scenario(world: World) -> None:
        body = {
            "url": "nonsense",
            "uid": "no blanks",
            "event_types": [],
            "channels": ["a b"],
            "signature_header": "X-Sig",
            "key_field": "event",
            "policy": {"timeout_s": 0.5},
        }
        answer = await world.post("/v1/endpoints", body)
        assert answer.status == 422
        assert {loc[1] for loc in answer.locs} == set(body)

    run(scenario)


@pytest.mark.parametrize(
    ("body", "status", "code", "locs"),
    [
        (b"", 422, "invalid", [("body",)]),
        (b"null", 422, "invalid", [("body",)]),
        (b"[]", 422, "invalid", [("body",)]),
        (b"{}", 422, "invalid", [("body", "url")]),
        (b"{", 400, "malformed_json", []),
        (b'{"url":"https://a.example/","metadata":{"a":NaN}}', 400, "malformed_json", []),
        (b'{"url":"https://a.example/","description":"\xff"}', 400, "malformed_json", []),
    ],
)
def test_a_body_that_is_no_endpoint_is_refused(body: bytes, status: int, code: str, locs: list[Any]) -> None:
    """Read whatever the Content-Type, and named when it is missing."""

    async def scenario(world: World) -> None:
        answer = await world.post("/v1/endpoints", body)
        assert (answer.status, answer.code, answer.locs) == (status, code, locs)

    run(scenario)


def test_the_tenants_default_format_holds_where_none_is_given() -> None:
    """And an endpoint's own format wins over it."""

    async def scenario(world: World) -> None:
        body = {"default_format": "store"}
        changed = await world.patch("/v1/tenants/default", body, key="operator")
        assert changed.status == 200, changed.body
        assert (await world.endpoint())["format"] == "store"
        own = await world.endpoint(format="flat", key_field="message_id", uid="own")
        assert own["format"] == "flat"
        reset = await world.patch("/v1/endpoints/own", {"format": None})
        assert reset.json["format"] == "store"

    run(scenario)


@pytest.mark.parametrize(
    "again",
    ["https://a.example/hook", "https://A.Example/hook", "https://a.example:443/hook", "https://a.example./hook"],
)
def test_the_same_url_twice_is_made_with_a_warning(again: str) -> None:
    """However it is spelt: doubles are possible, but nobody makes one without being told (case A147)."""

    async def scenario(world: World) -> None:
        await world.endpoint()
        assert (await world.endpoint(url=again))["warnings"] == ["duplicate_url"]
        assert "warnings" not in await world.endpoint(url="https://a.example/hook/")
        moved = await world.endpoint(url="https://b.example/", uid="moved")
        assert "warnings" not in moved
        changed = await world.patch("/v1/endpoints/moved", {"url": again})
        assert changed.json["warnings"] == ["duplicate_url"]

    run(scenario)


def test_a_uid_is_unique_and_stands_for_the_id_in_paths() -> None:
    """The second endpoint of a uid is refused."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="shop-1")
        again = await world.post("/v1/endpoints", {"url": "https://b.example/", "uid": "shop-1"})
        assert (again.status, again.code) == (409, "already_exists")
        assert (await world.get("/v1/endpoints/shop-1")).json["id"] == made["id"]
        for unknown in ("shop-2", "ep_00000000000000000000000000", "ep_nonsense", "evt" + made["id"][2:]):
            missing = await world.get(f"/v1/endpoints/{unknown}")
            assert (missing.status, missing.code) == (404, "not_found")

    run(scenario)


def test_more_endpoints_than_allowed_are_refused() -> None:
    """The limit is the operator's setting."""

    async def scenario(world: World) -> None:
        await world.endpoint()
        await world.endpoint()
        third = await world.post("/v1/endpoints", {"url": "https://a.example/"})
        assert (third.status, third.code) == (422, "invalid")

    run(scenario, endpoints_max=2)


def test_put_makes_an_endpoint_and_then_replaces_all_of_it() -> None:
    """What is left out gets its default; id, secret, state and creation stay."""

    async def scenario(world: World) -> None:
        body = {"url": "https://a.example/", "description": "old", "channels": ["x"], "secret_headers": {"X-Key": "k"}}
        made = await world.put("/v1/endpoints/shop", body)
        assert (made.status, made.json["uid"]) == (201, "shop")
        secret = made.json["secret"]
        await world.post("/v1/endpoints/shop/pause")
        same = await world.put("/v1/endpoints/shop", {"url": "https://a.example/", "secret": secret})
        assert same.status == 200
        assert "secret" not in same.json
        assert (same.json["id"], same.json["state"]) == (made.json["id"], "paused")
        assert (same.json["description"], same.json["channels"], same.json["secret_headers"]) == ("", [], [])
        by_id = await world.put(f"/v1/endpoints/{made.json['id']}", {"url": "https://c.example/"})
        assert (by_id.status, by_id.json["uid"], by_id.json["url"]) == (200, "shop", "https://c.example/")
        assert (await world.get("/v1/endpoints/shop/secret")).json["secret"] == secret

    run(scenario)


def test_put_neither_changes_the_secret_nor_the_uid() -> None:
    """Rotation has its own call with an overlap."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="shop")
        secret = await world.put("/v1/endpoints/shop", {"url": "https://a.example/", "secret": SECRET})
        assert (secret.status, secret.locs) == (422, [("body", "secret")])
        uid = await world.put("/v1/endpoints/shop", {"url": "https://a.example/", "uid": "other"})
        assert (uid.status, uid.locs) == (422, [("body", "uid")])

    run(scenario)


def test_two_puts_at_once_make_one_endpoint() -> None:
    """The one that comes second replaces what the first one made."""

    async def scenario(world: World) -> None:
        async def other(_: object) -> None:
            await world.endpoint(uid="shop", description="first")

        world.committer.before = other
        second = await world.put("/v1/endpoints/shop", {"url": "https://a.example/", "description": "second"})
        assert (second.status, second.json["description"]) == (200, "second")
        assert len((await world.get("/v1/endpoints")).json["data"]) == 1

    run(scenario)


def test_a_repeated_create_gives_the_first_answer_with_the_first_secret() -> None:
    """The same key makes one endpoint; another body under it is a conflict."""

    async def scenario(world: World) -> None:
        body = {"url": "https://a.example/", "secret_headers": {"X-K": "v"}}
        first = await world.post("/v1/endpoints", body, idempotency_key="k1")
        again = await world.post("/v1/endpoints", body, idempotency_key="k1")
        assert (again.status, again.json) == (201, first.json)
        other = await world.post("/v1/endpoints", {"url": "https://b.example/"}, idempotency_key="k1")
        assert (other.status, other.code) == (409, "idempotency_conflict")
        assert len((await world.get("/v1/endpoints")).json["data"]) == 1

    run(scenario)
