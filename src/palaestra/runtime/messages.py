"""Values on their way to a worker and back: a small header, and arrays as plain bytes beside it.

Messages travel between the processes of one run only. Nothing that a run writes, and nothing a server receives, is
read this way.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import re
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import current_process, spawn
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from palaestra.core import ConfigError, PalaestraError, prefer_onednn
from palaestra.runtime.memory import keep_freed_memory

__all__ = ["Parcel", "ParcelLostError", "Shared", "sendable"]

_INLINE_BYTES = 1024  # smaller arrays travel in the header
_APART_BYTES = 64 << 10  # smaller parcels are not worth a name of their own
_KEPT = 8  # shared values that a worker remembers at most
_KEPT_BYTES = 64 << 20  # of all of them but those in use: weights of several policies, not the rows of eight updates
_FROM_SCRIPT = rb"\x8c\x08__main__|__main__:"  # a class or function of the script in a pickle, or named by text
_UNPICKLED = (AttributeError, TypeError, pickle.PicklingError)
_keys = itertools.count()


class Message(NamedTuple):
    """An encoded value."""

    header: bytes
    """Everything but large arrays."""
    buffers: list[np.ndarray]
    """The bytes of each large array: [n] uint8. They may still belong to the value."""

    @property
    def size_bytes(self) -> int:
        """Size of the header and the buffers together."""
        return len(self.header) + sum(buffer.nbytes for buffer in self.buffers)

    def copied(self) -> Message:
        """The same message, in memory of its own."""
        return Message(self.header, [buffer.copy() for buffer in self.buffers])


class Mapped(Message):
    """A message in memory that stays and that nobody changes, so that it is read without copying."""

    __slots__ = ()


class Shared:
    """A value that goes to each worker once, however often it is an argument: weights, say.

    It is encoded when it is made, so it stays what it was. A worker keeps those of its last call, and of older ones the
    newest up to eight and 64 MB; it must not change them.

    Args:
        value: anything that can be sent.

    Examples:
        >>> weights = Shared({"w": torch.ones(2)})
        >>> decode(weights.message)
        {'w': tensor([1., 1.])}
    """

    def __init__(self, value: Any) -> None:
        self.key = next(_keys)
        """Distinct for every shared value of this process."""
        self.message = encode(value).copied()
        """The value, encoded."""

    def view(self) -> Any:
        """The value in the memory of the message; it must not be changed."""
        return decode(Mapped(*self.message))


class ParcelLostError(PalaestraError):
    """What a parcel held is gone, with the machine that had it."""


class Parcel:
    """A value on its way from one worker to another, which the driver passes on and does not open.

    A worker returns it, alone or in a nest; the driver gives it to another as an argument of a call, and there it is
    opened. The driver moves its bytes as they are; or nothing but its name and label, where the value is large and the
    runtime has a store that all workers reach.

    Args:
        value: anything that can be sent.
        label: small, and with the parcel wherever it is: what the one who opens it has to know if the value is lost.

    Examples:
        >>> Parcel({"x": torch.ones(2)}).open()
        {'x': tensor([1., 1.])}
    """

    def __init__(self, value: Any, label: Any = None) -> None:
        self.content: Any = encode(value)
        """The value, encoded; or what a runtime knows it by where it is."""
        self.label = label
        """What was said of it."""

    @classmethod
    def of(cls, content: Any, label: Any) -> Parcel:
        """A parcel that was made elsewhere.

        Args:
            content: of it.
            label: of it.
        """
        parcel = cls.__new__(cls)
        parcel.content, parcel.label = content, label
        return parcel

    def open(self) -> Any:
        """The value; once, since it may lie in the memory of the parcel.

        Raises:
            ParcelLostError: it is gone.
        """
        if isinstance(self.content, Exception):
            raise self.content
        header, buffers = self.content
        return pickle.loads(header, buffers=[one if one.flags.writeable else one.copy() for one in buffers])


class SharedCache:
    """The newest shared values; driver and worker keep one each, and both do the same in the same order."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, tuple[Any, int]] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        """Whether a value is there.

        Args:
            key: `Shared.key`.
        """
        return key in self._values

    def __getitem__(self, key: int) -> Any:
        """A value, which is now the newest.

        Args:
            key: `Shared.key`.
        """
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: int, value: Any, size_bytes: int) -> None:
        """Keeps a value as the newest.

        Args:
            key: `Shared.key`.
            value: decoded; whatever the driver needs to know of it.
            size_bytes: of its message.
        """
        self._values[key] = value, size_bytes

    def forget(self, in_use: int) -> None:
        """Forgets the oldest values beyond the bounds, when all values of a request are there.

        Args:
            in_use: so many are the request's, the newest; they stay, for the next one may name them again.
        """
        size_bytes = sum(size for _, size in self._values.values())
        while len(self._values) > in_use > 0 and (size_bytes > _KEPT_BYTES or len(self._values) > _KEPT):
            _, (_, size) = self._values.popitem(last=False)
            size_bytes -= size


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return _reduced(obj) if isinstance(obj, Tensor) and obj.layout is torch.strided else NotImplemented


class _ClosurePickler(cloudpickle.Pickler):
    """Lambdas and local functions travel by value, with what they have bound; slower."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor) and obj.layout is torch.strided:
            return _reduced(obj)
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    """Puts parcels back that were left out."""

    parcels: Sequence[Any] = ()

    def persistent_load(self, pid: tuple[int, Any]) -> Parcel:
        number, label = pid
        return Parcel.of(self.parcels[number], label)


