"""The pages: their commands and catalogs are valid, their numbers are those of the code, and their form is right."""

import ast
import copy
import re
import shlex
import subprocess
from dataclasses import fields

import pytest
import yaml
from dockerspawner import DockerSpawner
from facts import FACTS
from harness import command_lines, pages
from harness.command_lines import read_command
from jupyterhub.app import JupyterHub
from jupyterhub.auth import Authenticator
from jupyterhub.spawner import Spawner
from pydantic import TypeAdapter

from gpuspawner import __version__
from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.models import WrittenCatalog
from gpuspawner.catalog.resources.definitions import KINDS
from gpuspawner.service.settings import Settings
from gpuspawner.service.web.admin_page import TABS
from gpuspawner.spawner import GPUSpawner
from gpuspawner.spawner.hub.settings import GPUService

REPO = pages.REPO
WRITTEN = [
    *sorted((REPO / "docs").rglob("*.md")),
    *(
        REPO / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md", "RELEASE.md", "tests/README.md")
    ),
]
HOW_TO = [path for path in WRITTEN if "how-to" in path.parts and path.stem != "index"]
MEASURED = [path for path in WRITTEN if "measurements" in path.parts and path.stem != "index"]
MOST_WORDS = 1500
"""Of an explanation."""
README_LINES = 120
each = pytest.mark.parametrize("page", [pytest.param(one, id=str(one.relative_to(REPO))) for one in WRITTEN])


def lines_of(page):
    """Return the commands of a page in its blocks, and in lines that are indented by four, as the README has them."""
    text = page.read_text()
    return pages.commands(text) + re.findall(r"^    ((?:\.venv/bin/)?(?:gpuspawner|make|pip) .+)$", text, re.MULTILINE)


def own_words(line):
    """Return the words after `gpuspawner` in a command, or None if it runs another program."""
    if not re.search(r"(^|[/ ])gpuspawner [a-z]", line) or re.match(r"helm |kubectl (?!exec)", line):
        return None
    words = shlex.split(re.split(r" (?:>>?|\|) ", line)[0], comments=True)
    if "--" in words:  # of kubectl exec
        words = words[words.index("--") + 1 :]
    if words[:1] == ["sudo"]:
        words = words[1:]
    return words[1:] if words and words[0].rpartition("/")[2] == "gpuspawner" else None


@each
def test_each_command_of_gpuspawner_is_valid(page):
    for line in lines_of(page):
        if (words := own_words(line)) is not None:
            read_command(words)
    for inline in re.findall(r"`(gpuspawner [^`]+)`", page.read_text()):
        words = shlex.split(inline.partition(" > ")[0])[1:]
        command = command_named(words)
        options = {option for one in command.params for option in (*one.opts, "--help", "--version")}
        assert {word for word in words if word.startswith("--")} <= options, inline


def command_named(words):
    """Return the command that the first words after `gpuspawner` name."""
    found = dict(command_lines.commands())
    names = next(tuple(words[:count]) for count in (3, 2, 1, 0) if ("gpuspawner", *words[:count]) in found or not count)
    return found[("gpuspawner", *names)] if names else command_lines.gpuspawner


@each
def test_each_block_of_commands_is_shell_and_names_files_and_targets_that_are_there(page):
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    if shell := "".join(pages.blocks(page.read_text(), "bash")):
        told = subprocess.run(["bash", "-n"], input=shell, capture_output=True, text=True, timeout=10, check=False)
        assert (told.returncode, told.stderr) == (0, "")
    for line in lines_of(page):
        words = re.sub(r'"[^"]*"', '""', line.partition(" #")[0]).split()
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, line
        for word in words:
            path = (word.partition("=")[2] or word).strip("'\"")
            if re.match(r"(helm|hub_config|images|tests|demo)/", path):
                assert (REPO / path.partition("::")[0]).exists(), line
            if module := re.match(r"tools(\.\w+)+$", word):
                name = module[0].replace(".", "/")
                assert (REPO / f"{name}.py").exists() or (REPO / name / "__main__.py").exists(), line


@each
def test_each_number_that_is_marked_is_the_one_of_the_code(page):
    text = page.read_text()
    for mark in re.finditer(r"<!-- fact ([a-z_.]+) -->", text):
        expected = FACTS[mark[1]]
        assert text[: mark.start()].endswith(expected), f"{mark[1]} is {expected!r}"


def test_each_fact_is_on_a_page():
    assert {name for page in WRITTEN for name in re.findall(r"<!-- fact ([a-z_.]+) -->", page.read_text())} == set(
        FACTS
    )


@pytest.mark.parametrize("page", [pytest.param(one, id=one.stem) for one in HOW_TO])
def test_each_how_to_says_what_one_gets_then_the_steps_then_what_to_do_if_it_does_not_work(page):
    text = page.read_text()
    title, _, rest = text.partition("\n\n")
    assert title.startswith("# ")
    assert re.match(r"[A-Z]", rest), "a sentence that says what you get"
    assert "\n## If it does not work\n" in text


