"""Text from untrusted sources made safe to print: control characters are escaped."""

import re

MAX_CHARACTERS = 2000  # characters of one text; a forged file may hold a name of a megabyte
# control characters, surrogates, and invisible characters that change how their neighbours are displayed
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: object, *, keep: str = "", most: int | None = MAX_CHARACTERS) -> str:
    r"""Text with control characters escaped ("\x1b") unless in `keep`, cut after `most` characters."""
    whole = str(text)
    if most is not None and len(whole) > most:
        whole = f"{whole[:most]}... ({len(whole)} characters)"
    return _CONTROLS.sub(lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode(), whole)
