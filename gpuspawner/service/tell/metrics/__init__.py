"""What Prometheus reads: collectors that count anew at each scrape, and counters that survive restarts.

Belongs here: metrics, and the addresses where they are read. Never here: a number that pages and API count otherwise.
"""
