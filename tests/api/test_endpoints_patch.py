"""Changing endpoints: a merge patch of the document as it is shown, and what must not survive a new target."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackpost.core.merge_patch import merge_patch
from ackpost.ports.operations import ReplaceEndpoint
from ackpost.service.endpoint_input import document
from tests.api.world import World, run

OPTIONAL = {
    "description": st.text(alphabet="ab ", max_size=5),
    "event_types": st.lists(st.sampled_from(["a", "b.*", "*"]), min_size=1, max_size=3, unique=True),
    "channels": st.lists(st.sampled_from(["x", "y"]), max_size=2, unique=True),
    "format": st.sampled_from(["standard", "store", "bare"]),
    "headers": st.dictionaries(st.sampled_from(["X-A", "X-B"]), st.none() | st.sampled_from(["1", "2"]), max_size=2),
    "metadata": st.dictionaries(
        st.sampled_from(["m", "n"]), st.none() | st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2), max_size=2
    ),
    "policy": st.fixed_dictionaries(
        {},
        optional={
            "timeout_s": st.none() | st.integers(1, 30),
            "max_in_flight": st.none() | st.integers(1, 100),
            "retry": st.none()
            | st.fixed_dictionaries({}, optional={"max_attempts": st.none() | st.integers(1, 9), "cap_s": st.none()}),
            "circuit": st.none() | st.fixed_dictionaries({}, optional={"failures": st.none() | st.integers(1, 9)}),
        },
    ),
}
PATCHES = st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in OPTIONAL.items()})
DEFAULTS = {
    "description": "", "event_types": ["*"], "channels": [], "format": "standard", "headers": {}, "metadata": {},
    "policy": {}, "signature": "standard",
}  # fmt: skip


@settings(max_examples=40)
@given(st.lists(PATCHES, min_size=1, max_size=4))
def test_patches_merge_into_the_document_as_shown(patches: list[dict[str, Any]]) -> None:
    """Whatever is patched, the document is what RFC 7396 says, with defaults where null or nothing stands."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        expected: dict[str, Any] = {"url": "https://a.example/hook", **DEFAULTS}
        for patch in patches:
            answer = await world.patch("/v1/endpoints/e", patch)
            assert answer.status == 200, answer.body
            expected = {**DEFAULTS, **merge_patch(expected, patch)}
            assert {name: answer.json[name] for name in expected} == expected
            stored = await world.store.endpoint_by_uid(world.default_tenant, "e")
            assert stored is not None
            assert document(stored) == expected

    run(scenario)


def test_a_patch_changes_what_it_names_and_keeps_the_rest() -> None:
    """Secret headers are named in the document and set by value."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", description="d", secret_headers={"X-A": "1", "X-B": "2"})
        patch = {"secret_headers": {"x-a": "new", "X-B": None, "X-C": "3"}}
        changed = await world.patch("/v1/endpoints/e", patch)
        assert changed.json["description"] == "d"
        assert changed.json["secret_headers"] == ["x-a", "X-C"]
        cleared = await world.patch("/v1/endpoints/e", {"secret_headers": None})
        assert cleared.json["secret_headers"] == []

    run(scenario)


@pytest.mark.parametrize("field", ["id", "state", "circuit", "secret", "created_at", "public_key", "uid", "nonsense"])
def test_what_cannot_be_set_is_refused_by_name(field: str) -> None:
    """No field is ignored in silence."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        answer = await world.patch("/v1/endpoints/e", {field: "x"})
        assert (answer.status, answer.locs) == (422, [("body", field)])

    run(scenario)


def test_a_null_url_has_no_default_to_go_back_to() -> None:
    """The one field that must be there."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        answer = await world.patch("/v1/endpoints/e", {"url": None})
        assert (answer.status, answer.locs) == (422, [("body", "url")])

    run(scenario)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://a.example/other?x=1", ["X-Token"]),
        ("https://A.example:443/hook", ["X-Token"]),
        ("https://evil.example/hook", []),
        ("https://a.example:8443/hook", []),
        ("http://a.example/hook", []),
        ("https://sub.a.example/hook", []),
    ],
)
def test_credentials_do_not_follow_an_endpoint_to_another_place(url: str, kept: list[str]) -> None:
    """Another scheme, host or port drops the secret headers that the same call does not set again (case S25)."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", secret_headers={"X-Token": "MARK"})
        changed = await world.patch("/v1/endpoints/e", {"url": url, "description": "moved"})
        assert (changed.status, changed.json["secret_headers"]) == (200, kept)
        stored = await world.store.endpoint_by_uid(world.default_tenant, "e")
        assert stored is not None
        assert ("MARK" in str(stored.secret_headers)) == bool(kept)

    run(scenario, allow_http=True)


