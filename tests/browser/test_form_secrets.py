"""Variables, a start-up script and secrets on the hub's form. A real workspace has the variables and ran the script."""

from harness.hub import eventually
from playwright.sync_api import expect

SECRET = "hf_s3cret"


def test_they_are_typed_on_the_form_and_no_page_shows_a_secret_again(hub, page, user, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn")
    page.get_by_text("Advanced options").click()
    page.get_by_label("Variables").fill("A=1\nPATH=/x")
    wrong = page.locator("#gs-more [data-wrong=variables]")
    expect(wrong).to_contain_text("Leave it out of line 2. The workspace sets it.")
    page.get_by_label("Variables").fill("A=1")
    page.get_by_label("Start-up script").fill("echo first\necho second")
    page.locator("#gs-secrets-name").fill("HF_TOKEN")
    page.locator("#gs-secrets-value").fill(SECRET)
    page.locator("#gs-secrets-value").press("Enter")
    expect(page.locator("#gs-secrets-told")).to_contain_text("HF_TOKEN is saved.")
    expect(page.locator("#gs-secrets-value")).to_have_value("")
    assert_accessible(page, "#gs-more", phone=True)
    page.get_by_role("button", name="Start", exact=True).click()
    eventually(lambda: any(one["user"] == user for one in hub.workspaces()), 60, "it was requested")
    lease = next(one for one in hub.workspaces() if one["user"] == user)
    assert lease["options"]["variables"] == "A=1"
    assert lease["options"]["script"].splitlines() == ["echo first", "echo second"]
    assert SECRET not in str(lease)
    page.goto(f"{hub.url}/services/gpu/secrets")
    expect(page.get_by_role("row").filter(has_text="HF_TOKEN")).to_be_visible()
    assert SECRET not in page.content()
    assert_accessible(page, phone=True)
    page.get_by_role("button", name="Delete HF_TOKEN").click()
    expect(page.get_by_text("You have no secrets.")).to_be_visible()
