"""A warm standby of an embedded platform: replication of the journal, fencing by terms and leases, and takeover."""
