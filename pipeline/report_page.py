"""A report as one HTML file that needs nothing else: no script, no network, no font."""

import time
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pipeline.report import Report
from pipeline.report_run_charts import accounting_charts, speed_charts
from pipeline.report_sample_charts import health_charts, image_charts
from pipeline.report_summary import (
    config_text,
    key_figures,
    run_table,
    state_of,
    worst_tables,
)
from pipeline.words import (
    bytes_text,
    clipped,
    count_text,
    counted,
    duration_text,
    share_text,
    shortened,
    time_text,
)


def render_page(report: Report) -> str:
    """The page. All that comes from data is escaped; its policy forbids scripts and requests."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "bytes": bytes_text,
        "clip": clipped,
        "count": count_text,
        "counted": counted,
        "short": shortened,
        "duration": duration_text,
        "share": share_text,
        "time": time_text,
        "inline": Markup,  # of our own plots and style only
    }
    facts, record = report.facts, report.facts.record
    unit = record.model.readout.normalize and record.model.readout.vectors != "tokens"
    return environment.from_string(_file("report.html.j2")).render(
        report=report,
        facts=facts,
        record=record,
        state=state_of(report),
        tiles=key_figures(report),
        run_table=run_table(facts),
        config_text=config_text(record.config),
        speed=speed_charts(facts, report.timeline),
        images=image_charts(report.sample),
        accounting=accounting_charts(facts),
        health=health_charts(report.health, unit=unit) if report.health else [],
        worst=worst_tables(facts),
        style=_file("report.css"),
        made=time_text(time.time()),
        version=version("embedmill"),
    )


def _file(name: str) -> str:
    return files("pipeline").joinpath(name).read_text(encoding="utf-8")
