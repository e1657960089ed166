"""The calendar of reservations and maintenance, as the API, pages and an iCalendar feed.

Belongs here: what a reader may see of coming reservations. Never here: how reservations are made and decided.
"""