@pytest.mark.parametrize("folder", ["users", "administrators"])
def test_the_list_of_how_to_pages_names_each_by_its_title(folder):
    index = REPO / "docs" / "how-to" / folder / "index.md"
    pages_of_folder = [page for page in HOW_TO if page.parent == index.parent]
    titles = {page.name: page.read_text().partition("\n")[0].removeprefix("# ") for page in pages_of_folder}
    listed = re.findall(r"\| \[(.+)\]\((.+)\) \|", index.read_text())
    assert sorted(listed) == sorted((title, name) for name, title in titles.items())


def test_the_page_about_usage_lists_every_page_of_the_console():
    page = (REPO / "docs" / "how-to" / "administrators" / "usage.md").read_text()
    table = re.search(r"\| Page \| Answers \|\n.*?\n\n", page, re.DOTALL)[0]
    assert re.findall(r"^ *\| ([A-Z][\w ]+) \|", table, re.MULTILINE)[1:] == [tab.words for tab in TABS]


@pytest.mark.parametrize("name", [pytest.param(one.name, id=one.stem) for one in (REPO / "hub_config").glob("*.yaml")])
def test_each_optional_entry_of_a_file_to_copy_stays_valid_without_its_comment_sign(name):
    for entry in re.findall(r"^ *# (- \{.*)$", (REPO / "hub_config" / name).read_text(), re.MULTILINE):
        assert isinstance(yaml.safe_load(entry), list), entry


LABELS = "".join(
    file.read_text() for form in ("*.html", "*.js", "*.py") for file in (REPO / "gpuspawner").rglob(form)
).replace("'Restart ' ~ ('without' if doc.going_on.action == 'without-gpu' else 'with') ~ ' GPU", "'Restart with GPU")


@each
def test_each_button_that_a_page_tells_people_to_press_exists(page):
    for button in re.findall(r"[Pp]ress \*\*([^*]+)\*\*", page.read_text()):
        assert re.search(rf"[>'\"]{re.escape(button)}\b", LABELS), button


@each
def test_no_page_tells_people_to_install_from_an_index(page):
    for line in lines_of(page):
        installs = re.search(r"(pip|uv|pipx|conda) .*install .*['\" ]gpuspawner\b", line)
        assert not installs or "--no-index" in line, line
        assert not re.search(r"helm (install|upgrade) .*oci:|helm repo add gpuspawner", line), line


def test_explanations_and_the_readme_are_short():
    for page in (REPO / "docs" / "explanation").glob("*.md"):
        assert len(page.read_text().split()) <= MOST_WORDS, page.name
    readme = (REPO / "README.md").read_text()
    assert len(readme.splitlines()) <= README_LINES
    assert {"make run", "make test"} <= set(lines_of(REPO / "README.md"))


@pytest.mark.parametrize("page", [pytest.param(one, id=one.stem) for one in MEASURED])
def test_each_page_of_measurements_has_one_table_with_its_command_and_commit(page):
    text = page.read_text()
    assert re.search(r"commits? [0-9a-f]{8}", text)
    command = re.search(r"Command \| `([^`]+)`", text) or re.search(r"\(`([^`]+)`", text)
    assert all((REPO / word).exists() for word in command[1].split() if word.startswith("bench/"))


