"""One of two NIXL agents: `nixl_agent.py PORT` serves its memory, and `nixl_agent.py PORT HOST` writes into it and reads from it.

Each side compares every byte that it got. What the agents must know of each other goes over a TCP connection.
"""

import ctypes
import hashlib
import pickle
import socket
import struct
import sys
import time

from nixl._api import nixl_agent, nixl_agent_config

BYTES = 64 << 20
LIMIT_S = 60


def pattern(seed):
    return hashlib.shake_256(seed).digest(BYTES)


class Memory:
    """Registered memory: what comes in, and what goes out, which begins as `text`."""

    def __init__(self, agent, text):
        self.coming, self.going = ctypes.create_string_buffer(BYTES), ctypes.create_string_buffer(text, BYTES)
        parts = [(ctypes.addressof(part), BYTES, 0) for part in (self.coming, self.going)]
        agent.register_memory([part + ("",) for part in parts], "DRAM")
        self.coming_part, self.going_part = (agent.get_xfer_descs([part], "DRAM") for part in parts)


def send(stream, thing):
    text = pickle.dumps(thing)
    stream.sendall(struct.pack("!I", len(text)) + text)


def receive(stream):
    def read(count):
        text = b""
        while len(text) < count:
            some = stream.recv(count - len(text))
            if not some:
                sys.exit("the other agent is gone")
            text += some
        return text

    return pickle.loads(read(struct.unpack("!I", read(4))[0]))


def until(is_done, what):
    end = time.monotonic() + LIMIT_S
    while not is_done():
        if time.monotonic() > end:
            sys.exit(f"no {what} in {LIMIT_S} s")
        time.sleep(0.001)


def serve(stream):
    agent = nixl_agent("server", nixl_agent_config(backends=["UCX"]))
    memory = Memory(agent, pattern(b"read this"))
    parts = [agent.get_serialized_descs(part) for part in (memory.coming_part, memory.going_part)]
    send(stream, (agent.get_agent_metadata(), parts))
    for notice in (b"written", b"read"):
        until(lambda: agent.check_remote_xfer_done("client", notice), notice)
        send(stream, "noticed")
    receive(stream)
    if memory.coming.raw != pattern(b"written"):
        sys.exit("what was written differs")


def ask(stream):
    agent = nixl_agent("client", nixl_agent_config(backends=["UCX"]))
    memory = Memory(agent, pattern(b"written"))
    metadata, parts = receive(stream)
    agent.add_remote_agent(metadata)
    to, source = (agent.deserialize_descs(part) for part in parts)
    for operation, ours, theirs, notice in (
        ("WRITE", memory.going_part, to, b"written"),
        ("READ", memory.coming_part, source, b"read"),
    ):
        transfer = agent.initialize_xfer(operation, ours, theirs, "server", notice)
        states = [agent.transfer(transfer)]

        def is_done():
            states.append(agent.check_xfer_state(transfer))
            if "ERR" in states:
                sys.exit(f"{operation} failed")
            return states[-1] == "DONE"

        until(is_done, operation)
        receive(stream)
        agent.release_xfer_handle(transfer)
    if memory.coming.raw != pattern(b"read this"):
        sys.exit("what was read differs")
    send(stream, "done")


port = int(sys.argv[1])
if len(sys.argv) == 2:
    with socket.create_server(("", port)) as listener:
        serve(listener.accept()[0])
else:
    ask(socket.create_connection((sys.argv[2], port), LIMIT_S))
print("all bytes compared", flush=True)
