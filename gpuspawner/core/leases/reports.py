"""Reports of the spawner: the end of a start or a server, and its last output, masked and bounded.

The masks know what secrets look like; they cannot know every secret. So the lines go to the server's own user alone,
until they share them.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from urllib.parse import quote

LINES = 50
BYTES = 8192
KEPT_SECONDS = 7 * 86400.0
SHORTEST_SECRET = 4
"""Characters: masking shorter values would mask half of every line."""
MASK = "***"

MASKED_CHARACTERS = 2 * BYTES
"""The characters that are searched for secrets: more than are shown, because a mask may shorten a text."""

_WORDS = r"(?:token|secret|passw(?:or)?d|passwd|passphrase|pwd|credential|api[_-]?key|access[_-]?key|private[_-]?key)"
_NAME = re.compile(
    rf"{_WORDS}|(?:^|_)(?:key|auth|pass|cookie|dsn|signature|sig)(?:$|_)|connection_string", re.IGNORECASE
)
_SECRET = re.compile(_WORDS, re.IGNORECASE)
_IN_QUERY = re.compile(rf"{_WORDS}|key|sig|signature|auth|code|session", re.IGNORECASE)
# A name is looked for where it begins alone: a text that its user made must not take the square of its length.
_NAMED: tuple[tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]], ...] = (
    (re.compile(r"(?<=[?&;])([\w.-]+)="), _IN_QUERY, re.compile(r"[^\s&#\"'<>]+")),
    (
        re.compile(r"(?<![\w.-])([\w.-]+)[\"']?\s*[=:]\s*"),
        _SECRET,
        re.compile(r"\"[^\"]*\"|'[^']*'|[^\s,;}]+"),
    ),
    (re.compile(r"(?<![\w-])--([\w-]+)\s+"), _SECRET, re.compile(r"\S+")),
)
"""How a value is named, which names are secret, and what the value is."""
_SHAPES: tuple[tuple[str, str], ...] = (
    (r"(?<![a-z0-9+.-])([a-z0-9+.-]+://)[^\s\"'<>]{0,300}@", rf"\g<1>{MASK}@"),
    (
        r"(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|token|digest)\s+)?)[^\s\"',}]+",
        rf"\g<1>{MASK}",
    ),
    (r"(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", rf"\g<1>{MASK}"),
    (r"\b(?:gpuws-|gh[opsur]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|ASIA)[\w-]{12,}", MASK),
    (r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]*", MASK),
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", MASK),
)
_MASKS = [(re.compile(pattern, re.IGNORECASE | re.DOTALL), mask) for pattern, mask in _SHAPES]
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_CAUSES: tuple[tuple[str, str], ...] = (
    (r"\bMemoryError\b|out of memory|cannot allocate memory", "it ran out of memory"),
    (r"no space left on device|disk quota exceeded", "a disk is full"),
    (r"ModuleNotFoundError|No module named|Cannot find module", "a module was not found"),
    (r"address already in use|EADDRINUSE", "its port is in use"),
    (r"read-only file system", "a file system is read-only"),
    (r"permission ?(?:denied|error)|EACCES|operation not permitted", "permission was denied"),
    (r"command not found|executable file not found|: not found$", "a command was not found"),
    (r"no such file or directory|FileNotFoundError", "a file was not found"),
    (r"unrecognized arguments?|unknown option|invalid option", "its command has an option that it does not know"),
    (r"SyntaxError", "a program or setting has a syntax error"),
    (r"ImportError", "a module could not be imported"),
)
_CODES = {126: "its command may not be run", 127: "a command was not found", 137: "it was killed (signal 9)"}
"""As shells and containers tell them."""


def mask_output(text: str, environment: Mapping[str, str]) -> str:
    """Return the last lines as its user sees them: at most LINES and BYTES of UTF-8, without secrets and controls.

    Args:
        text: the end of the output. Where it was cut, its first line must have been taken off: half a secret has no
            shape.
        environment: the server's. The values of those variables that are secret by their name are masked.
    """
    secrets, text = _secrets(environment), text.replace("\0", "?")
    for secret in secrets:  # first, because an escape sequence may take the first characters of a secret
        text = text.replace(secret, "\0")
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(c if c.isprintable() or c in "\n\t\0" else "?" for c in text).replace("\0", MASK)
    for secret in secrets:  # again, because escape sequences may stand within a secret
        text = text.replace(secret, MASK)
    text = _last_whole_lines(text)
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    for named, is_secret, value in _NAMED:
        text = _without_values(text, named, is_secret, value)
    return bounded(text)


def _last_whole_lines(text: str) -> str:
    """Return the last lines that are searched for secrets. A cut line is left out: half a secret is not recognized."""
    if len(text) <= MASKED_CHARACTERS:
        return text
    _, _, whole = text[-MASKED_CHARACTERS:].partition("\n")
    return whole or "(one line, too long to be shown)"


def _without_values(text: str, named: re.Pattern[str], is_secret: re.Pattern[str], value: re.Pattern[str]) -> str:
    """Return a text in which the values of what is secret by its name are masked."""
    parts, done = [], 0
    for name in named.finditer(text):
        found = value.match(text, name.end()) if name.start() >= done and is_secret.search(name[1]) else None
        if found is not None:
            parts += [text[done : name.end()], MASK]
            done = found.end()
    return "".join([*parts, text[done:]])


def bounded(text: str) -> str:
    """Return the last LINES of a text, at most BYTES of UTF-8, and nothing that no store can hold."""
    lines = "\n".join(text.replace("\0", "?").strip("\n").split("\n")[-LINES:])
    return lines.encode("utf-8", "replace")[-BYTES:].decode("utf-8", "ignore")


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the texts to mask, the longest first: each secret, its form in addresses, and each of its lines."""
    values = [value for name, value in environment.items() if _NAME.search(name) and isinstance(value, str)]
    forms: Iterable[str] = (form for value in values for form in (value, quote(value, safe=""), *value.split("\n")))
    return sorted({form for form in forms if len(form.strip()) >= SHORTEST_SECRET}, key=len, reverse=True)