def test_the_forms_of_issues_and_the_workflow_have_what_github_requires():
    for form in sorted((REPO / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")):
        shown = yaml.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(shown), form.name
        asked = [one for one in shown["body"] if one["type"] != "markdown"]
        assert len({one["id"] for one in asked}) == len(asked)
        assert all(one["attributes"]["label"] for one in asked)
    workflow = yaml.safe_load((REPO / ".github" / "workflows" / "test.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": ".ci/run"}
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "license", "version"} <= set(citation)


# --- Links in the checkout

TRACKED = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
LINKING = [REPO / name for name in TRACKED if name.endswith(".md") or name == "llms.txt"]
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def anchors_of(page):
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def test_each_page_that_code_and_messages_name_is_there():
    folders = ("gpuspawner/", "helm/", "hub_config/", "images/", "demo/", "tools/", "bench/")
    for name in (
        name for name in TRACKED if name.startswith(folders) and name.endswith((".py", ".yaml", ".txt", ".sh"))
    ):
        for path in re.findall(r"\bdocs/[\w/-]+\.(?:md|yaml)", (REPO / name).read_text()):
            assert (REPO / path).exists(), (name, path)


@pytest.mark.parametrize("page", [pytest.param(one, id=str(one.relative_to(REPO))) for one in LINKING])
def test_each_link_leads_to_a_file_and_heading_of_the_checkout(page):
    for link in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def sections_of(model):
    """Return the names of the keys below each section of a model, by the section's key."""
    found = {}
    for name, key in keys_of(model).items():
        if key.section is not None:
            below = sections_of(key.section)
            found[name] = found.get(name, set()) | set(keys_of(key.section))
            for one, keys in below.items():
                found[one] = found.get(one, set()) | keys
    return found


@each
def test_each_value_of_the_chart_and_each_nested_catalog_key_that_a_page_names_exists(page):
    chart = yaml.safe_load((REPO / "helm" / "gpuspawner" / "values.yaml").read_text())
    known = {name: set(value) for name, value in chart.items() if isinstance(value, dict)}
    known["settings"] = {one.name for one in fields(Settings)}
    for name, keys in sections_of(WrittenCatalog).items():
        known[name] = known.get(name, set()) | keys
    for path in re.findall(r"`([a-z]\w*(?:\.[a-z]\w*)+)(?:=[^`]*)?`", page.read_text()):
        first, second, *_ = path.split(".")
        if first in known and not path.endswith((".lock", ".yaml", ".org")):
            assert second in known[first], path


# --- Configuration of the hub

CLASSES = {
    "Authenticator": Authenticator,
    "DockerSpawner": DockerSpawner,
    "GPUService": GPUService,
    "GPUSpawner": GPUSpawner,
    "JupyterHub": JupyterHub,
    "KubeSpawner": GPUSpawner,  # with the mixin, as configure() makes it
    "Spawner": Spawner,
}
"""The classes that pages configure."""


@each
def test_each_setting_of_the_hub_is_one_of_its_class(page):
    for name, setting in re.findall(r"\bc\.([A-Z]\w+)\.(\w+)", page.read_text()):
        assert setting in CLASSES[name].class_trait_names(config=True), f"c.{name}.{setting}"


@each
def test_each_block_of_python_is_valid_and_configures_what_is_there(page):
    known = GPUService.class_trait_names(config=True)
    settings = {one.name for one in fields(Settings)}
    for block in pages.blocks(page.read_text(), "python"):
        tree = ast.parse(block)
        calls = (one for one in ast.walk(tree) if isinstance(one, ast.Call) and ast.unparse(one.func) == "configure")
        for given in (keyword for call in calls for keyword in call.keywords):
            assert given.arg in known, block
            if given.arg == "service_settings":
                assert set(ast.literal_eval(given.value)) <= settings, block


# --- YAML


def combined(into, more):
    """Return one mapping of both, also of the mappings within them."""
    for key, value in more.items():
        into[key] = combined(into[key], value) if isinstance(value, dict) and key in into else value
    return into


def documents(page):
    """Return the YAML examples of a page: catalogs, parts of one, and objects of Kubernetes."""
    return [one for block in pages.blocks(page.read_text(), "yaml") for one in yaml.safe_load_all(block)]


OF_HUB = {"hub", "imagePullSecrets", "prePuller", "proxy", "scheduling", "singleuser"}
"""Values of Zero to JupyterHub's release that pages show: tests/spawner and tests/chart try them."""
OF_GPU_OPERATOR = {"dcgmExporter", "devicePlugin", "driver", "gfd", "mig", "migManager", "toolkit"}
"""Values of NVIDIA's GPU Operator, from NVIDIA's documentation: no test can try them without hardware."""
OF_SERVICE = set(yaml.safe_load((REPO / "helm" / "gpuspawner" / "values.yaml").read_text())) - {"catalog"}


@each
def test_each_yaml_is_a_catalog_an_object_or_values_of_a_chart(page):
    for shown in documents(page):
        keys = set(shown)
        assert (
            "kind" in keys
            or keys <= set(keys_of(WrittenCatalog))
            or any(keys <= one for one in (OF_HUB, OF_SERVICE, OF_GPU_OPERATOR))
        ), keys


@each
def test_each_catalog_can_be_used_and_each_part_fits_the_one_to_copy(page):
    to_copy = yaml.safe_load((REPO / "hub_config/catalog.yaml").read_text()) | {"teams": {"vision": {}}}
    whole = None
    for shown in (one for one in documents(page) if set(one) <= set(keys_of(WrittenCatalog))):
        whole = shown if "version" in shown else whole
        load_catalog(combined(copy.deepcopy(to_copy) if whole is None else whole, shown))


@each
def test_each_pod_runs_a_valid_command_and_is_restricted(page):
    for pod in (shown for shown in documents(page) if shown.get("kind") == "Pod"):
        (container,) = pod["spec"]["containers"]
        read_command(container["command"][1:])
        assert container["image"] == f"registry.example.org/ml/service:{__version__}"
        assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
        assert (pod["spec"]["securityContext"]["runAsNonRoot"], container["securityContext"]["capabilities"]) == (
            True,
            {"drop": ["ALL"]},
        )


@each
def test_each_custom_resource_has_the_keys_of_its_kind(page):
    models = {kind.name: kind.model for kind in KINDS}
    for shown in (one for one in documents(page) if one.get("kind") in models):
        TypeAdapter(models[shown["kind"]]).validate_python(shown["spec"])
