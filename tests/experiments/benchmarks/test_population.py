from experiments.benchmarks.population import population_cost


def test_a_federation_of_any_size_is_measured() -> None:
    cost = population_cost(300, 20, "fedper", "iid")
    assert min(cost.start, cost.round, cost.evaluation) > 0
    assert cost.mebibytes > 50
