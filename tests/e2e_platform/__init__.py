"""Tests of a platform that runs in a process of its own."""
