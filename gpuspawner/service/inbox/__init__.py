"""The inbox of each person, and messages of administrators.

Belongs here: what is kept in memory of both, and who may do what with them, alike for API and pages.
Never here: which step is a notice, and in which words: ``core.inbox``.
"""
