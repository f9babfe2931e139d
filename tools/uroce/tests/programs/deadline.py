"""Deadline mode from Python, by ctypes over liburoce_transfer_c.so: a transfer in memory that loses every tenth datagram.

    deadline.py LIBRARY
"""

import ctypes as c
import sys

NEVER = 2**64 - 1
COMPLETE, PASSED, FAILED = 1, 2, 4


class Run(c.Structure):
    _fields_ = [("first", c.c_uint32), ("count", c.c_uint32)]


class Request(c.Structure):
    _fields_ = [
        ("object", c.c_uint64), ("version", c.c_uint64), ("bytes", c.c_uint64), ("block_bytes", c.c_uint32),
        ("symbol_bytes", c.c_uint16), ("repair_per_mille", c.c_uint16), ("deadline_ns", c.c_uint64),
        ("patience_ns", c.c_uint64), ("runs", c.POINTER(Run)), ("run_count", c.c_size_t),
    ]


class Object(c.Structure):
    _fields_ = [
        ("object", c.c_uint64), ("version", c.c_uint64), ("block_bytes", c.c_uint32), ("values", c.c_char_p),
        ("bytes", c.c_uint64),
    ]


library = c.CDLL(sys.argv[1])
P, u64, u32, size, text = c.c_void_p, c.c_uint64, c.c_uint32, c.c_size_t, c.c_char_p
for name, result, arguments in [
    ("receiver_new", P, [u64, c.POINTER(Request), u64, text, size]),
    ("receiver_free", None, [P]),
    ("receiver_handle_datagram", None, [P, u64, text, size]),
    ("receiver_poll_transmit", size, [P, u64, text, size]),
    ("receiver_poll_timeout", u64, [P]),
    ("receiver_handle_timeout", None, [P, u64]),
    ("receiver_end", c.c_int, [P, text, size]),
    ("receiver_block", P, [P, u32, c.POINTER(size)]),
    ("receiver_whole", c.POINTER(u64), [P, c.POINTER(u32)]),
    ("receiver_missing", size, [P, c.POINTER(Run), size]),
    ("receiver_set_deadline", c.c_int, [P, u64, u64]),
    ("receiver_cancel", None, [P]),
    ("history_new", P, [c.c_uint16]),
    ("history_free", None, [P]),
    ("history_record", None, [P, P, u64]),
    ("history_deadline", u64, [P, u64]),
    ("sender_new", P, [text, size]),
    ("sender_free", None, [P]),
    ("sender_offer", c.c_int, [P, c.POINTER(Object)]),
    ("sender_withdraw", None, [P, u64]),
    ("sender_handle_datagram", None, [P, u64, text, size]),
    ("sender_poll_transmit", size, [P, u64, text, size]),
    ("sender_poll_timeout", u64, [P]),
    ("sender_handle_timeout", None, [P, u64]),
    ("sender_requests", size, [P]),
]:
    function = getattr(library, "uroce_deadline_" + name)
    function.restype, function.argtypes = result, arguments
    globals()[name] = function

BLOCK, BLOCKS, SYMBOL, MS = 10_000, 30, 1024, 1_000_000
VALUES = bytes(i * i >> 5 & 0xFF for i in range(BLOCK * BLOCKS - 77))


def request(version=3, deadline_ns=10_000 * MS, repair=0, runs=None):
    kept = (Run * len(runs))(*(Run(*run) for run in runs)) if runs else None
    return Request(7, version, len(VALUES), BLOCK, SYMBOL, repair, deadline_ns, 0, kept, len(runs) if runs else 0), kept


def play(asked, until_ns=NEVER):
    """Plays a transfer, and returns its receiver, how it ended and why."""
    error, buffer = c.create_string_buffer(512), c.create_string_buffer(4096)
    receiver = receiver_new(99, c.byref(asked[0]), MS, error, 512)
    assert receiver, error.value
    sender = sender_new(bytes(range(32)), 4096)
    assert sender_offer(sender, c.byref(Object(7, 3, BLOCK, VALUES, len(VALUES)))) == 0
    now, count = MS, 0
    while not receiver_end(receiver, error, 512) and now < until_ns:
        while length := receiver_poll_transmit(receiver, now, buffer, 4096):
            sender_handle_datagram(sender, now, buffer.raw[:length], length)
        while length := sender_poll_transmit(sender, now, buffer, 4096):
            count += 1
            if count % 10:
                receiver_handle_datagram(receiver, now + MS // 2, buffer.raw[:length], length)
        now = max(min(receiver_poll_timeout(receiver), sender_poll_timeout(sender)), now + MS)
        receiver_handle_timeout(receiver, now)
        sender_handle_timeout(sender, now)
    end = receiver_end(receiver, error, 512)
    sender_free(sender)
    return receiver, end, error.value.decode()


def whole(receiver):
    blocks, length = u32(), size()
    words = receiver_whole(receiver, c.byref(blocks))
    assert blocks.value == BLOCKS
    found = [block for block in range(BLOCKS) if words[block // 64] >> block % 64 & 1]
    for block in range(BLOCKS):
        at = receiver_block(receiver, block, c.byref(length))
        assert (at is not None) == (block in found)
        if at:
            assert c.string_at(at, length.value) == VALUES[block * BLOCK :][:BLOCK], block
    return found


receiver, end, _ = play(request())
assert (end, whole(receiver)) == (COMPLETE, list(range(BLOCKS)))
receiver_free(receiver)

receiver, end, _ = play(request(repair=300, runs=[(20, 5), (0, 2)]))
assert (end, whole(receiver)) == (COMPLETE, [0, 1, 20, 21, 22, 23, 24])
receiver_free(receiver)

# The deadline comes first: what is missing is exactly what is not whole.
receiver, end, _ = play(request(deadline_ns=2 * MS))
found, runs = whole(receiver), (Run * BLOCKS)()
count = receiver_missing(receiver, runs, BLOCKS)
missing = [block for run in runs[:count] for block in range(run.first, run.first + run.count)]
assert end == PASSED and sorted(found + missing) == list(range(BLOCKS)) and missing, (end, found, missing)
assert receiver_set_deadline(receiver, 9 * MS, 3 * MS) == -1
receiver_free(receiver)

receiver, end, error = play(request(version=4))
assert end == FAILED and "it has version 3" in error, (end, error)
receiver_free(receiver)

error = c.create_string_buffer(512)
assert not receiver_new(1, c.byref(request(runs=[(4, 2), (5, 1)])[0]), MS, error, 512)
assert error.value == b"block 5 is wanted twice", error.value
assert not receiver_new(1, c.byref(request(deadline_ns=1)[0]), MS, error, 512)
assert error.value.startswith(b"the deadline passed"), error.value
assert not history_new(0) and not history_new(1000)
history = history_new(900)
assert history_deadline(history, 1000) == 0
complete, _, _ = play(request())
passed, _, _ = play(request(deadline_ns=2 * MS))
failed, _, _ = play(request(version=4))
for took in range(1, 21):
    history_record(history, complete, took * MS)
    history_record(history, failed, MS)
assert history_deadline(history, len(VALUES)) == 18 * MS
for _ in range(200):
    history_record(history, passed, 18 * MS)
assert history_deadline(history, len(VALUES)) == 2 * 18 * MS
for receiver in complete, passed, failed:
    receiver_free(receiver)
history_free(history)
print("all transfers compared")
