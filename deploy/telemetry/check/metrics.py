"""Whether what the queries name was scraped: every metric, every label, and something that each
selector selects."""

import re
from functools import cache

import processes
import queries

# Selectors that select nothing even in the trouble that the check makes, each with the reason.
ONLY_IN_TROUBLE = {}


def settle(telemetry, prometheus):
    """Waits until all panels show something, if they ever do: what jobs do is counted some seconds
    after the calls that it is for, and rates are of two scrapes."""
    panels = [query.expression for query in telemetry.queries if not query.is_alert]

    def is_answered(expression):
        try:
            return prometheus.query(expression)
        except ValueError:
            # Told by the check; nothing to wait for.
            return True

    processes.eventually(lambda: all(map(is_answered, panels)), every_s=0.5)


class Scraped:
    """What was scraped, asked for once each: queries have much in common."""

    def __init__(self, prometheus):
        self.series = cache(prometheus.series)
        self.query = cache(prometheus.query)


# Every metric of microblog's has one of these names.
ALL = '{__name__=~"(microblog|rpc|db)_.+"}'
# By which histograms are read.
PARTS = re.compile("_(bucket|count|sum)$")


def check(report, telemetry, scraped):
    """Checks all queries of the files."""
    for query in telemetry.queries:
        with report.at(query.place):
            _check_query(report, query, scraped)
    parts = [queries.parts(query.expression) for query in telemetry.queries]
    used = {str(selector) for one in parts for selector in one.selectors}
    for selector in set(ONLY_IN_TROUBLE) - used:
        report.wrong(f"{selector} is no query's any more")
    shown = {PARTS.sub("", selector.metric) for one in parts for selector in one.selectors}
    scraped_all = {PARTS.sub("", series["__name__"]) for series in scraped.series(ALL)}
    for metric in sorted(scraped_all - shown):
        report.wrong(f"no query shows {metric}")


def _check_query(report, query, scraped):
    try:
        answer = scraped.query(query.expression)
    except ValueError as refusal:
        report.wrong(f"is no query: {refusal}")
        return
    parts = queries.parts(query.expression)
    labels = set()
    for selector in parts.selectors:
        labels |= _check_selector(report, selector, scraped)
    for label in sorted((parts.grouped | parts.read) - labels - parts.made):
        report.wrong(f"nothing has the label {label}")
    shown = (parts.grouped if parts.grouped else labels) | parts.made
    for label in sorted(query.shown - shown):
        report.wrong(f"shows the label {label}, which it has not")
    # Alerts answer when something is wrong. Elsewhere, two sides that do not match answer nothing.
    is_rare = any(str(selector) in ONLY_IN_TROUBLE for selector in parts.selectors)
    report.unless(query.is_alert or is_rare or answer, "answers nothing")


def _check_selector(report, selector, scraped):
    """Returns the labels that the metric has."""
    labels = {label for series in scraped.series(selector.metric) for label in series}
    if not report.unless(labels, f"there is no metric {selector.metric}"):
        return labels
    for label in sorted(selector.labels - labels):
        report.wrong(f"{selector.metric} has no label {label}")
    if str(selector) not in ONLY_IN_TROUBLE:
        report.unless(scraped.series(str(selector)), f"nothing is {selector}")
    return labels
