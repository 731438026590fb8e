"""Proof of the checks by fault injection: each entry breaks a copy of the files, and the checks
must find it. See `proof.py` of the other checks.
"""

import shutil

import files
import metrics
import proof
from report import Report

ALERTS, TESTS, OVERVIEW = "alerts.yaml", "alerts_test.yaml", "dashboards/overview.json"
STORES, TIMELINES = "dashboards/stores.json", "dashboards/timelines.json"
NOTICES = "dashboards/notices.json"

BREAKAGES = [
    # files.py
    (ALERTS, "absent(up", "abscent(up", "promtool check rules"),
    (ALERTS, "== 0\n        # Four", "== 1\n        # Four", "promtool test rules"),
    (ALERTS, "> 0.8\n        for: 5m", "> 0.8\n        for: 1m", "promtool test rules"),
    (ALERTS, "runbook: deploy/telemetry/README.md#microblogslow",
     "runbook: deploy/telemetry/README.md#slow", "runbook: found"),
    (ALERTS, "severity: warning", "severity: bad", "has no severity"),
    (TESTS, "exp_samples: []", "exp_samples: [{labels: ALERTS, value: 1}]", "promtool test rules"),
    ("README.md", "## MicroblogAbsent", "## Absent", "MicroblogAbsent is missing"),
    ("kubernetes.yaml", "job_name: microblog", "job_name: pods", "kubernetes.yaml, jobs"),
    ("prometheus.yaml", "static_configs", "static_config", "promtool check config"),
    (OVERVIEW, '"id": 2,', '"id": 1,', "id of a panel is duplicated"),
    (OVERVIEW, '{"x": 8, "y": 0,', '{"x": 7, "y": 0,', "overlaps another one"),
    (OVERVIEW, "($service)", "($servise)", "undefined variable servise"),
    (STORES, "microblog-stores", "microblog-overview", "a uid is duplicated"),
    # metrics.py
    (ALERTS, "microblog_post_undelivered_age_seconds", "microblog_undelivered_age",
     "no such metric: microblog_"),
    (ALERTS, "_undelivered_age_seconds) > 60", "_undelivered_age_seconds) > 600", "promtool test rules"),
    (ALERTS, "rpc_method!~", "rpc_name!~", "has no label rpc_name"),
    (ALERTS, "(microblog_keyspace)", "(keyspace)", "nothing has the label keyspace"),
    (ALERTS, '"MISCONF|OOM|NOREPLICAS"', '"FULL"', "nothing is db_client_operation_duration"),
    (ALERTS, "postgresql|sqlite", "postgres|lite", "nothing is db_client_operation_duration"),
    (ALERTS, 'outcome="failed"', 'outcome="failure"', "nothing is microblog_job_runs_total"),
    (ALERTS, "$labels.peer }}\"", "$labels.per }}\"", "shows the label per"),
    (ALERTS, '"rpc_method", "(.+)/.+"', '"method", "(.+)/.+"', "nothing has the label method"),
    (OVERVIEW, "{{rpc_method}}", "{{method}}", "shows the label method"),
    (OVERVIEW, "(microblog_serving, microblog_rpc_service)", "(microblog_serving, name)",
     "shows the label name"),
    (OVERVIEW, "/ microblog_calls_limit", "/ (microblog_calls_limit offset 1h)",
     "has no result"),
    (STORES, '{result=\\"hit\\"}[$__rate_interval])) / sum by (microblog_keyspace)',
     '{result=\\"hit\\"}[$__rate_interval])) / sum by (result)', "has no result"),
    (STORES, "sum by (db_operation_name)", "sum by (db_operation)", "has the label db_operation"),
    (STORES, 'result=\\"hit\\"', 'result=\\"hits\\"', "nothing is microblog_cache_reads_total"),
    (TIMELINES, "microblog_timeline_queue_depth", "microblog_timeline_queue_age_seconds",
     "no query shows microblog_timeline_queue_depth"),
    (TIMELINES, "sum by (mode)", "sum by mode", "invalid query"),
    (TIMELINES, "step_duration_seconds_bucket", "step_duration_bucket", "no such metric"),
    (NOTICES, "microblog_notice_feed_gaps_total", "microblog_notice_acts_total",
     "nothing has the label service"),
    (ALERTS, "microblog_notice_feed_read_until_seconds", "microblog_notice_feed_read_until",
     "no such metric"),
]


def prove(report, telemetry, scraped):
    """Injects each fault, and reports those that the checks do not find."""
    def find(directory, _, spoil):
        copy = shutil.copytree(telemetry.directory, directory / "telemetry")
        spoil(copy)
        found, broken = Report(), files.Telemetry(copy)
        # The slowest checks run last.
        for check in (
            lambda: files.check(found, broken),
            lambda: metrics.check(found, broken, scraped),
            lambda: files.check_by_promtool(found, broken),
        ):
            check()
            yield found.findings

    return proof.prove(report, BREAKAGES, find)
