"""Words of other programs, made fit for our pages, terminals and mails."""

from __future__ import annotations

import unicodedata

FORMAT = "Cf"
"""The category of letters that show nothing and change how others are shown, such as those of writing direction."""


def plain_text(text: str) -> str:
    """Return a text as one line without control and format characters, which could show it as another text."""
    shown = "".join(one if one.isprintable() else "" if unicodedata.category(one) == FORMAT else " " for one in text)
    return " ".join(shown.split())
