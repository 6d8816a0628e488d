"""The language of fault scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackpost.errors import ConfigError
from ackpost.testing.script import Step, parse_script, step_for


def test_a_script_is_a_row_of_steps() -> None:
    """Blanks do not matter; counts, options and words are read."""
    assert parse_script("500*2, 200") == (Step(status=500, times=2), Step())
    assert parse_script("delay:3") == (Step(delay_s=3.0),)
    assert parse_script("429:retry-after=2") == (Step(status=429, headers=(("retry-after", "2"),)),)
    assert parse_script("reset:body:delay=0.5*7") == (Step(kind="reset", where="body", delay_s=0.5, times=7),)
    assert parse_script("drip:header:every=0.2") == (Step(kind="drip", where="header", every_s=0.2),)
    assert parse_script("early:413") == (Step(kind="early", status=413, number=413.0),)
    assert parse_script("interim,interim:3") == (Step(kind="interim"), Step(kind="interim", number=3.0))
    assert parse_script("200:body=hello:type=text/plain") == (
        Step(body=b"hello", headers=(("content-type", "text/plain"),)),
    )


def test_the_last_step_has_no_end() -> None:
    """Each step holds for its count, the last one for ever."""
    script = parse_script("500*2,reset,200")
    assert [step_for(script, seen).kind for seen in range(5)] == ["status", "status", "reset", "status", "status"]
    assert [step_for(script, seen).status for seen in (0, 1, 3, 1_000)] == [500, 500, 200, 200]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unknown"),
        ("200,", "unknown"),
        ("nonsense", "use a status or one of"),
        ("200*0", "at least 1"),
        ("200*x", "whole number"),
        ("200*-1", "whole number"),
        ("99", "three digits"),
        ("199", "three digits"),
        ("2000", "three digits"),
        ("early:99", "three digits"),
        ("early", "a number must follow"),
        ("delay", "a number must follow"),
        ("delay:x", "not a number"),
        ("delay:-1", "not a number"),
        ("delay:nan", "not a number"),
        ("200:delay=1e99", "not a number"),
        ("200:colour=red", "'colour=red' is unknown"),
        ("200:before", "'before' is unknown"),
        ("hang:after", "use one of before, body, header"),
    ],
)
def test_a_wrong_step_is_named(text: str, reason: str) -> None:
    """The error says which step, and what would be right."""
    with pytest.raises(ConfigError, match="script step") as caught:
        parse_script(text)
    assert reason in str(caught.value)


@given(st.text(alphabet="0123456789*:,=.-abdelyrstgnhx ", max_size=30))
def test_any_text_is_a_script_or_a_config_error(text: str) -> None:
    """Nothing else is ever raised."""
    try:
        script = parse_script(text)
    except ConfigError:
        return
    assert script
    assert isinstance(step_for(script, 10**9), Step)
