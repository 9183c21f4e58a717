"""Tests of tokens of other issuers."""
