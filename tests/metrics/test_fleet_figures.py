"""What a scrape says of backends, the ring, the configuration and the process."""

from __future__ import annotations

from stickyroute.build import compiled
from stickyroute.clock import monotonic
from stickyroute.fleet.sample import Sample
from tests.metrics.scraping import FakeFleet, ask_everybody, labelled, metrics_of, scrape, text_of


def test_backends_show_what_is_in_flight_and_whether_they_are_available() -> None:
    fleet = FakeFleet()
    fleet.in_flight[1] = 7
    fleet.available[0] = 0
    metrics = metrics_of(fleet)
    assert scrape(metrics, "stickyroute_backend_in_flight") == {
        labelled(backend="a"): 0,
        labelled(backend="b"): 7,
    }
    assert scrape(metrics, "stickyroute_backend_available") == {
        labelled(backend="a"): 0,
        labelled(backend="b"): 1,
    }


def test_states_of_backends() -> None:
    fleet = FakeFleet()
    fleet.states[1] = {"operator": "draining", "health": "unhealthy", "ejected": True, "paused_s": 1.5}
    metrics = metrics_of(fleet)
    states = scrape(metrics, "stickyroute_backend_state")
    assert {dict(labels)["state"] for labels, value in states.items() if value} == {
        "draining", "unhealthy", "ejected", "paused",
    }  # fmt: skip
    assert {dict(labels)["backend"] for labels, value in states.items() if value} == {"b"}
    assert scrape(metrics, "stickyroute_backend_ejections_total")[labelled(backend="b")] == 2
    assert scrape(metrics, "stickyroute_backend_warnings") == {labelled(backend="b", code="kv_full"): 1}


def test_the_ring_and_its_changes() -> None:
    fleet = FakeFleet()
    metrics = metrics_of(fleet)
    assert scrape(metrics, "stickyroute_fleet_changes_total") == {(): 2}
    assert scrape(metrics, "stickyroute_moved_keys_share_total") == {(): 0.375}
    assert scrape(metrics, "stickyroute_backend_effective_weight")[labelled(backend="a")] == 1.0
    print_of_ring = scrape(metrics, "stickyroute_ring_fingerprint")[()]
    fleet.fingerprint = "1123456789abcdef"
    assert scrape(metrics, "stickyroute_ring_fingerprint")[()] != print_of_ring
    assert print_of_ring == int(print_of_ring)


def test_what_others_keep_is_shown_while_there_is_somebody_to_ask() -> None:
    metrics = metrics_of(FakeFleet())
    assert b"config_generation" not in text_of(metrics)
    ask_everybody(metrics)
    assert scrape(metrics, "stickyroute_config_reloads_total") == {
        labelled(result="applied"): 3,
        labelled(result="refused"): 1,
    }
    assert scrape(metrics, "stickyroute_config_last_reload_failed") == {(): 1}
    assert scrape(metrics, "stickyroute_prefix_break_tokens_total") == {
        labelled(place="system", kind="clock"): 2000
    }
    assert scrape(metrics, "stickyroute_shadow_decisions_total") == {
        labelled(policy="sticky", same="yes"): 7,
        labelled(policy="sticky", same="no"): 3,
    }
    assert scrape(metrics, "stickyroute_access_log_dropped_total") == {(): 5}


def test_what_is_learned_of_backends_is_shown() -> None:
    metrics = metrics_of(FakeFleet(backends=("a",)))
    for reason in ("home", "warm", "home"):
        metrics.decisions(reason)
    assert scrape(metrics, "stickyroute_backend_backlog_tokens") == {labelled(backend="a"): 1200}
    assert scrape(metrics, "stickyroute_backend_prefill_tokens_per_second") == {labelled(backend="a"): 8000}
    assert scrape(metrics, "stickyroute_backend_trust") == {labelled(backend="a"): 0.75}
    assert scrape(metrics, "stickyroute_kappa") == {(): 0.5}
    assert scrape(metrics, "stickyroute_decisions_total") == {
        labelled(reason="home"): 2,
        labelled(reason="warm"): 1,
    }


def test_what_engines_say_is_shown_with_its_age_and_what_they_do_not_say_is_not() -> None:
    fleet = FakeFleet(backends=("a", "b", "c"))
    now_s = monotonic()
    fleet.samples = {
        0: (Sample(kv_utilization=0.5, running=3, waiting=0), now_s - 60),
        1: (Sample(running=1), now_s),
    }
    metrics = metrics_of(fleet)
    a, b = labelled(backend="a"), labelled(backend="b")
    assert scrape(metrics, "stickyroute_backend_kv_utilization") == {a: 0.5}
    assert scrape(metrics, "stickyroute_backend_engine_running") == {a: 3, b: 1}
    assert scrape(metrics, "stickyroute_backend_engine_waiting") == {a: 0}
    ages = scrape(metrics, "stickyroute_backend_sample_age_seconds")
    assert ages.keys() == {a, b}
    assert ages[a] >= ages[b] + 60


def test_build_and_process_are_shown() -> None:
    metrics = metrics_of(FakeFleet())
    ((labels, value),) = scrape(metrics, "stickyroute_build_info").items()
    assert dict(labels)["version"] == "1.2.3"
    assert dict(labels)["build"] == ("compiled" if compiled() else "interpreted")
    assert value == 1
    assert scrape(metrics, "process_resident_memory_bytes")[()] > 1_000_000
