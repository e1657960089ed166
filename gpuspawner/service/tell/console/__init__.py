"""What the administrator's console shows, as plain values: pages, CSV, JSON and the command's report are all of these.

Belongs here: pure views over frozen values, and the one list component: filter, sort, page.
Never here: an HTTP handler, HTML, or a change of anything.
"""
