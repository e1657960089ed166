"""Tickets: for whom, for how long, and by whose secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.tickets import TICKET_SECONDS, sign_ticket, ticket_user

SECRET, NOW = b"s" * 32, 1000.5


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_ticket_names_its_user_for_ten_minutes(user):
    ticket = sign_ticket(SECRET, user, NOW)
    assert ticket.isascii()
    assert ticket_user(SECRET, ticket, NOW) == user
    assert ticket_user(SECRET, ticket, NOW + TICKET_SECONDS - 1) == user
    assert ticket_user(SECRET, ticket, NOW + TICKET_SECONDS) is None


def test_another_secret_s_ticket_is_none():
    assert ticket_user(SECRET, sign_ticket(b"t" * 32, "alice", NOW), NOW) is None


@pytest.mark.parametrize("text", ["", ".", "alice", "a.b", "\udcff.\udcff", "é.é", "x" * 10000, ".." * 50])
def test_what_is_no_ticket_is_nobody(text):
    assert ticket_user(SECRET, text, NOW) is None


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_no_single_change_of_a_ticket_makes_another(position, character):
    ticket = sign_ticket(SECRET, "alice", NOW)
    forged = ticket[:position] + character + ticket[position + 1 :]
    assert ticket_user(SECRET, forged, NOW) == ("alice" if forged == ticket else None)