def test_credentials_that_are_sent_again_go_with_the_new_url() -> None:
    """Only those: the others are dropped all the same."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", secret_headers={"X-Old": "MARK", "X-Token": "1"})
        patch = {"url": "https://b.example/", "secret_headers": {"X-Token": "2"}}
        changed = await world.patch("/v1/endpoints/e", patch)
        assert changed.json["secret_headers"] == ["X-Token"]
        stored = await world.store.endpoint_by_uid(world.default_tenant, "e")
        assert stored is not None
        assert stored.secret_headers["X-Token"].endswith("2")

    run(scenario)


def test_a_change_in_between_is_not_lost() -> None:
    """The patch is applied anew to what another call stored in the meantime."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e", metadata={"a": 1})

        async def other(_: object) -> None:
            assert (await world.patch("/v1/endpoints/e", {"metadata": {"b": 2}})).status == 200

        world.committer.before = other
        changed = await world.patch("/v1/endpoints/e", {"metadata": {"c": 3}})
        assert changed.json["metadata"] == {"a": 1, "b": 2, "c": 3}

    run(scenario)


def test_an_endpoint_that_never_stands_still_gives_503() -> None:
    """The call ends with something to repeat instead of going on for ever."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        count = 0

        async def other(operation: object) -> None:
            nonlocal count
            count += 1
            endpoint = await world.store.endpoint_by_uid(world.default_tenant, "e")
            assert endpoint is not None
            rev = endpoint.rev
            endpoint.description = f"other {count}"
            await world.store.commit([ReplaceEndpoint(endpoint, rev, world.clock.ms)])
            world.committer.before = other

        world.committer.before = other
        answer = await world.patch("/v1/endpoints/e", {"description": "mine"})
        assert (answer.status, answer.code) == (503, "overloaded")
        assert count == 10

    run(scenario)


def test_a_patch_that_changes_nothing_writes_nothing() -> None:
    """Neither a commit nor a new revision."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e", description="d")
        world.clock.forward(5)
        before = len(world.committer.seen)
        same = await world.patch("/v1/endpoints/e", {"description": "d", "url": made["url"]})
        assert (same.status, same.json["updated_at"]) == (200, made["updated_at"])
        assert len(world.committer.seen) == before

    run(scenario)


def test_a_url_from_before_a_stricter_setting_does_not_block_other_changes() -> None:
    """It is judged when it is set; and at every connect."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        endpoint = await world.store.endpoint_by_uid(world.default_tenant, "e")
        assert endpoint is not None
        endpoint.url = "http://10.0.0.1/"
        await world.store.commit([ReplaceEndpoint(endpoint, endpoint.rev, world.clock.ms)])
        changed = await world.patch("/v1/endpoints/e", {"description": "d"})
        assert (changed.status, changed.json["url"]) == (200, "http://10.0.0.1/")

    run(scenario)


@pytest.mark.parametrize(
    ("signature", "secret", "wanted", "status"),
    [
        ("standard", None, "sha256-hex", 200),
        ("sha256-hex", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "standard", 200),
        ("sha256-hex", None, "standard-ed25519", 422),
        ("sha256-hex", "no base64 here, only text", "standard", 422),
        ("standard", None, "standard-ed25519", 422),
        ("standard-ed25519", None, "standard", 422),
        ("standard-ed25519", None, "sha256-hex", 422),
    ],
)
def test_a_signature_changes_only_where_the_secret_fits(
    signature: str, secret: str | None, wanted: str, status: int
) -> None:
    """Otherwise requests could not be signed any more."""

    async def scenario(world: World) -> None:
        made = await world.endpoint(uid="e", signature=signature, secret=secret)
        changed = await world.patch("/v1/endpoints/e", {"signature": wanted})
        assert changed.status == status, changed.body
        if status == 422:
            assert changed.locs == [("body", "signature")]
        else:
            assert (await world.get("/v1/endpoints/e/secret")).json["secret"] == made["secret"]

    run(scenario)


def test_a_new_ordering_is_applied_by_a_job() -> None:
    """The answer names it."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        changed = await world.patch("/v1/endpoints/e", {"policy": {"ordering": "by-key"}})
        job = await world.get(f"/v1/jobs/{changed.json['job_id']}")
        assert (job.json["kind"], job.json["params"]) == ("switch_ordering", {"endpoint_id": changed.json["id"]})

    run(scenario)


def test_a_changed_filter_holds_for_the_next_publish() -> None:
    """Routing is exact from the moment the call was answered."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        await world.event("order.created")
        await world.patch("/v1/endpoints/e", {"event_types": ["user.*"]})
        await world.event("order.created")
        await world.event("user.created")
        assert [row.type for row in await world.pending()] == ["order.created", "user.created"]

    run(scenario)


def test_many_patches_at_once_all_count() -> None:
    """Each of twenty concurrent changes is in the end result."""

    async def scenario(world: World) -> None:
        await world.endpoint(uid="e")
        patches = [world.patch("/v1/endpoints/e", {"metadata": {f"k{n}": n}}) for n in range(20)]
        assert {answer.status for answer in await asyncio.gather(*patches)} == {200}
        assert len((await world.get("/v1/endpoints/e")).json["metadata"]) == 20

    run(scenario)
