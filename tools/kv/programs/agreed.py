"""What the programs of both engines share: the plan, the control connection, and blocks whose contents can be checked.

A program is one of two sites. The one with a HOST posts the requests: it is the prefill side of a WRITE, and the decode side of
a READ. Results are JSON, one object a line, on stdout.
"""

import ctypes
import hashlib
import json
import math
import mmap
import os
import socket
import struct
import sys
import time

# Each block's bytes begin elsewhere in a pool of random bytes, so no block is like another, and no part like another part.
POOL_BYTES = 1 << 20
POOL_STEP = 251
# What arrived of a block is counted in pieces.
PIECE_BYTES = 64 << 10
# How long the sites wait for each other beyond the cell's own time.
PATIENCE_S = 120
# How often the site that posts asks whether a request is done.
POLL_S = 0.001


def say(**fields):
    print(json.dumps(fields), flush=True)


class Clock:
    """Milliseconds since the first request was near, and the cell's end."""

    def __init__(self, limit_s):
        self.start = time.monotonic()
        self.limit_ms = 1000 * limit_s

    def now_ms(self):
        return 1000 * (time.monotonic() - self.start)

    def is_over(self):
        return self.now_ms() > self.limit_ms


def scattered(blocks):
    """A page table: each block's place, no two neighbours side by side."""
    step = next(step for step in range(int(blocks * 0.618) | 1, 2 * blocks + 2) if math.gcd(step, blocks) == 1)
    return [block * step % blocks for block in range(blocks)]


def table(plan, is_scattered):
    return scattered(plan["blocks"]) if is_scattered else range(plan["blocks"])


def places(address, table, block_bytes):
    """Where each block is in an area that begins at an address."""
    return [address + place * block_bytes for place in table]


