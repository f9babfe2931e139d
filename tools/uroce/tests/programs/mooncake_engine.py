"""One of two Mooncake transfer engines: `mooncake_engine.py DEVICE ADDRESS PORT` serves its memory, and with PEER at the end it
writes into the peer's and reads from it.

Each side compares every byte that it got. What the engines must know of each other goes over a TCP connection.
"""

import ctypes
import hashlib
import socket
import struct
import sys

from mooncake.engine import TransferEngine

BYTES = 16 << 20
LIMIT_S = 60
PLACES = struct.Struct("!QQI")


def pattern(seed):
    return hashlib.shake_256(seed).digest(BYTES)


device, address, port, *peer = sys.argv[1:]
engine = TransferEngine()
# It says 0 also when it finds no device and takes TCP; the frames tell.
if engine.initialize(f"{address}:0", "P2PHANDSHAKE", "rdma", device) != 0:
    sys.exit("the engine does not begin")
ours, theirs = (b"written", b"read this") if peer else (b"read this", b"written")
coming, going = ctypes.create_string_buffer(BYTES), ctypes.create_string_buffer(pattern(ours), BYTES)
for part in (coming, going):
    if engine.register_memory(ctypes.addressof(part), BYTES) != 0:
        sys.exit("memory is not registered")

if peer:
    stream = socket.create_connection((peer[0], int(port)), LIMIT_S)
    to, source, engine_port = PLACES.unpack(stream.recv(PLACES.size, socket.MSG_WAITALL))
    name = f"{peer[0]}:{engine_port}"
    if engine.transfer_sync_write(name, ctypes.addressof(going), to, BYTES) != 0:
        sys.exit("the write failed")
    if engine.transfer_sync_read(name, ctypes.addressof(coming), source, BYTES) != 0:
        sys.exit("the read failed")
    stream.sendall(b"!")
else:
    with socket.create_server(("", int(port))) as listener:
        stream = listener.accept()[0]
    stream.sendall(PLACES.pack(ctypes.addressof(coming), ctypes.addressof(going), engine.get_rpc_port()))
    if stream.recv(1) != b"!":
        sys.exit("the other engine is gone")
if coming.raw != pattern(theirs):
    sys.exit("what came differs")
print("all bytes compared", flush=True)
