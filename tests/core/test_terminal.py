"""Nothing that is printed can act on the terminal, and what is harmless is printed as it is."""

from __future__ import annotations

import pytest

from posttrain.core.terminal import printable


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31mred", "\\x9b31mred"),  # the one-byte form of ESC [
        ("100%\rrm -rf", "100%\\rrm -rf"),  # would overwrite the line
        ("a\x08b\x7f\x00", "a\\x08b\\x7f\\x00"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("\ud800 alone", "\\ud800 alone"),
        ("tab\tand\nlines", "tab\tand\nlines"),
        ("né € 数学 🙂 👩\u200d🔬 [bold]", "né € 数学 🙂 👩\u200d🔬 [bold]"),
    ],
)
def test_printable(text: str, want: str) -> None:
    assert printable(text) == want
    want.encode()
    assert printable(want) == want  # what it writes is harmless itself


def test_every_character_that_a_terminal_acts_on_is_written_out() -> None:
    acts = {*range(0x20), *range(0x7F, 0xA0)} - {0x09, 0x0A}
    assert {c for c in range(0x3000) if printable(chr(c)) != chr(c)} >= acts
    assert all(printable(chr(c)).isascii() for c in acts)


def test_one_line() -> None:
    assert printable("a\nb\tc\u2028d\r\n", one_line=True) == "a\\nb\\tc\\u2028d\\r\\n"
    assert printable(12) == "12"
