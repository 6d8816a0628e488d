"""Look-ups: in few threads, in limited time, each failure told apart."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence

import pytest

from ackpost.egress.failures import AttemptFailed
from ackpost.egress.resolver import SystemResolver, look_up
from tests.egress.support import run, until


async def _failure(resolver: SystemResolver, host: str = "hook.example") -> AttemptFailed:
    with pytest.raises(AttemptFailed) as caught:
        await resolver.resolve(host)
    return caught.value


def test_the_system_is_asked_for_all_addresses() -> None:
    """Literals and localhost come back as addresses, each once, hosts file included."""
    assert look_up("127.0.0.1") == ("127.0.0.1",)
    assert "127.0.0.1" in look_up("localhost")
    assert len(set(look_up("localhost"))) == len(look_up("localhost"))


def test_equal_names_share_a_look_up_and_its_answer_for_a_moment() -> None:
    """Ten at once make one look-up; later ones use its answer until it is too old."""

    async def main() -> None:
        asked: list[str] = []

        def look(host: str) -> Sequence[str]:
            asked.append(host)
            return ("192.0.2.1", "192.0.2.2")

        resolver = SystemResolver(lookup=look, cache_s=0.05)
        loop = asyncio.get_running_loop()
        for _ in range(2):
            answers = await asyncio.gather(*(resolver.resolve("hook.example") for _ in range(10)))
            assert set(answers) == {("192.0.2.1", "192.0.2.2")}
        assert asked == ["hook.example"]
        end = loop.time() + 0.06
        await until(lambda: loop.time() > end)
        await resolver.resolve("hook.example")
        assert asked == ["hook.example"] * 2
        resolver.close()

    run(main)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (socket.gaierror(socket.EAI_NONAME, "x"), "dns_error"),
        (socket.gaierror(socket.EAI_AGAIN, "x"), "dns_error"),
        (socket.gaierror(socket.EAI_FAIL, "x"), "dns_error"),
        (socket.gaierror(socket.EAI_MEMORY, "x"), "local_error"),
        (socket.gaierror(socket.EAI_SYSTEM, "x"), "local_error"),
        (OSError(24, "x"), "local_error"),
        (None, "dns_error"),
    ],
)
def test_failures_have_codes(error: OSError | None, code: str) -> None:
    """What does not exist and what does not answer is a DNS error; what this machine lacks is ours."""

    async def main() -> None:
        def look(host: str) -> Sequence[str]:
            if error is not None:
                raise error
            return ()

        resolver = SystemResolver(lookup=look)
        failure = await _failure(resolver)
        assert (failure.code, failure.phase) == (code, "dns")
        assert "hook.example" not in failure.detail
        resolver.close()

    run(main)


def test_a_failed_look_up_is_not_repeated_at_once_unless_it_was_our_fault() -> None:
    """A name without address is not asked for again within the moment; after a local error it is."""

    async def main() -> None:
        for error, count in [(socket.gaierror(socket.EAI_NONAME, "x"), 1), (OSError(24, "x"), 3)]:
            asked: list[str] = []

            def look(host: str, error: OSError = error, asked: list[str] = asked) -> Sequence[str]:
                asked.append(host)
                raise error

            resolver = SystemResolver(lookup=look)
            for _ in range(3):
                await _failure(resolver)
            assert len(asked) == count
            resolver.close()

    run(main)


def test_a_silent_resolver_holds_nobody_and_few_threads() -> None:
    """Two thousand names, no answer: all end in time, with two threads; those without a thread are our fault."""

    async def main() -> None:
        silence = threading.Event()
        asked: list[str] = []

        def look(host: str) -> Sequence[str]:
            asked.append(host)
            silence.wait(10)
            return ("192.0.2.1",)

        resolver = SystemResolver(lookup=look, threads=2, timeout_s=0.2)
        failures = await asyncio.gather(*(_failure(resolver, f"h{number}.example") for number in range(2_000)))
        assert sorted({failure.code for failure in failures}) == ["dns_error", "local_error"]
        assert [failure.code for failure in failures].count("dns_error") == 2
        assert asked == ["h0.example", "h1.example"]
        silence.set()
        assert await resolver.resolve("again.example") == ("192.0.2.1",)
        resolver.close()

    run(main)


def test_names_that_never_answer_leave_the_threads_to_the_others() -> None:
    """Once they were silent, many names asked for again and again hold up no other, and are tried all the same."""

    async def main() -> None:
        silence = threading.Event()
        asked: list[str] = []

        def look(host: str) -> Sequence[str]:
            asked.append(host)
            if host.startswith("silent") and not silence.is_set():
                silence.wait(0.3)
                raise socket.gaierror(socket.EAI_AGAIN, "x")
            return ("192.0.2.1",)

        resolver = SystemResolver(lookup=look, threads=4, timeout_s=0.1, cache_s=0)
        names = [f"silent{number}.example" for number in range(4)]
        assert {(await _failure(resolver, name)).code for name in names} == {"dns_error"}
        again = [asyncio.create_task(_failure(resolver, name)) for name in names * 2]
        for number in range(20):
            assert await resolver.resolve(f"good{number}.example") == ("192.0.2.1",)
        assert {failure.code for failure in await asyncio.gather(*again)} == {"dns_error"}
        silence.set()
        for name in names:
            asked.clear()
            while not asked:
                with contextlib.suppress(AttemptFailed):
                    await resolver.resolve(name)
        assert await resolver.resolve(names[0]) == ("192.0.2.1",)
        resolver.close()

    run(main)


def test_one_who_gives_up_does_not_take_the_answer_from_others() -> None:
    """A cancelled waiter leaves the shared look-up alone."""

    async def main() -> None:
        go_on = threading.Event()

        def look(host: str) -> Sequence[str]:
            go_on.wait(10)
            return ("192.0.2.1",)

        resolver = SystemResolver(lookup=look)
        first, second = (asyncio.create_task(resolver.resolve("hook.example")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        go_on.set()
        assert await second == ("192.0.2.1",)
        assert first.cancelled()
        resolver.close()

    run(main)


def test_the_memory_of_names_is_bounded() -> None:
    """Many names do not grow it without end."""

    async def main() -> None:
        resolver = SystemResolver(lookup=lambda _: ("192.0.2.1",))
        for number in range(4_200):
            await resolver.resolve(f"h{number}.example")
        assert len(resolver._cache) <= 4_096
        resolver.close()

    run(main)


def test_closing_ends_what_waits() -> None:
    """Look-ups under way are given up; the thread's late answer is heard by nobody."""

    async def main() -> None:
        go_on = threading.Event()

        def look(host: str) -> Sequence[str]:
            go_on.wait(10)
            return ("192.0.2.1",)

        resolver = SystemResolver(lookup=look, threads=1)
        waiting = asyncio.create_task(resolver.resolve("hook.example"))
        await asyncio.sleep(0)
        resolver.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()

    run(main)
