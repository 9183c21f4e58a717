"""Tests of archives and point-in-time restore."""
