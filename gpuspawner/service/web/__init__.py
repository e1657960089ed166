"""The service's pages.

Belongs here: handlers that render, their templates, styles and scripts.
Never here: an answer that the API would give differently: pages show the same views.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"

ROUTES: list[Any] = []
