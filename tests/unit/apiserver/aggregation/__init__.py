"""Tests of aggregated APIs and port proxies."""
