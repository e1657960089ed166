"""Tickets: their user, their validity and their secret."""

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.authentication import (
    TICKET_SECONDS,
    TicketHolder,
    read_ssh_ticket,
    read_ticket,
    sign_ssh_ticket,
    sign_ticket,
)

SECRET, NOW = b"s" * 32, 1000.5
BORN = "2026-11-21T12:00:00.000001Z"


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_ticket_names_its_user_for_a_minute(user):
    ticket = sign_ticket(SECRET, user, BORN, NOW)
    assert ticket.isascii()
    assert read_ticket(SECRET, ticket, NOW) == TicketHolder(user, BORN)
    assert read_ticket(SECRET, sign_ticket(SECRET, user, BORN, NOW, form=True), NOW) == TicketHolder(
        user, BORN, form=True
    )
    assert read_ticket(SECRET, ticket, NOW + TICKET_SECONDS - 1) == TicketHolder(user, BORN)
    assert read_ticket(SECRET, ticket, NOW + TICKET_SECONDS) is None


def test_a_ticket_with_another_secret_is_invalid():
    assert read_ticket(SECRET, sign_ticket(b"t" * 32, "alice", BORN, NOW), NOW) is None


@pytest.mark.parametrize("text", ["", ".", "alice", "a.b", "\udcff.\udcff", "é.é", "x" * 10000, ".." * 50])
def test_an_invalid_ticket_identifies_no_user(text):
    assert read_ticket(SECRET, text, NOW) is None


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_no_single_change_of_a_ticket_makes_another(position, character):
    ticket = sign_ticket(SECRET, "alice", BORN, NOW)
    forged = ticket[:position] + character + ticket[position + 1 :]
    # base64 can write the same bytes in several ways. All of them are the same ticket.
    assert read_ticket(SECRET, forged, NOW) in {TicketHolder("alice", BORN), None}
    if position < ticket.index("."):
        assert read_ticket(SECRET, forged, NOW) == (TicketHolder("alice", BORN) if forged == ticket else None)


def test_a_ticket_version_without_an_owner_is_invalid():
    body = base64.urlsafe_b64encode(json.dumps(["alice", int(NOW + TICKET_SECONDS)]).encode()).decode()
    signature = hmac.new(SECRET, f"ticket:{body}".encode(), hashlib.sha256).hexdigest()
    assert read_ticket(SECRET, f"{body}.{signature}", NOW) is None


def test_promise_9_a_ticket_for_ssh_is_good_for_one_workspace_and_a_minute():
    ticket = sign_ssh_ticket(SECRET, "lease-1", "alice", NOW)
    assert read_ssh_ticket(SECRET, "lease-1", ticket, NOW) == "alice"
    assert read_ssh_ticket(SECRET, "lease-2", ticket, NOW) is None
    assert read_ssh_ticket(SECRET, "lease-1", ticket, NOW + TICKET_SECONDS) is None
    assert read_ssh_ticket(b"another", "lease-1", ticket, NOW) is None
    assert read_ssh_ticket(SECRET, "lease-1", sign_ticket(SECRET, "alice", "born", NOW), NOW) is None
    assert read_ticket(SECRET, ticket, NOW) is None
