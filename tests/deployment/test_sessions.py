"""Tests of the sessions that `palaestra serve` keeps."""

import pytest

from palaestra.deployment.served_policy import RefusedError, Sessions


def test_as_many_sessions_that_were_evicted_are_known_by_name_as_are_kept():
    """The others are strangers: memory does not grow with the number of clients."""
    sessions, keys = Sessions(2), []
    for _ in range(5):
        session = sessions.begin("policy", None, 1)
        session.busy = False
        keys.append(session.key)
    said = []
    for key in keys[:3]:
        with pytest.raises(RefusedError) as refused:
            sessions.take(key, "policy")
        said.append(refused.value.status)
    assert said == [404, 410, 410]
    assert [sessions.take(key, "policy").key for key in keys[3:]] == keys[3:]
