"""Faults: a policy, a record, a watchdog, and where in their streams environments are."""
