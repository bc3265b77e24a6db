"""Any mapping, for property tests."""

from hypothesis import strategies as st

from tilewave.mapping import (
    Mapping,
    folded,
    grouped,
    hilbert,
    last_first,
    linear,
    morton,
    paired,
    snake,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)

NUMBER = st.integers(1, 40)
ALONG = st.sampled_from("mn")
ORDERS = st.one_of(
    st.builds(linear, ALONG),
    st.builds(paired, ALONG),
    st.builds(grouped, NUMBER, ALONG),
    st.builds(snake, NUMBER, ALONG),
    st.builds(supertiles, NUMBER, NUMBER),
    st.sampled_from([morton(), hilbert()]),
)
RENUMBERINGS = st.one_of(
    st.builds(xcd_contiguous, NUMBER),
    st.builds(xcd_chunked, NUMBER, NUMBER),
    st.builds(last_first),
    st.builds(folded),
)
MAPPINGS = st.builds(Mapping, st.lists(RENUMBERINGS, max_size=2).map(tuple), ORDERS)
