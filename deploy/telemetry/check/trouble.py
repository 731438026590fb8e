"""What the alerts do: nothing while all is well, and something when it is not."""

import processes

# What Redis that answers nobody, and a user service that answers UNAVAILABLE, have to bring about.
EXPECTED = {
    "MicroblogErrors",
    "MicroblogJobFailing",
    "MicroblogNotServing",
    "MicroblogRedisFailing",
    "MicroblogRetriesDenied",
    "MicroblogRetriesMany",
}
# What an archive without posts has to bring about, and Redis that is full.
EXPECTED_OF_ARCHIVE = {"MicroblogArchiveFailing"}
EXPECTED_OF_FULL = {"MicroblogRedisRefusing"}
# How fast the machine is at the moment, which may be busy: no trouble of the system's. When these
# become active is shown by alerts_test.yaml.
OF_SPEED = {"MicroblogSlow", "MicroblogRedisSlow"}
# Rates are of two scrapes, of which a busy machine makes fewer than one a second.
SEEN_S = 3 * processes.PATIENCE_S
# More than the calls that may be made again at once: ten for each of ten seconds.
CALLS = 400


def check_calm(report, telemetry, microblog, prometheus):
    """Checks that all alerts are evaluated, and that none is active while a system works."""
    report.unless(microblog.tour(), "microblog demo: not all answers are as they should be")
    report.same("answers of the gateway beside", microblog.ask_gateway(20), 20)
    report.same("answers to a call that is wrong", microblog.ask_timeline_wrongly(), 0)
    is_archived = lambda: prometheus.query("microblog_post_archive_changes_total > 0")
    report.unless(processes.eventually(is_archived), "nothing is archived")
    names = {alert["alert"] for alert in telemetry.alerts}
    evaluated = lambda: all(
        rule["health"] != "unknown" for rule in prometheus.alerts().values()
    )
    report.unless(processes.eventually(evaluated), "not all alerts are evaluated")
    report.same("alerts", set(prometheus.alerts()), names)
    for name, rule in prometheus.alerts().items():
        report.unless(rule["health"] == "ok", f"{name}: {rule.get('lastError')}")
    # A job whose rounds are ten seconds apart has none within the first scrapes.
    is_calm = lambda: not set(_active(prometheus)) - OF_SPEED
    processes.eventually(is_calm)
    for name, alerts in _active(prometheus).items():
        if name in OF_SPEED:
            continue
        report.wrong(f"{name} is active: {alerts[0]['annotations']['summary']}")


def check_trouble(report, microblog, prometheus):
    """Puts things out of order, and checks that the alerts for them become active."""
    seen = {}

    def expect(names, act=lambda: None):
        """Acts again and again, if there is something to do, until these alerts were active."""
        def is_seen():
            act()
            seen.update(_active(prometheus))
            return names <= set(seen)

        processes.eventually(is_seen, SEEN_S)
        for name in sorted(names - set(seen)):
            report.wrong(f"{name} does not become active")

    # Until the alerts are there, and not for some seconds, in which a busy machine sees nothing.
    microblog.is_user_well = False
    with microblog.frozen_redis(), microblog.tours():
        expect(EXPECTED, lambda: microblog.ask_gateway(CALLS))
    microblog.is_user_well = True
    with microblog.broken_archive(), microblog.tours():
        expect(EXPECTED_OF_ARCHIVE)
    with microblog.full_redis(), microblog.tours():
        expect(EXPECTED_OF_FULL)
    for name, alerts in seen.items():
        for text in alerts[0]["annotations"].values():
            # As in <no value>, or <error expanding template: …>.
            report.unless("<" not in text, f"{name} says {text!r}")
            # What is between two words would be missing.
            report.unless("  " not in text, f"{name} has a gap: {text!r}")
    calm = lambda: not {"MicroblogNotServing"} & set(_active(prometheus))
    report.unless(processes.eventually(calm), "it does not end when the cause does")


def _active(prometheus):
    rules = prometheus.alerts().items()
    return {name: rule["alerts"] for name, rule in rules if rule["alerts"]}
