"""Tests of `palaestra.runtime.denormals`."""

import pytest
import torch

from palaestra.runtime import FlushedDenormals


def flushes() -> bool:
    return (torch.tensor([2.0**-126]) * 0.5).item() == 0


def test_small_results_are_zero_inside_and_kept_outside():
    assert not flushes()
    with FlushedDenormals():
        assert flushes()
        with FlushedDenormals():
            assert flushes()
        assert flushes()
    assert not flushes()
    assert (torch.tensor([2.0**-126]) * 0.5).item() == 2.0**-127


def test_an_error_puts_back_what_was():
    with pytest.raises(RuntimeError, match="inside"), FlushedDenormals():
        raise RuntimeError("inside")
    assert not flushes()


def test_who_flushes_already_goes_on():
    torch.set_flush_denormal(True)
    try:
        with FlushedDenormals():
            pass
        assert flushes()
    finally:
        torch.set_flush_denormal(False)
