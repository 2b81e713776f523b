"""The address of a server: taken before anything that lasts, so that one in use is told at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fsm_spec.errors import UserError


@contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Hold a socket for each address of a host; they refuse connections until a server listens.

    Raises UserError for an address that cannot be had. Port 0 is any free one, the same on every address.
    """
    with ExitStack() as held:
        sockets: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                each = held.enter_context(socket.socket(family, kind, protocol))
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:  # what is IPv4 has a socket of its own
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                chosen = sockets[0].getsockname()[1] if sockets else port
                each.bind((address[0], chosen, *address[2:]))
                # While both ends of a conflict allow reuse, Linux lets others bind what nobody listens at yet.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                sockets.append(each)
        except (OSError, UnicodeError) as error:  # the latter of names that are none
            raise not_had(host, port, error) from None
        yield sockets


def allow_restart(sockets: Sequence[socket.socket]) -> None:
    """Prepare sockets to listen: connections inherit reuse, without which their remains would hold up a restart."""
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def not_had(host: str, port: int, error: OSError | UnicodeError) -> UserError:
    """Say why an address cannot be had, and what to do."""
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return UserError(f"no address is known for the host {host!r}; choose another --host")
    place = f"{f'[{host}]' if ':' in host else host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UserError(f"{place} is in use; choose another --port, or 0")
    if error.errno == errno.EACCES:
        return UserError(f"{place} may not be taken; choose a --port above 1023")
    return UserError(f"{place} cannot be taken: {error.strerror}; choose another --host")
