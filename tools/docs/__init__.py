"""The documentation as a site: `make docs`.

Belongs here: which pages there are, what of the reference is read from the code, and how the site is built. Never here:
text of pages, which is in docs/, and the meaning of keys, commands and events, which is in their code.
"""