def likely_cause(text: str, exit_code: int | None = None) -> str:
    """Return in a few words why a server ended, without a word of its output; "" where nothing tells.

    The last line that tells decides: what ends a program is told last.
    """
    for line in reversed(text.strip().split("\n")[-LINES:]):
        for pattern, cause in _CAUSES:
            if re.search(pattern, line.strip(), re.IGNORECASE):
                home = cause == "permission was denied" and re.search(r"/home/|\bhome\b", line)
                return f"{cause} in its home folder" if home else cause
    if exit_code is None:
        return ""
    if exit_code < 0:  # as Python tells a signal
        return f"it was killed (signal {-exit_code})"
    return _CODES.get(exit_code, f"exit code {exit_code}")


OUTCOMES = frozenset({"cancelled", "failed", "stopped", "died", "quit", "shutdown", "preempted"})
"""A start was cancelled or failed. A server that ran was stopped by a person, died, was shut down from inside (quit) or
with its hub, or was ended by its backend for something else (preempted)."""
RELEASE_SPOOL = "unheard"
"""The folder of reports that the spawner could not deliver, next to the service's data: one JSON file each."""
MESSAGE_CHARACTERS = 2000
"""How much of a message is kept."""


def storable(message: str) -> str:
    """Return a message as it is stored: shortened, and without characters that a store refuses.

    An error names paths and output as they are: half a character of them would fail every write of it.
    """
    return message[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")


@dataclass(frozen=True)
class ReleaseReport:
    """The end of one attempt of a lease. ``message`` says why a start failed, in words; empty otherwise.

    ``output`` is the last that its server wrote, as ``core.leases.output.shown`` leaves it: for its user alone.
    """

    lease: str
    attempt: int
    outcome: str
    message: str = ""
    output: str = ""

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReleaseReport:
        """Read the output of :meth:`to_json`. Raise ValueError for any other text."""
        try:
            release = cls(**json.loads(text))
        except (TypeError, RecursionError) as error:  # the second: lists in lists, thousands deep
            raise ValueError(str(error)) from error
        types = [type(value) for value in asdict(release).values()]
        if types != [str, int, str, str, str] or release.outcome not in OUTCOMES:
            raise ValueError("it is no release")
        return release


FORMAT = "Cf"
"""The category of characters that are not shown and change how others are shown, for example text direction."""


def sanitize_text(text: str) -> str:
    """Return text of another program as one line without control and format characters."""
    shown = "".join(one if one.isprintable() else "" if unicodedata.category(one) == FORMAT else " " for one in text)
    return " ".join(shown.split())
