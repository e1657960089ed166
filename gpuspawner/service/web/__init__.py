"""The parts that every route shares, and pages.

The modules ``endpoint``, ``inputs``, ``permissions`` and ``actor`` know no noun. The folder of a noun, for example
``quotas``, has its models, presenter, API and pages. The other modules here are pages of nouns that have no folder yet.
"""
