"""Checks queries against the scraped series: every metric, every label, and a series for each
selector."""

import re
from functools import cache

import processes
import queries

def settle(telemetry, prometheus):
    """Waits until all panels have data, up to a timeout: jobs count their work some seconds
    after the calls, and rates need two scrapes."""
    panels = [query.expression for query in telemetry.queries if not query.is_alert]

    def is_answered(expression):
        try:
            return prometheus.query(expression)
        except ValueError:
            # The check reports it.
            return True

    processes.eventually(lambda: all(map(is_answered, panels)), every_s=0.5)


class Scraped:
    """The scraped series. Cached, because queries share selectors."""

    def __init__(self, prometheus):
        self.series = cache(prometheus.series)
        self.query = cache(prometheus.query)


# Matches all metrics of microblog.
ALL = '{__name__=~"(microblog|rpc|db)_.+"}'
# The suffixes of the series of histograms.
PARTS = re.compile("_(bucket|count|sum)$")


def check(report, telemetry, scraped):
    """Checks all queries of the files."""
    for query in telemetry.queries:
        with report.at(query.place):
            _check_query(report, query, scraped)
    parts = [queries.parts(query.expression) for query in telemetry.queries]
    shown = {PARTS.sub("", selector.metric) for one in parts for selector in one.selectors}
    scraped_all = {PARTS.sub("", series["__name__"]) for series in scraped.series(ALL)}
    for metric in sorted(scraped_all - shown):
        report.wrong(f"no query shows {metric}")


def _check_query(report, query, scraped):
    try:
        answer = scraped.query(query.expression)
    except ValueError as error:
        report.wrong(f"invalid query: {error}")
        return
    parts = queries.parts(query.expression)
    labels = set()
    for selector in parts.selectors:
        labels |= _check_selector(report, selector, scraped)
    for label in sorted((parts.grouped | parts.read) - labels - parts.made):
        report.wrong(f"nothing has the label {label}")
    shown = (parts.grouped if parts.grouped else labels) | parts.made
    for label in sorted(query.shown - shown):
        report.wrong(f"shows the label {label}, which its result lacks")
    # Alerts have results only during faults. Elsewhere, an empty result means that two sides do not
    # match.
    report.unless(query.is_alert or answer, "has no result")


def _check_selector(report, selector, scraped):
    """Returns the labels of the metric."""
    labels = {label for series in scraped.series(selector.metric) for label in series}
    if not report.unless(labels, f"no such metric: {selector.metric}"):
        return labels
    for label in sorted(selector.labels - labels):
        report.wrong(f"{selector.metric} has no label {label}")
    report.unless(scraped.series(str(selector)), f"nothing is {selector}")
    return labels