def _reduced(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().flatten()
    # one element may have any stride, and a view as bytes needs 1
    flat = flat.as_strided(flat.shape, (1,)).view(torch.uint8)
    return _tensor, (flat.numpy(), tensor.dtype, tuple(tensor.shape))


def _tensor(raw: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(raw).view(dtype).reshape(shape)


def encode(value: Any) -> Message:
    """A value as a message. Tensors arrive as plain CPU tensors, without gradients.

    Args:
        value: nests of tensors, arrays and anything else that can be pickled.

    Raises:
        ConfigError: a part cannot be sent; the message names it.
    """
    return encode_apart(value, 0)[0]


def encode_apart(value: Any, room: int) -> tuple[Message, list[Any]]:
    """A value as a message without the parcels in it, and what these hold.

    Args:
        value: see `encode`.
        room: for so many parcels; further ones, and small ones, stay in the message.

    Raises:
        ConfigError: see `encode`.
    """
    try:
        return _encoded(value, _Pickler, room)
    except _UNPICKLED:
        with _named(f"a {type(value).__name__}"):
            return _encoded(value, _ClosurePickler, room)


def _encoded(value: Any, pickler: Callable[..., Any], room: int) -> tuple[Message, list[Any]]:
    header, buffers, apart = io.BytesIO(), list[np.ndarray](), list[Any]()

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _INLINE_BYTES:
            return True  # in the header
        buffers.append(np.frombuffer(raw, np.uint8))
        return False

    def leave_out(obj: Any) -> tuple[int, Any] | None:
        if not isinstance(obj, Parcel) or len(apart) == room or obj.content.size_bytes < _APART_BYTES:
            return None
        apart.append(obj.content)
        return len(apart) - 1, obj.label

    made = pickler(header, protocol=5, buffer_callback=keep)
    if room:
        made.persistent_id = leave_out
    made.dump(value)
    return Message(header.getvalue(), buffers), apart


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """Says what cannot be sent."""
    try:
        yield
    except _UNPICKLED as error:
        raise ConfigError(
            f"{what} cannot be sent to a worker: {error}. Make what cannot be copied, such as locks, open files and "
            "connections, where it is used"
        ) from error


def decode(message: Message, parcels: Sequence[Any] = ()) -> Any:
    """The value of a message, in memory of its own.

    Args:
        message: from `encode`.
        parcels: what stands for those that were left out.

    Examples:
        >>> decode(encode({"x": np.zeros(2), "y": torch.arange(3)}))
        {'x': array([0., 0.]), 'y': tensor([0, 1, 2])}
    """
    buffers = message.buffers if isinstance(message, Mapped) else message.copied().buffers
    if not parcels:
        return pickle.loads(message.header, buffers=buffers)
    unpickler = _Unpickler(io.BytesIO(message.header), buffers=buffers)
    unpickler.parcels = parcels
    return unpickler.load()


class Factory:
    """What makes a worker's object, by value: each worker gets a copy of what is bound to it, modules and all.

    Lambdas and local functions are sent whole.

    What the script that runs has defined itself is found by importing the script where the worker lives, as Python's
    own processes do; so the script must lie there too.

    Args:
        make: called without arguments.

    Raises:
        ConfigError: it cannot be sent.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._name, self._process, self._script = repr(make), os.getpid(), None
        try:
            self._bytes = pickle.dumps(make)
            self._script = running_script() if re.search(_FROM_SCRIPT, self._bytes) else None
        except _UNPICKLED:
            with _named(self._name):
                self._bytes = cloudpickle.dumps(make)  # which takes what a script has defined by value

    def __call__(self) -> Any:
        """A new object.

        Raises:
            ConfigError: it needs something of a script that cannot be imported here.
        """
        if self._script is None or os.getpid() == self._process:
            return pickle.loads(self._bytes)()
        try:
            spawn.prepare(self._script)  # nothing, where it was done before
            make = pickle.loads(self._bytes)
        except (AttributeError, ImportError, OSError) as error:
            why = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise ConfigError(IN_A_SCRIPT.format(why)) from error
        if not self._script:
            raise ConfigError(IN_A_SCRIPT.format("there is no file to import it from"))
        return make()

    def __repr__(self) -> str:
        return self._name


def sendable(make: Callable[[], Any]) -> Callable[[], Any]:
    """A function that can be sent to another process: itself where it can, else with a lambda's own code.

    Args:
        make: called without arguments.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        pickle.dumps(make)
    except _UNPICKLED:
        return Factory(make)
    return make


IN_A_SCRIPT = (
    "a worker needs what was defined in a script, a notebook or at a prompt, and cannot get it there: {}. Move it "
    "into a module that can be imported wherever workers live, such as my_module.py beside the script, and name it as "
    "my_module:MyEnvironment"
)
"""What is wrong and what to do, where workers cannot import the script; with room for the reason."""


def running_script() -> dict[str, Any]:
    """What runs in this process, so that another can import it; nothing of a notebook.

    Returns:
        For `multiprocessing.spawn.prepare`: `init_main_from_name`, or `init_main_from_path`.
    """
    known = spawn.get_preparation_data("worker")
    return {key: value for key, value in known.items() if key in ("init_main_from_name", "init_main_from_path")}


def require_script() -> None:
    """Refuses a script that is no file where every new process has to import it.

    Raises:
        ConfigError: says so.
    """
    script = running_script().get("init_main_from_path")
    if script is not None and not os.path.exists(script):
        raise ConfigError(IN_A_SCRIPT.format(f"each process imports the script that runs, and {script} is no file"))


def require_guard() -> None:
    """Refuses to train where a new process of a run imports the script that began it.

    Raises:
        ConfigError: says so.
    """
    if getattr(current_process(), "_inheriting", False):
        raise ConfigError(
            "a new process of this run imports your script, which begins to train again there; put the code that "
            'trains under `if __name__ == "__main__":`'
        )


class Request(NamedTuple):
    """A call on its way to a worker."""

    method: str
    """The worker's object."""
    message: Message
    """The arguments, without the shared ones."""
    shared: dict[int | str, Shared]
    """These, by place or name."""
    parcels: dict[int | str, tuple[Any, Any]]
    """What a runtime knows parcels by that it keeps elsewhere, and their labels, by place or name."""

    @classmethod
    def of(cls, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """A request whose buffers still belong to the arguments.

        Args:
            method: to call.
            args: in order; those that are `Shared`, and parcels that lie elsewhere, are taken out.
            kwargs: by name; likewise.

        Raises:
            ConfigError: an argument cannot be sent.
        """
        everything: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        shared = {place: value for place, value in everything.items() if isinstance(value, Shared)}
        parcels = {
            place: (value.content, value.label)
            for place, value in everything.items()
            if isinstance(value, Parcel) and not isinstance(value.content, Message)
        }
        own = {place: value for place, value in everything.items() if place not in shared and place not in parcels}
        return cls(method, encode(own), shared, parcels)

    def copied(self) -> Request:
        """The same request, in memory of its own."""
        return self._replace(message=self.message.copied())


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
        self.facts = dict(getattr(error, "facts", {}))
        """See `PalaestraError.facts`."""


class _Unreadable(NamedTuple):
    """In the place of a shared value that could not be decoded."""

    error: Exception


class Performer:
    """A worker's object, and the shared values it was sent.

    Args:
        factory: makes the object; called by `begin`.
        threads: of torch, where the worker has a process of its own; `None` leaves the process as it is.
        onednn: whether oneDNN is preferred there, as in the process that made the worker.
    """

    def __init__(self, factory: Callable[[], Any], threads: int | None = None, *, onednn: bool = False) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
            prefer_onednn(onednn)
            keep_freed_memory()
            torch.set_flush_denormal(True)  # as training does, so that equal calls give equal numbers everywhere
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
        return self.perform_apart(method, message, shared, {}, 0)[0]

    def perform_apart(
        self,
        method: str,
        message: Message,
        shared: dict[int | str, tuple[int, Message | None]],
        parcels: dict[int | str, tuple[Any, Any]],
        room: int,
    ) -> tuple[Message | Failed, list[Any]]:
        """`perform`, where parcels do not travel with the rest.

        Args:
            method: its name.
            message: the other arguments.
            shared: see `perform`.
            parcels: contents and labels of arguments; an error in place of what is lost.
            room: parcels that an answer may have.

        Returns:
            What it returned, encoded, and the contents of the parcels in it; or `Failed`.
        """
        values = self._taken(shared)
        try:
            for value in values.values():
                if isinstance(value, _Unreadable):
                    raise value.error
            arguments = decode(message) | {place: Parcel.of(*one) for place, one in parcels.items()} | values
            places = sorted(place for place in arguments if isinstance(place, int))
            named = {name: value for name, value in arguments.items() if isinstance(name, str)}
            answer = getattr(self._target, method)(*(arguments[place] for place in places), **named)
            return encode_apart(answer, room)
        except Exception as error:
            return Failed(error), []

    def _taken(self, shared: dict[int | str, tuple[int, Message | None]]) -> dict[int | str, Any]:
        """The shared arguments. The driver counts on what was sent being kept, whatever becomes of the call."""
        values = dict[int | str, Any]()
        for place, (key, new) in shared.items():
            if new is not None and key not in self._shared:
                try:
                    value = decode(new)
                except Exception as error:
                    value = _Unreadable(error)
                self._shared.put(key, value, new.size_bytes)
            values[place] = self._shared[key]
        self._shared.forget(len({key for key, _ in shared.values()}))
        return values

    def close(self) -> Failed | None:
        """Lets the object close itself, where it can."""
        close = getattr(self._target, "close", None)
        self._target = None
        try:
            if close is not None:
                close()
        except Exception as error:
            return Failed(error)
        return None
