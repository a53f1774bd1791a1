"""The choice between reading and computing follows the measured speeds."""

from swiftchat.engine.kv_store.speeds import Speeds


def test_unknown_speeds_mean_reading() -> None:
    speeds = Speeds()
    assert speeds.is_worth_reading("disk", 1 << 40, 1)
    speeds.measured_prefill(1000, 1.0)
    assert speeds.is_worth_reading("disk", 1 << 40, 1)


def test_the_faster_way_wins_and_a_slow_tier_is_tried_again() -> None:
    speeds = Speeds()
    speeds.measured_prefill(1000, 1.0)
    speeds.measured_read("disk", 1000, 1.0)
    assert speeds.is_worth_reading("disk", 90, 100)
    assert not speeds.is_worth_reading("disk", 120, 100)
    assert not speeds.is_worth_reading("disk", 120, 100)
    assert speeds.is_worth_reading("disk", 120, 100)  # counts as 21 % faster now
    assert speeds.is_worth_reading("host", 120, 100)


def test_another_engine_s_prefill_speed_counts_until_one_is_measured() -> None:
    speeds = Speeds()
    speeds.measured_read("disk", 1000, 1.0)
    assert not speeds.is_worth_reading("disk", 100, 1, prefill=100)
    speeds.measured_prefill(10, 10.0)  # too few tokens to count
    assert speeds.prefill is None
    speeds.measured_prefill(1000, 1000.0)
    assert speeds.is_worth_reading("disk", 100, 1, prefill=100)
