"""What watches a running service: Grafana dashboards and Prometheus alert rules, generated into helm/gpuspawner/files.

Belongs here: what is drawn (``panels``), when somebody is called (``alerts``), and how both are written (``__main__``).
Never here: metrics. They are counted in ``gpuspawner.service.metrics``; a test runs each expression on them.
"""
