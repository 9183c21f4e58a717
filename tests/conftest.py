"""How property tests look for examples: the same ones in every run, or with `--hypothesis-profile explore` many new."""

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100, suppress_health_check=_SLOW)
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=_SLOW)
settings.load_profile("fixed")
