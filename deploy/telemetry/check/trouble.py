"""Alerts in normal operation and during injected faults."""

import processes

# The alerts of a stopped Redis and an UNAVAILABLE user service.
EXPECTED = {
    "MicroblogErrors",
    "MicroblogJobFailing",
    "MicroblogNotServing",
    "MicroblogRedisFailing",
    "MicroblogRetriesDenied",
    "MicroblogRetriesMany",
}
# The alerts of a database without one of its tables, and of a full Redis.
EXPECTED_OF_DATABASE = {"MicroblogDatabaseFailing"}
EXPECTED_OF_FULL = {"MicroblogRedisRejectingWrites"}
# Alerts that a busy machine may cause. alerts_test.yaml tests them.
OF_SPEED = {"MicroblogSlow", "MicroblogRedisSlow"}
FAILED_CONNECTIONS = 'db_client_connection_create_time_seconds_count{error_type!=""}'
# Rates need two scrapes; a busy machine makes fewer than one a second.
SEEN_S = 3 * processes.TIMEOUT_S
# More than the burst of the retry budget: ten for each of ten seconds.
CALLS = 400


def check_no_alerts(report, telemetry, microblog, prometheus):
    """Checks that all alerts are evaluated, and that none is active in normal operation."""
    report.unless(microblog.tour(), "microblog demo failed")
    report.same("OK responses of the separate gateway", microblog.call_gateway(20), 20)
    report.same("OK responses to an invalid call", microblog.call_timeline_invalidly(), 0)
    names = {alert["alert"] for alert in telemetry.alerts}
    evaluated = lambda: all(
        rule["health"] != "unknown" for rule in prometheus.alerts().values()
    )
    report.unless(processes.eventually(evaluated), "not all alerts are evaluated")
    report.same("alerts", set(prometheus.alerts()), names)
    for name, rule in prometheus.alerts().items():
        report.unless(rule["health"] == "ok", f"{name}: {rule.get('lastError')}")
    # A job with a period of ten seconds has no run within the first scrapes.
    has_no_alerts = lambda: not set(_active(prometheus)) - OF_SPEED
    processes.eventually(has_no_alerts)
    for name, alerts in _active(prometheus).items():
        if name in OF_SPEED:
            continue
        report.wrong(f"{name} is active: {alerts[0]['annotations']['summary']}")


def check_faults(report, microblog, prometheus):
    """Injects faults, and checks that their alerts become active."""
    seen = {}

    def expect(names, act=lambda: None):
        """Calls `act` repeatedly until these alerts have been active."""
        def is_seen():
            act()
            seen.update(_active(prometheus))
            return names <= set(seen)

        processes.eventually(is_seen, SEEN_S)
        for name in sorted(names - set(seen)):
            report.wrong(f"{name} does not become active")

    # Waits for the alerts, not for a fixed time, which may be too short on a busy machine.
    microblog.is_user_available = False
    with microblog.frozen_redis(), microblog.tours():
        expect(EXPECTED, lambda: microblog.call_gateway(CALLS))
        # The panels show these too. A connection is given up only after some silence.
        def has_failed():
            microblog.call_gateway(1)
            return prometheus.query(FAILED_CONNECTIONS)

        report.unless(processes.eventually(has_failed, SEEN_S), "no connection attempt fails")
    microblog.is_user_available = True
    with microblog.broken_database(), microblog.tours():
        expect(EXPECTED_OF_DATABASE)
    with microblog.full_redis(), microblog.tours():
        expect(EXPECTED_OF_FULL)
    for name, alerts in seen.items():
        for text in alerts[0]["annotations"].values():
            # Such as <no value>, or <error expanding template: …>.
            report.unless("<" not in text, f"{name} has the text {text!r}")
            # Two spaces mean that a value is empty.
            report.unless("  " not in text, f"{name} has a gap: {text!r}")
    resolved = {"MicroblogNotServing"}
    processes.eventually(lambda: not resolved & set(_active(prometheus)))
    for name in sorted(resolved & set(_active(prometheus))):
        report.wrong(f"{name} remains active")


def _active(prometheus):
    rules = prometheus.alerts().items()
    return {name: rule["alerts"] for name, rule in rules if rule["alerts"]}
