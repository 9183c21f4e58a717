"""Tests of a platform that runs in a separate process."""
