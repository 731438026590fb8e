"""A proxy in place of the Service `front`: one address of this machine, which balances connections
over pods."""

import itertools
import socket
import threading

PORT = 50050


class Front:
    """Listens on 127.0.0.1 for the duration of a block."""

    def __init__(self):
        self.addresses = []
        """Of the pods that get new connections."""
        self._turns = itertools.count()

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", PORT))
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        # Ends `accept`, which `close` alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            addresses = self.addresses
            try:
                address = addresses[next(self._turns) % len(addresses)]
                server = socket.create_connection((address, PORT), timeout=5)
            except (OSError, ZeroDivisionError):
                client.close()
                continue
            server.settimeout(None)
            for pair in (client, server), (server, client):
                threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()
