"""What a worker does with a request, wherever it lives."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from palaestra.runtime.messages import Message, SharedCache, decode, encode

__all__ = ["Failed", "Performer"]


class Failed:
    """An exception as text, which any process can read.

    Args:
        error: that was raised.
    """

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        """Its class."""
        self.detail = "".join(traceback.format_exception(error))
        """Its traceback."""
        self.exit_code = int(getattr(error, "exit_code", 1))
        """What the command line ends with."""


class Performer:
    """A worker's object, and the shared values it was sent.

    Args:
        factory: makes the object; called by `begin`.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory, self._target, self._shared = factory, None, SharedCache()

    def begin(self) -> Failed | None:
        """Makes the object."""
        try:
            self._target = self._factory()
        except Exception as error:
            return Failed(error)
        return None

    def perform(
        self, method: str, message: Message, shared: dict[int | str, tuple[int, Message | None]]
    ) -> Message | Failed:
        """Calls a method.

        Args:
            method: its name.
            message: the other arguments.
            shared: key of each shared argument, and its message where it is new here.

        Returns:
            What it returned, encoded; or `Failed`.
        """
        try:
            arguments = decode(message)
            for place, (key, new) in shared.items():
                if new is not None and key not in self._shared:
                    self._shared.put(key, decode(new))
                arguments[place] = self._shared[key]
            places = sorted(place for place in arguments if isinstance(place, int))
            named = {name: value for name, value in arguments.items() if isinstance(name, str)}
            return encode(getattr(self._target, method)(*(arguments[place] for place in places), **named))
        except Exception as error:
            return Failed(error)

    def close(self) -> None:
        """Lets the object close itself, where it can."""
        close = getattr(self._target, "close", None)
        self._target = None
        if close is not None:
            close()
