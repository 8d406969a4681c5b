"""Property tests draw the same examples every time, however long a busy machine takes over them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
