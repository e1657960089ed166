"""The documentation as a site: `make docs`.

Belongs here: which pages there are, what of the reference is read from the code, and how the site is built. Never here:
what a page says, which stands in docs/, and what a key, command or event means, which stands beside its code.
"""
