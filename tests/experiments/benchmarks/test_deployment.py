"""The cost of control in a deployed run, told by part."""

from experiments.benchmarks.deployment import round_cost


def test_the_cost_of_a_round_is_told_by_part() -> None:
    cost = round_cost("aqc", rounds=4)
    assert len(cost.charge) == 5  # the last call says that the run is over
    assert len(cost.observe) == len(cost.training) == len(cost.disk) == 4
    assert min(*cost.charge[:4], *cost.observe, *cost.disk, *cost.training) > 0
    assert 0 < cost.share < 1  # how large it is is the benchmark's to say
