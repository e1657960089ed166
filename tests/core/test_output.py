"""Reports of the spawner, the last output, and text of other programs."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuspawner.core.leases.reports import (
    BYTES,
    LINES,
    MASK,
    MESSAGE_CHARACTERS,
    OUTCOMES,
    ReleaseReport,
    likely_cause,
    mask_output,
    sanitize_text,
    storable,
)
from gpuspawner.schedulers.http.models import Capabilities, Reason

SECRET = "s3cr3t-Value/42"
ALPHABET = st.characters(codec="utf-8", exclude_characters="\n")
SECRETS = st.text(st.sampled_from("abcXYZ0189/+=-_ $"), min_size=4, max_size=40).filter(
    lambda text: len(text.strip()) >= 4 and not set(text) <= set(MASK)
)


@given(st.text(ALPHABET), st.text(ALPHABET), SECRETS, st.sampled_from(["MY_TOKEN", "db_password", "AWS_SECRET_ID"]))
@example("\x1b", "", "A000", "MY_TOKEN")  # an escape sequence takes the A
def test_no_value_of_a_variable_that_is_secret_by_its_name_is_shown(before, after, secret, name):
    text = mask_output(f"{before}{secret}{after}\n", {name: secret, "HOME": "/home/alice"})
    assert secret not in text.replace(before, "").replace(after, "") or secret in before + after
    assert MASK in text


@given(st.text(max_size=30_000))
def test_output_is_limited_in_lines_and_bytes_and_has_no_control_characters(text):
    lines = mask_output(text, {})
    assert len(lines.encode()) <= BYTES
    assert len(lines.split("\n")) <= LINES
    assert all(character.isprintable() or character in "\n\t" for character in lines)


@pytest.mark.parametrize("length", [1, 100, 1000])
def test_the_last_lines_are_shown(length):
    lines = [f"{number:04}" + "é" * length for number in range(90)]
    last = mask_output("\n".join(lines), {}).split("\n")
    assert last[1:] == lines[1 - len(last) :]
    assert len(last) == min(LINES, max(1, -(-BYTES // (2 * length + 5))))


@pytest.mark.parametrize(
    "line",
    [
        f"http://127.0.0.1:8888/lab?token={SECRET}",
        f"https://host/x?a=1&X-Amz-Signature={SECRET}&b=2",
        f"connecting to postgresql://alice:{SECRET}@db.example.org/x",
        f"git clone https://{SECRET}@git.example.org/x.git",
        f"DB_PASSWORD={SECRET}",
        f'{{"api_key": "{SECRET}"}}',
        f"config: client-secret: '{SECRET}'",
        f"Authorization: Bearer {SECRET}",
        f"serve --token {SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        "gpuws-0123456789abcdef0123456789",
        "\x1b[31mhf_0123456789abcdef0123456789\x1b[0m",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
def test_text_that_looks_like_a_secret_is_masked(line):
    text = mask_output(f"first\n{line}\nlast", {})
    assert SECRET not in text
    assert "0123456789" not in text
    assert "eyJzdWIi" not in text
    assert (MASK in text, "\x1b" in text) == (True, False)
    assert (text.split("\n")[0], text.endswith("last")) == ("first", MASK not in text.split("\n")[-1])


CAUSES = {
    "ModuleNotFoundError: No module named 'thesis'": "a module was not found",
    "torch.OutOfMemoryError: CUDA out of memory.": "it ran out of memory",
    "OSError: [Errno 28] No space left on device: '/home/alice/x'": "a disk is full",
    "PermissionError: [Errno 13] Permission denied: '/home/alice/.local'": "permission was denied in its home folder",
    "PermissionError: [Errno 13] Permission denied: '/opt/x'": "permission was denied",
    "OSError: [Errno 98] Address already in use": "its port is in use",
    "bash: line 1: jupyterhub-singleuser: command not found": "a command was not found",
    "all is well": "exit code 3",
}


@pytest.mark.parametrize("line", CAUSES)
def test_the_cause_is_told_without_a_word_of_the_output(line):
    cause = likely_cause(f"Starting\nMemoryError was here before\n{line}\n", 3) if "well" not in line else ""
    assert (cause or likely_cause(line, 3)) == CAUSES[line]


@pytest.mark.parametrize(
    ("code", "cause"), [(-9, "it was killed (signal 9)"), (127, "a command was not found"), (None, "")]
)
def test_where_no_line_tells_the_exit_code_does(code, cause):
    assert likely_cause("", code) == cause


@pytest.mark.timeout(60)  # quadratic masks would block the service for minutes
@pytest.mark.parametrize(
    "piece", ["token", "-", "--token-", "a", "a.b-", "eyJ-", "http://", 'a="', "key=", "?a", "\x1b]", "password: ", " "]
)
@pytest.mark.parametrize("between", ["", "\n"], ids=["one line", "lines"])
def test_server_output_is_masked_in_negligible_time(piece, between):
    text = f"{piece}{between}" * 20_000
    assert len(mask_output(text[:130_000], {})) <= BYTES


# --- reports of the spawner


RELEASES = st.builds(
    ReleaseReport, lease=st.text(), attempt=st.integers(), outcome=st.sampled_from(sorted(OUTCOMES)), message=st.text()
)


@given(RELEASES)
def test_a_written_report_is_read_again(release):
    assert ReleaseReport.from_json(release.to_json()) == release


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="half of it"),
        pytest.param("7", id="a number"),
        pytest.param("[" * 100_000, id="lists in lists"),
        pytest.param('{"lease": "one"}', id="too little"),
        pytest.param(json.dumps({"lease": "one", "attempt": 1, "outcome": "stopped", "more": 1}), id="too much"),
        pytest.param(json.dumps({"lease": "one", "attempt": "1", "outcome": "stopped"}), id="another type"),
        pytest.param(json.dumps({"lease": "one", "attempt": True, "outcome": "stopped"}), id="a truth for a number"),
        pytest.param(json.dumps({"lease": "one", "attempt": 1, "outcome": "other"}), id="an outcome there is not"),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        ReleaseReport.from_json(text)


def test_stored_messages_are_limited_to_text_of_every_store():
    assert storable("a\0b\ud800") == "a?b?"
    assert storable("x" * (MESSAGE_CHARACTERS + 1)) == "x" * MESSAGE_CHARACTERS


# --- text of other programs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Job \u202etxt.exe\u202c waits", "Job txt.exe waits"),
        ("a\u2066b\u2069\u200b", "ab"),
        ("two\nlines\r\x1b[31m", "two lines [31m"),
        ("Zürich, 東京, שלום", "Zürich, 東京, שלום"),
    ],
)
def test_characters_that_change_the_display_of_text_are_removed(text, shown):
    assert sanitize_text(text) == shown


@given(st.text())
def test_every_letter_that_is_left_is_one_that_people_see(text):
    assert sanitize_text(text).isprintable()
    assert sanitize_text(sanitize_text(text)) == sanitize_text(text)


def test_a_schedulers_words_and_name_reach_no_page_as_they_came():
    assert Reason(code="busy", words="by \u202eboss\u202c").words == "by boss"
    told = {"contract": "1", "version": "1", "positions": True, "estimates": True, "substitutes": False}
    told |= {"preemption_notice_seconds": None, "hold_seconds": 60, "callbacks": False}
    assert Capabilities(name="Slurm\u202e", **told).name == "Slurm"
