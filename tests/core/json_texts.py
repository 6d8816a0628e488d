"""Random JSON texts in every spelling the grammar allows, not only as an encoder writes them."""

from __future__ import annotations

from hypothesis import strategies as st

_BLANKS = st.sampled_from(["", "", "", " ", "\t", "\r\n", "  "])
_CHARACTERS = st.one_of(
    st.sampled_from([
        r"\"", r"\\", r"\/", r"\b", r"\n", r"\u0000", r"\u00e9", r"\uD83D\uDE00", r"\ud83d", r"\uDE00", r"\\ud800",
        "😊", "\u2028", "é", "e\u0301", "<!--", "{", "}", "[", "]", ",", ":", "v", "\x7f",
    ]),
    st.characters(exclude_characters='"\\', exclude_categories=("Cc", "Cs")),
)  # fmt: skip
strings = st.lists(_CHARACTERS, max_size=6).map(lambda parts: '"' + "".join(parts) + '"')
numbers = st.sampled_from(
    ["0", "-0", "-0.0", "1e2", "614.0", "1E400", "18446744073709551616", "0.1000000000000000055", "12", "-7.5e-3"]
)
scalars = st.one_of(st.sampled_from(["null", "true", "false"]), numbers, strings)


def _array(items: list[str], blank: str) -> str:
    return f"[{blank}" + f"{blank},{blank}".join(items) + f"{blank}]"


def _object(members: list[tuple[str, str]], blank: str) -> str:
    return (
        f"{{{blank}"
        + f"{blank},".join(f"{blank}{name}{blank}:{blank}{value}" for name, value in members)
        + f"{blank}}}"
    )


def objects_of(values: st.SearchStrategy[str], names: st.SearchStrategy[str] = strings) -> st.SearchStrategy[str]:
    """Objects with these values; names may repeat."""
    return st.builds(_object, st.lists(st.tuples(names, values), max_size=4), _BLANKS)


values = st.recursive(
    scalars, lambda inner: st.one_of(st.builds(_array, st.lists(inner, max_size=4), _BLANKS), objects_of(inner))
)
"""Any JSON value as text, without whitespace around it; lone surrogate escapes included."""

objects = objects_of(values)
