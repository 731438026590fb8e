"""What the alerts do: nothing while all is well, and something when it is not."""

import threading

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
PAUSE_MS = 5000
# More than the calls that may be made again at once: ten for each of ten seconds.
CALLS = 400


def check_calm(report, telemetry, microblog, prometheus):
    """Checks that all alerts are evaluated, and that none is active while a system works."""
    report.unless(microblog.tour(), "microblog demo: not all answers are as they should be")
    report.same("answers of the gateway beside", microblog.ask_gateway(20), 20)
    report.same("answers to a call that is wrong", microblog.ask_timeline_wrongly(), 0)
    is_archived = lambda: prometheus.query("microblog_post_archive_changes_total > 0")
    report.unless(processes.eventually(is_archived, within_s=10), "nothing is archived")
    names = {alert["alert"] for alert in telemetry.alerts}
    evaluated = lambda: all(
        rule["health"] != "unknown" for rule in prometheus.alerts().values()
    )
    report.unless(processes.eventually(evaluated, within_s=5), "not all alerts are evaluated")
    report.same("alerts", set(prometheus.alerts()), names)
    for name, rule in prometheus.alerts().items():
        report.unless(rule["health"] == "ok", f"{name}: {rule.get('lastError')}")
    # A job whose rounds are ten seconds apart has none within the first scrapes.
    processes.eventually(lambda: not _active(prometheus), within_s=15)
    for name, alerts in _active(prometheus).items():
        report.wrong(f"{name} is active: {alerts[0]['annotations']['summary']}")


def check_trouble(report, microblog, prometheus):
    """Puts things out of order, and checks that the alerts for them become active."""
    seen = {}

    def expect(names, act):
        """Acts again and again until these alerts were active."""
        def is_seen():
            act()
            seen.update(_active(prometheus))
            return names <= set(seen)

        processes.eventually(is_seen, within_s=20)
        for name in sorted(names - set(seen)):
            report.wrong(f"{name} does not become active")

    microblog.pause_redis(PAUSE_MS)
    microblog.is_user_well = False
    # Twice: what is counted for the first time has not grown yet.
    tours = threading.Thread(target=lambda: [microblog.tour(), microblog.tour()])
    tours.start()
    expect(EXPECTED, lambda: microblog.ask_gateway(CALLS))
    tours.join()
    microblog.is_user_well = True
    with microblog.broken_archive():
        expect(EXPECTED_OF_ARCHIVE, microblog.tour)
    with microblog.full_redis():
        expect(EXPECTED_OF_FULL, microblog.tour)
    for name, alerts in seen.items():
        for text in alerts[0]["annotations"].values():
            # As in <no value>, or <error expanding template: …>.
            report.unless("<" not in text, f"{name} says {text!r}")
            # What is between two words would be missing.
            report.unless("  " not in text, f"{name} has a gap: {text!r}")
    calm = lambda: not {"MicroblogNotServing"} & set(_active(prometheus))
    report.unless(processes.eventually(calm, within_s=15), "it does not end when the cause does")


def _active(prometheus):
    rules = prometheus.alerts().items()
    return {name: rule["alerts"] for name, rule in rules if rule["alerts"]}
