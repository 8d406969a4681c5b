"""Exact sums against `math.fsum` of all terms."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fl_core.base.exact_sum import ExactSum

TERMS = st.lists(
    st.one_of(
        st.floats(-1e300, 1e300), st.floats(0, 1), st.floats(0, 1e-12), st.sampled_from([0.1, -0.1, 1e16, 1e-300])
    ),
    max_size=60,
)


@given(TERMS, st.floats(-1e10, 1e10))
def test_an_exact_sum_is_that_of_all_terms_rounded_once(terms: list[float], other: float) -> None:
    total = ExactSum()
    for count, term in enumerate(terms, start=1):
        total.add(term)
        assert total.value() == math.fsum(terms[:count])
    assert total.subtracted_from(other, -0.1) == math.fsum([other, -0.1, *(-term for term in terms)])
