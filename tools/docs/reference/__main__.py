"""Write the reference pages into docs/reference/."""

from tools.docs.reference import write_reference
from tools.install import ROOT

write_reference(ROOT / "docs" / "reference")
