"""The line numbers of keys in a TOML text."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.config.lines import lines_of, nearest
from tests.support.examples import examples

TRICKY = '''\
top = 1
[a]
b = """
[not.a.table]
c = 3
"""
d = [
  ["x"],
  [
    "]", # ]
  ],
]
"quoted.key" = 'it''s' # not an end
e.f = { g = 1, h = "}" }
i = \'\'\'
"""
\'\'\'
j = "\\"[" # "
[ a . "x.y" ]
k = """one line"""
l = 2
[[m]]
n = 1
'''.replace("'it''s'", "'its'")


def test_strings_lists_and_comments_do_not_change_line_numbers() -> None:
    tomllib.loads(TRICKY)
    assert lines_of(TRICKY) == {
        ("top",): 1,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "d"): 7,
        ("a", "quoted.key"): 13,
        ("a", "e", "f"): 14,
        ("a", "i"): 15,
        ("a", "j"): 18,
        ("a", "x.y"): 19,
        ("a", "x.y", "k"): 20,
        ("a", "x.y", "l"): 21,
        ("m",): 22,
        ("m", "n"): 23,
    }


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a", "e", "f", "g"), 14),
        (("a", "e"), 14),
        (("a", "nothing"), 2),
        (("nothing",), 1),
        (("m", "n"), 23),
    ],
)
def test_a_value_without_its_own_line_has_the_line_of_its_table(path: tuple[str, ...], line: int) -> None:
    assert nearest(lines_of(TRICKY), path) == line


VALUES = st.sampled_from(
    [
        "1",
        "'x'",
        '"""\n[z]\ny = 1\n"""',
        "[\n1,\n[2]\n]",
        "{ q = [1] }",
        "'''a\n''b'''",
        '"# [" # [',
        '"""a"""""',
        '"""a"""" # "[',
        '"""\\\n  """',
    ]
)


@given(st.lists(VALUES, max_size=12))
@settings(max_examples=examples(100))
def test_every_key_is_found_on_its_line_for_any_values(values: list[str]) -> None:
    text, expected = "", {}
    for index, value in enumerate(values):
        expected[(f"k{index}",)] = text.count("\n") + 1
        text += f"k{index} = {value}\n"
    tomllib.loads(text)
    assert lines_of(text) == expected
