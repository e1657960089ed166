"""Login of a real `gpuspawner login` in Chromium: the code typed, allowed, listed and ended; and the API's page."""

import os
import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages

from gpuspawner.service.sign_in.tokens import TOKEN_SECONDS

CODE = re.compile("[B-Z]{4}-[B-Z]{4}")


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = pages.World(tmp_path, monkeypatch)
    made.observe()
    made.save(pages.running("runs"))
    yield made
    made.close()


@pytest.fixture
def command(world, tmp_path):
    """Begin ``gpuspawner`` on a machine of alice's without a token; what still runs ends with the test."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSPAWNER_", "JUPYTERHUB_", "XDG_"))}
    environment = {**kept, "HOME": str(tmp_path), "GPUSPAWNER_URL": world.home.rstrip("/"), "PYTHONUNBUFFERED": "1"}
    begun = []

    def begin(*arguments):
        program, pipe = [sys.executable, "-m", "gpuspawner.cli", *arguments], subprocess.PIPE
        begun.append(subprocess.Popen(program, env=environment, stdout=pipe, stderr=pipe, text=True))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def shown(process):
    """The address and the code that a login shows."""
    address = process.stderr.readline().removeprefix("Open ").strip()
    return address, CODE.search(process.stderr.readline())[0]


def type_code(page, code):
    page.get_by_label("Code in your terminal").fill(code)
    page.keyboard.press("Enter")


def test_a_code_is_typed_allowed_by_keyboard_listed_and_ended(browser, world, command, assert_accessible):
    login = command("login", "--no-browser")
    address, code = shown(login)
    assert address == f"{world.home}login-code"
    page = open_page(browser, world, address.removeprefix(world.home))
    type_code(page, code)
    expect(page.get_by_role("heading", name=f"Allow {os.uname().nodename[:80]} to log in?")).to_be_visible()
    assert_accessible(page)
    assert login.poll() is None, "looking allows nothing"

    form = page.locator("form[action$=login-code]")
    assert (form.get_attribute("method"), bool(form.locator("[name=_xsrf]").input_value())) == ("post", True)
    page.get_by_role("button", name="Allow").press("Enter")
    expect(page.get_by_role("heading", name="is logged in")).to_be_visible()
    out, err = login.communicate(timeout=60)
    assert (login.returncode, out.startswith("Signed in as alice until ")) == (0, True), (out, err)
    assert "runs" in command("list").communicate(timeout=60)[0]

    page.get_by_role("link", name="Logged-in machines").press("Enter")
    row = page.get_by_role("table").get_by_role("row").nth(1)
    expect(row).to_contain_text(os.uname().nodename[:80])
    assert_accessible(page)
    row.get_by_role("button", name=re.compile("^Log out ")).press("Enter")
    expect(page.get_by_text("No machine is logged in.")).to_be_visible()
    assert_accessible(page)
    refused = command("list")
    _, err = refused.communicate(timeout=60)
    assert (refused.returncode, "run gpuspawner login" in err) == (2, True), err
    assert page.problems == []


@pytest.mark.slow  # service/test_login.py has the rule
def test_a_form_without_the_page_s_own_mark_allows_nothing_and_deny_ends_the_login(browser, world, command):
    login = command("login", "--no-browser")
    address, code = shown(login)
    page = open_page(browser, world, address.removeprefix(world.home))
    type_code(page, code)
    page.locator("form[action$=login-code] [name=_xsrf]").evaluate("field => { field.value = 'of another site'; }")
    with page.expect_navigation() as answer:
        page.get_by_role("button", name="Allow").click()
    assert answer.value.status == 403
    assert login.poll() is None
    page.goto(address)
    type_code(page, code)
    page.get_by_role("button", name="Refuse").press("Enter")
    expect(page.get_by_role("heading", name="The machine was refused")).to_be_visible()
    _, err = login.communicate(timeout=60)
    assert (login.returncode, "denied" in err) == (2, True), err


@pytest.mark.slow  # service/test_login.py has the rule
def test_a_code_is_typed_a_wrong_one_is_told_and_a_token_is_over_in_time(browser, world, command, assert_accessible):
    login = command("login", "--no-browser")
    _, code = shown(login)
    page = open_page(browser, world, "login-code")
    assert_accessible(page)
    type_code(page, "BBBB-BBBB")
    expect(page.get_by_role("alert")).to_contain_text("No login waits with this code")
    assert_accessible(page)
    type_code(page, code.replace("-", "").lower())
    page.get_by_role("button", name="Allow").press("Enter")
    assert login.wait(60) == 0
    world.clock.at += TOKEN_SECONDS
    page.goto(f"{world.home}tokens")
    expect(page.get_by_text("No machine is logged in.")).to_be_visible()


@pytest.mark.slow  # service/test_openapi.py has what it says
def test_the_api_s_page_is_read_by_keyboard_and_on_a_phone(browser, world, assert_accessible):
    page = open_page(browser, world, "")
    page.get_by_role("link", name="Command line").press("Enter")
    page.get_by_role("link", name="API reference").press("Enter")
    heading = page.get_by_role("heading", name=re.compile("^POST .api.v1.workspaces$"))
    section = page.locator("details", has=heading)
    expect(section.get_by_role("link", name="StartBody")).to_be_hidden()
    section.locator("summary").press("Enter")
    section.get_by_role("link", name="StartBody").press("Enter")
    expect(page.locator("#StartBody")).to_contain_text("Tools of the template: a list")
    for part in ("#StartBody", f"#{section.get_attribute('id')}"):  # all others are made alike, and axe is slow
        assert_accessible(page, part)
    assert page.problems == []
