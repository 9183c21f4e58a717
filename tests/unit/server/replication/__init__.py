"""Tests of the replication to a standby."""
