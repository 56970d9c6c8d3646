"""Simulators that step many environments at once."""