class Area:
    """Memory of blocks, which are filled and checked by transfer number."""

    def __init__(self, plan, is_scattered):
        self.blocks, self.block_bytes = plan["blocks"], plan["block_bytes"]
        self.table = table(plan, is_scattered)
        self.bytes = self.blocks * self.block_bytes
        self.memory = mmap.mmap(-1, self.bytes)
        self.view = memoryview(self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def places(self):
        return places(self.address, self.table, self.block_bytes)

    def _contents(self, seed):
        pool = hashlib.shake_256(struct.pack("!I", seed)).digest(POOL_BYTES)
        pool = memoryview(pool * (1 + math.ceil(self.block_bytes / POOL_BYTES)))
        for block, place in enumerate(self.table):
            at = block * POOL_STEP % POOL_BYTES
            yield place * self.block_bytes, pool[at : at + self.block_bytes]

    def fill(self, seed):
        for at, text in self._contents(seed):
            self.view[at : at + self.block_bytes] = text

    def arrived(self, seed, blocks):
        """Bytes of the first `blocks` blocks that are here, counted by pieces that are whole."""
        return sum(
            len(text[part : part + PIECE_BYTES])
            for _, (at, text) in zip(range(blocks), self._contents(seed))
            for part in range(0, self.block_bytes, PIECE_BYTES)
            if self.view[at + part : at + min(part + PIECE_BYTES, self.block_bytes)] == text[part : part + PIECE_BYTES]
        )


class Stream:
    """The control connection: JSON lines both ways."""

    def __init__(self, connection):
        connection.settimeout(PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection, self.lines = connection, connection.makefile("r")

    def send(self, thing):
        self.connection.sendall(json.dumps(thing).encode() + b"\n")

    def receive(self):
        line = self.lines.readline()
        if not line:
            sys.exit("the other site is gone")
        return json.loads(line)

    def ask(self, thing):
        self.send(thing)
        return self.receive()


def connected(host, port):
    """A connection to the other site, which may begin later than this one."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_S)


def meet(port, host):
    if host is not None:
        return Stream(connected(host, port))
    with socket.create_server(("", port)) as listener:
        listener.settimeout(PATIENCE_S)
        say(event="listens")
        return Stream(listener.accept()[0])


def serve(stream, area):
    """The site that posts nothing: fills its blocks when they will be read, and counts what was written."""
    while True:
        order = stream.receive()
        match order["do"]:
            case "fill":
                area.fill(order["seed"])
                stream.send({})
            case "count":
                stream.send({"arrived": area.arrived(order["seed"], order["blocks"])})
            case "end":
                stream.send({})
                # What the engine still has queued is of no interest, and closing it may take long.
                os._exit(0)


class Site:
    """The site that posts: its plan is a list of steps, each of which it measures."""

    def __init__(self, stream, area, plan, engine):
        self.stream, self.area, self.plan, self.engine = stream, area, plan, engine
        self.writes = plan["op"] == "WRITE"
        self.seed = 0
        self.clock = Clock(plan["limit_s"])

    def play(self):
        steps = {"transfer": self.transfer, "batches": self.batches, "pieces": self.pieces}
        for step in self.plan["steps"]:
            if not steps[step["step"]](step):
                break
        say(event="over")
        # Until somebody has looked at the connections.
        sys.stdin.read()
        self.stream.ask({"do": "end"})
        os._exit(0)

    def fill(self):
        self.seed += 1
        if self.writes:
            self.area.fill(self.seed)
        else:
            self.stream.ask({"do": "fill", "seed": self.seed})

    def arrived(self, blocks):
        if self.writes:
            return self.stream.ask({"do": "count", "seed": self.seed, "blocks": blocks})["arrived"]
        return self.area.arrived(self.seed, blocks)

    def end(self, blocks, **fields):
        """Tells of a step. What did not arrive whole although it is complete is an error."""
        cut = fields["cut"]
        bytes_ = blocks * self.area.block_bytes
        arrived = self.arrived(blocks)
        equal = None if cut else arrived == bytes_
        say(event="end", bytes=bytes_, arrived_bytes=arrived, contents_equal=equal, **fields)
        return not cut

    def move(self, blocks):
        """Moves blocks; whether they had arrived in time."""
        handle = self.engine.post(blocks)
        while not self.engine.is_done(handle):
            if self.clock.is_over():
                return False
            time.sleep(POLL_S)
        self.engine.release(handle)
        return True

    def transfer(self, step):
        """The first blocks at once."""
        blocks = step["blocks"]
        self.fill()
        begin_ms = self.clock.now_ms()
        done = self.move(range(blocks))
        return self.end(blocks, name=step["name"], transfer_ms=self.clock.now_ms() - begin_ms, cut=not done)

    def batches(self, step):
        """Requests of some blocks, one at a time."""
        each, count = step["batch_blocks"], step["count"]
        self.fill()
        spans, done = [], True
        places = self.area.blocks // each
        for number in range(count):
            first = number % places * each
            begin_ms = self.clock.now_ms()
            done = self.move(range(first, first + each))
            if not done:
                break
            spans.append(self.clock.now_ms() - begin_ms)
        blocks = min(len(spans), places) * each
        return self.end(blocks, name="batches", spans_ms=[round(span, 3) for span in spans], cut=not done)

    def pieces(self, step):
        """Pieces of a cache, each of which leaves when it is there; where there is no place left, in those of the first."""
        each, at_ms, limit = step["piece_blocks"], step["at_ms"], step["limit"]
        places = self.area.blocks // each
        self.fill()
        begin_ms = self.clock.now_ms()
        pending, spans = {}, [None] * len(at_ms)
        late, piece = set(), 0
        while piece < len(at_ms) or pending:
            now_ms = self.clock.now_ms() - begin_ms
            while piece < len(at_ms) and now_ms >= at_ms[piece]:
                first = piece % places * each
                pending[piece] = self.engine.post(range(first, first + each))
                spans[piece] = [round(at_ms[piece], 3), round(self.clock.now_ms() - begin_ms, 3)]
                piece += 1
            for number in [number for number, handle in pending.items() if self.engine.is_done(handle)]:
                spans[number].append(round(self.clock.now_ms() - begin_ms, 3))
                self.engine.release(pending.pop(number))
            if limit:
                due_ms = limit["due_ms"]
                late |= {number for number in pending if due_ms[number] and self.clock.now_ms() - begin_ms > due_ms[number]}
                if len(late) > limit["count"]:
                    break
            if self.clock.is_over():
                break
            time.sleep(POLL_S)
        cut = bool(pending) or piece < len(at_ms)
        return self.end(min(len(at_ms), places) * each, name="pieces", spans_ms=spans, cut=cut)
