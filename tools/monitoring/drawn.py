"""Dashboards in Grafana's own form, made by its foundation SDK."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as settings
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

from tools.monitoring.panels import Dashboard, Panel

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
STAT_HEIGHT, HEIGHT = 4, 8
TAG = "gpuspawner"


def drawn(page: Dashboard) -> str:
    """Return a dashboard as JSON that Grafana imports."""
    made = (
        dashboard.Dashboard(page.title)
        .uid(f"{TAG}-{page.name}")
        .tags([TAG])
        .refresh("1m")
        .time("now-24h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("job")
            .label("Scrape job")
            .datasource(SOURCE)
            .query("label_values(gpuspawner_catalog_reload_success, job)")
            .refresh(VariableRefresh.ON_DASHBOARD_LOAD)
            .multi(multi=True)
            .include_all(include_all=True)
        )
        .link(
            dashboard.DashboardLink("gpuspawner")
            .type("dashboards")
            .tags([TAG])
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
    )
    for panel in page.panels:
        made = made.with_panel(_panel(panel))
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(made.build())}\n"


def _panel(panel: Panel) -> Any:
    builder: Any = stat.Panel() if panel.form == "stat" else timeseries.Panel()
    builder = (
        builder.title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.columns)
        .height(STAT_HEIGHT if panel.form == "stat" else HEIGHT)
        .no_value("not known")
    )
    if panel.form == "stat":
        calculated = common.ReduceDataOptions().calcs(["lastNotNull"])
        builder = builder.reduce_options(calculated).graph_mode(settings.BigValueGraphMode.NONE)
    else:
        builder = builder.min(0).legend(_legend())
    if panel.form == "areas":
        stacked = common.StackingConfig().mode(settings.StackingMode.NORMAL)
        builder = builder.stacking(stacked).fill_opacity(40)
    for number, (legend, expression) in enumerate(panel.expressions.items()):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
        builder = builder.with_target(query)
    return builder


def _legend() -> Any:
    shown = common.VizLegendOptions().show_legend(show_legend=True).placement(settings.LegendPlacement.BOTTOM)
    return shown.display_mode(settings.LegendDisplayMode.LIST)
