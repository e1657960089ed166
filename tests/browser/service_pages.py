"""The service's pages without a hub of their own, opened in a browser: what tests of these pages share."""

import importlib.util
import sys
from pathlib import Path


def load_pages():
    """Tests are no package, so what they share is loaded by its path."""
    path = Path(__file__).parents[1] / "service" / "page_world.py"
    sys.path.append(str(path.parent))  # for what it shares with its own
    spec = importlib.util.spec_from_file_location("page_world", path)
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    if not hasattr(module, "World"):
        spec.loader.exec_module(module)
    return module


pages = load_pages()


def open_page(browser, world, path, **options):
    """A page of ``world.signing_in``; every problem that the browser tells is collected, a CSP violation too."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
    page.goto(world.home + path)
    return page
