"""A plain engine: nodes in a ring of sockets. Each passes on to the next what it has from the one before, so
that every byte enters and leaves a node once. It sleeps while it waits."""

import select
import socket
import time

CONNECT_SECONDS = 20
PIECE = 1 << 20


class Ring:
    """What onepot.stage() asks of a group: rank, size, allgather_into, broadcast."""

    def __init__(self, rank, size, listener, after):
        self.rank, self.size = rank, size
        self.after = self._connect(after)
        listener.settimeout(CONNECT_SECONDS)
        self.before, _ = listener.accept()
        listener.close()
        for end in (self.before, self.after):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def _connect(address):
        end = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                return socket.create_connection(address, CONNECT_SECONDS)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def pass_on(self, out, into):
        """Send one piece of memory while another one is filled."""
        while out or into:
            readable, writable, _ = select.select([self.before] if into else [], [self.after] if out else [], [])
            if writable:
                out = out[self.after.send(out[:PIECE]):]
            if readable:
                count = self.before.recv_into(into)
                if count == 0:
                    raise ConnectionError("the node before this one is gone")
                into = into[count:]

    def allgather_into(self, mine, blocks):
        view, count = memoryview(blocks), len(mine)

        def block(rank):
            at = rank % self.size * count
            return view[at:at + count]
        block(self.rank)[:] = mine
        for step in range(self.size - 1):
            self.pass_on(block(self.rank - step), block(self.rank - step - 1))

    def broadcast(self, block, root):
        view = memoryview(block)
        last = (self.rank + 1) % self.size == root
        for at in range(0, len(block), PIECE):
            if self.rank != root:
                self.pass_on(b"", view[at:at + PIECE])
            if not last:
                self.pass_on(view[at:at + PIECE], b"")
