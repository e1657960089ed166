"""Proofs of hub and service: another request, answer, nonce or secret has another proof."""

from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.authentication import (
    DIGEST_HEADER,
    NONCE_HEADER,
    SCHEME,
    TIME_HEADER,
    RequestTarget,
    digest,
    new_nonce,
    proofs_match,
    prove_answer,
    prove_request,
    request_headers,
)

SECRET = b"s" * 32
REQUESTS = st.tuples(st.sampled_from(["GET", "POST"]), st.text(max_size=20), st.binary(max_size=20))


@given(REQUESTS, REQUESTS)
def test_two_requests_have_one_digest_only_if_they_are_the_same(one, other):
    assert (digest(*one) == digest(*other)) is (one == other)


def test_a_part_that_ends_where_another_begins_is_another_request():
    assert digest("GET", "/a", b"b") != digest("GET", "/ab", b"")


@given(REQUESTS)
def test_the_service_of_the_secret_takes_the_headers_and_no_other_does(request_):
    nonce = new_nonce()
    headers = request_headers(SECRET, nonce, 1_800_000_000.9, RequestTarget(*request_[:2]), request_[2])
    scheme, _, proof = headers["Authorization"].partition(" ")
    assert (scheme, headers[NONCE_HEADER], headers[DIGEST_HEADER]) == (SCHEME, nonce, digest(*request_))
    due = (SECRET, nonce, "1800000000", headers[DIGEST_HEADER])
    assert headers[TIME_HEADER] == "1800000000"
    assert proofs_match(proof, prove_request(*due))
    for index, other in enumerate([b"t" * 32, new_nonce(), "1800000001", "0" * 64]):
        assert not proofs_match(proof, prove_request(*due[:index], other, *due[index + 1 :]))


def test_an_answer_proves_its_status_its_body_and_its_question():
    asked = RequestTarget("GET", "/a")
    due = (SECRET, "nonce", asked, 200, b"{}")
    proof = prove_answer(*due)
    instead = [b"t" * 32, "other", RequestTarget("POST", "/a"), 409, b"[]"]
    others = [(*due[:i], other, *due[i + 1 :]) for i, other in enumerate(instead)]
    others.append((SECRET, "nonce", RequestTarget("GET", "/b"), 200, b"{}"))
    assert not any(proofs_match(proof, prove_answer(*other)) for other in others)
    assert not proofs_match(proof, prove_request(SECRET, "nonce", "0", "200"))
    assert not proofs_match("ü", proof)
