"""Inboxes, and announcements: messages of administrators to a user, a group or everybody.

Which steps of a workspace become a notice, and in which words, is decided in ``core/inbox``.
"""
