"""Secrets of users: stored encrypted, handed to their own workspaces only, and shown nowhere."""

import logging

import requests
from page_world import Browser, api, running, world_fixture

from gpuspawner.core.events import SecretSaved
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.engine.allocation.start_attempts import hash_token
from gpuspawner.service.forgetting import forget
from gpuspawner.service.start.secret_values import MAX_SECRETS
from gpuspawner.service.store.audit_log import AuditLine
from gpuspawner.service.store.personal import StoredSecret
from gpuspawner.service.store.sealing import seal, unseal

VALUE = "hf_s3cret-value-that-nobody-reads"
TOKEN = "gpuws-token-of-the-workspace"


world = world_fixture()


def save(world, name="HF_TOKEN", value=VALUE, who="alice", status=201):
    return api(world, who, "secrets", "POST", {"name": name, "value": value}, status=status)


def hand_over(world, lease, token=TOKEN):
    address = f"{world.home}api/v1/workspaces/{lease}/secrets"
    return requests.post(address, headers={"Authorization": f"token {token}"}, data="{}", timeout=20)


def test_the_menu_of_each_page_leads_to_the_secrets(world):
    alice = Browser(world, "alice")
    assert 'href="/services/gpu/secrets"' in alice.home.text
    assert "Your secrets" in alice.look("secrets").text


def test_only_a_workspace_of_its_user_gets_the_value(world):
    world.save(running("mine", token_hash=hash_token(TOKEN)))
    world.save(running("bobs", "bob", gpus=(1,), token_hash=hash_token("gpuws-bob")))
    assert save(world).json() == {"name": "HF_TOKEN", "changed_at": world.clock.at, "readable": True}
    assert hand_over(world, "mine").json() == {"values": {"HF_TOKEN": VALUE}, "unreadable": []}
    assert hand_over(world, "bobs", "gpuws-bob").json()["values"] == {}
    assert hand_over(world, "bobs").status_code in {403, 404}
    for who in ("alice", "bob", "admin"):
        assert api(world, who, "workspaces/mine/secrets", "POST").status_code in {403, 404}, who
    assert api(world, "bob", "secrets").json()["secrets"] == []


def test_no_answer_page_log_audit_or_row_has_a_value(world, caplog):
    caplog.set_level(logging.DEBUG)
    seen = [save(world), save(world, "bad name", status=400), save(world, "LD_PRELOAD", status=400)]
    seen += [save(world, value=VALUE * 300, status=400), save(world, value=f"{VALUE}\0", status=400)]
    seen += [save(world, value=f"{VALUE}\udc80", status=400)]
    seen += [api(world, "alice", "secrets", "POST", {"name": "A", "value": [VALUE]})]
    seen += [
        api(world, "alice", "secrets"),
        api(world, "admin", "admin/audit"),
        Browser(world, "alice").look("secrets"),
    ]
    assert seen[1].json()["error"]["message"].startswith("Name: You asked for 'bad name'.")
    texts = [one.text for one in seen]
    rows = world.parts.store.secrets.of(Owner("hub-1", "alice born"))
    assert VALUE not in " ".join([*texts, *caplog.messages, *(one.sealed for one in rows)])
    assert "HF_TOKEN" in seen[-1].text
    assert "secret saved" in texts[-2]


def test_secrets_are_replaced_deleted_and_bounded(world):
    world.save(running("mine", token_hash=hash_token(TOKEN)))
    save(world)
    save(world, value="other")
    assert hand_over(world, "mine").json()["values"] == {"HF_TOKEN": "other"}
    for number in range(MAX_SECRETS - 1):
        save(world, f"A{number}")
    assert f"up to {MAX_SECRETS}" in save(world, "ONE_MORE", status=403).text
    assert api(world, "alice", "secrets/HF_TOKEN", "DELETE").json() == {"name": "HF_TOKEN"}
    assert api(world, "alice", "secrets/HF_TOKEN", "DELETE").status_code == 404
    assert "HF_TOKEN" not in hand_over(world, "mine").text


def test_secrets_are_deleted_with_their_user(world):
    save(world)
    save(world, who="bob")
    world.created["bob"] = None
    world.call(forget, world.parts)
    assert len(world.parts.store.retention.owners("hub-1")) == 1


def test_a_value_of_another_key_user_or_name_is_not_opened():
    owner, other = Owner("hub", "alice born"), Owner("hub", "bob born")
    sealed = seal(b"k" * 32, owner, "A", VALUE)
    one = StoredSecret("A", sealed, 0.0)
    assert unseal(b"k" * 32, owner, one) == VALUE
    assert unseal(b"x" * 32, owner, one) is None
    assert unseal(b"k" * 32, other, one) is None
    assert unseal(b"k" * 32, owner, StoredSecret("B", sealed, 0.0)) is None


def test_a_secret_of_another_key_is_marked_and_counted_and_a_workspace_starts_without_it(world):
    world.save(running("mine", token_hash=hash_token(TOKEN)))
    save(world)
    save(world, "OTHER")
    owner = Owner("hub-1", "alice born")
    line = AuditLine(world.clock.at, "", "alice", "alice", SecretSaved("OTHER"))
    foreign = StoredSecret("OTHER", seal(b"x" * 32, owner, "OTHER", VALUE), world.clock.at)
    world.call(world.parts.store.write, world.parts.store.secrets.save, owner, foreign, MAX_SECRETS, line)
    shown = {one["name"]: one["readable"] for one in api(world, "alice", "secrets").json()["secrets"]}
    assert shown == {"HF_TOKEN": True, "OTHER": False}
    assert hand_over(world, "mine").json() == {"values": {"HF_TOKEN": VALUE}, "unreadable": ["OTHER"]}
    page = Browser(world, "alice").look("secrets").text
    assert "decrypt OTHER any more" in page
    counts = {"secrets": 2, "unreadable": 1, "users_affected": 1}
    assert api(world, "admin", "admin/secrets").json() == counts
    assert api(world, "bob", "admin/secrets").status_code == 403
