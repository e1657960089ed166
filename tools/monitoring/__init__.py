"""Grafana dashboards and Prometheus alert rules for a running service, generated into helm/gpuspawner/files.

Belongs here: the charts (``panels``), the conditions of alerts (``alerts``), and the writer of both (``__main__``).
Never here: metrics. They are counted in ``gpuspawner.service.metrics``; a test runs each expression on them.
"""
