"""Tests of the distributions that a release consists of."""
