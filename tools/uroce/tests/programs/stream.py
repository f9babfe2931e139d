"""Streams from Python, by ctypes over liburoce_transfer_c.so: bytes between two arrays, with a connection that breaks.

    stream.py LIBRARY
"""

import ctypes as c
import sys

NEVER = 2**64 - 1
GOES_ON, COMPLETE, FAILED = 0, 1, 2
MESSAGE, MS = 64, 1_000_000
P, u64, u32, size, text = c.c_void_p, c.c_uint64, c.c_uint32, c.c_size_t, c.c_char_p


class Stream(c.Structure):
    _fields_ = [("name", u64), ("version", u64), ("part_bytes", c.POINTER(u64)), ("part_count", size)]


class Place(c.Structure):
    _fields_ = [("address", u64), ("rkey", u32), ("outstanding", u32)]


class Post(c.Structure):
    _fields_ = [("offset", u64), ("address", u64), ("bytes", u32), ("rkey", u32), ("immediate", u32)]


class Conditions(c.Structure):
    _fields_ = [("rate_bps", c.c_double), ("round_trip_ns", u64), ("message_ns", u64), ("outstanding", u64)]


class Part(c.Structure):
    _fields_ = [("ready_ns", u64), ("bytes", u64)]


library = c.CDLL(sys.argv[1])
for name, result, arguments in [
    ("receiver_new", P, [c.POINTER(Stream), c.POINTER(Place), u64, u64, u64, text, size]),
    ("receiver_free", None, [P]),
    ("receiver_poll_message", c.c_int, [P, text]),
    ("receiver_handle_message", None, [P, u64, text, size]),
    ("receiver_handle_notification", None, [P, u64, u32, u32]),
    ("receiver_handle_broken", None, [P]),
    ("receiver_handle_timeout", None, [P, u64]),
    ("receiver_poll_timeout", u64, [P]),
    ("receiver_whole_bytes", u64, [P]),
    ("receiver_whole_parts", size, [P]),
    ("receiver_end", c.c_int, [P, text, size]),
    ("sender_new", P, [c.POINTER(Stream), size, u64, u64, text, size]),
    ("sender_free", None, [P]),
    ("sender_poll_message", c.c_int, [P, text]),
    ("sender_handle_message", None, [P, u64, text, size]),
    ("sender_invited", c.c_int, [P, c.POINTER(Place), c.POINTER(u64)]),
    ("sender_begin", c.c_int, [P, u64, u64, text, size]),
    ("sender_handle_ready", None, [P, size]),
    ("sender_poll_post", c.c_int, [P, u64, c.POINTER(Post)]),
    ("sender_handle_completion", None, [P, u64]),
    ("sender_handle_broken", None, [P]),
    ("sender_handle_timeout", None, [P, u64]),
    ("sender_poll_timeout", u64, [P]),
    ("sender_whole_bytes", u64, [P]),
    ("sender_whole_parts", size, [P]),
    ("sender_end", c.c_int, [P, text, size]),
    ("warm_up_new", P, [u64, size]),
    ("warm_up_free", None, [P]),
    ("warm_up_poll_post", u64, [P, u64]),
    ("warm_up_handle_completion", None, [P, u64]),
    ("warm_up_conditions", c.c_int, [P, c.POINTER(Conditions)]),
    ("choose", u64, [c.POINTER(Conditions), c.POINTER(Part), size, u64]),
    ("total_ns", u64, [c.POINTER(Conditions), c.POINTER(Part), size, u64, u64]),
]:
    function = getattr(library, "uroce_stream_" + name)
    function.restype, function.argtypes = result, arguments
    globals()[name] = function

LENGTHS = [3000, 0, 5000, 1]
VALUES = bytes(i * i >> 5 & 0xFF for i in range(sum(LENGTHS)))
ADDRESS, RKEY = 0x700000001000, 0x99


def stream(version=1, lengths=LENGTHS):
    return Stream(7, version, (u64 * len(lengths))(*lengths), len(lengths))


def handshake(sent, wanted, held=0):
    """Both ends, once the sender has the invitation."""
    error, message = c.create_string_buffer(512), c.create_string_buffer(MESSAGE)
    receiver = receiver_new(c.byref(wanted), c.byref(Place(ADDRESS, RKEY, 4)), held, 0, MS, error, 512)
    sender = sender_new(c.byref(sent), 9, 0, MS, error, 512)
    assert receiver and sender, error.value
    assert receiver_poll_message(receiver, message) == 1 and receiver_poll_message(receiver, message) == 0
    sender_handle_message(sender, MS, message.raw, MESSAGE)
    return sender, receiver


def errors(sender, receiver):
    here, there = c.create_string_buffer(512), c.create_string_buffer(512)
    assert (sender_end(sender, here, 512), receiver_end(receiver, there, 512)) == (FAILED, FAILED)
    return here.value.decode(), there.value.decode()


def play(memory, held, breaks_after=None):
    """Sends what is not held; returns what is whole then, in bytes and parts, and how the receiver has ended."""
    sender, receiver = handshake(stream(), stream(), held)
    place, there, message, error = Place(), u64(), c.create_string_buffer(MESSAGE), c.create_string_buffer(512)
    assert sender_invited(sender, c.byref(place), c.byref(there)) == 1
    assert (place.address, place.rkey, place.outstanding, there.value) == (ADDRESS, RKEY, 4, held)
    assert sender_begin(sender, 0, MS, error, 512) == -1
    assert error.value == b"chunks of 0 bytes: 1 to 2147483648 are possible", error.value
    assert sender_begin(sender, 700, MS, error, 512) == 0, error.value
    assert sender_poll_message(sender, message) == 1
    receiver_handle_message(receiver, MS, message.raw, MESSAGE)
    post, count = Post(), 0
    for ready in range(len(LENGTHS) + 1):
        sender_handle_ready(sender, ready)
        while sender_poll_post(sender, MS, c.byref(post)) and count != breaks_after:
            assert (post.address, post.rkey, post.immediate) == (ADDRESS + post.offset, RKEY, count)
            assert post.offset + post.bytes <= sum(LENGTHS[:ready])
            memory[post.offset : post.offset + post.bytes] = VALUES[post.offset : post.offset + post.bytes]
            receiver_handle_notification(receiver, MS, post.immediate, post.bytes)
            sender_handle_completion(sender, MS)
            count += 1
    if count == breaks_after:
        sender_handle_broken(sender)
        receiver_handle_broken(receiver)
        assert errors(sender, receiver)[0].startswith("the connection failed")
    whole = receiver_whole_bytes(receiver), receiver_whole_parts(receiver)
    assert whole == (sender_whole_bytes(sender), sender_whole_parts(sender))
    assert count == breaks_after or (sender_poll_timeout(sender), receiver_poll_timeout(receiver)) == (NEVER, NEVER)
    end = receiver_end(receiver, error, 512)
    sender_free(sender)
    receiver_free(receiver)
    return *whole, end


memory = bytearray(len(VALUES))
assert play(memory, 0) == (8001, 4, COMPLETE) and memory == VALUES

# A connection that breaks after six chunks, and the rest over the next.
memory = bytearray(len(VALUES))
assert play(memory, 0, 6) == (4200, 2, FAILED) and memory[:4200] == VALUES[:4200]
assert play(memory, 4200) == (8001, 4, COMPLETE) and memory == VALUES

# What does not fit, at both ends.
sender, receiver = handshake(stream(), stream(lengths=[8001]))
message = c.create_string_buffer(MESSAGE)
assert sender_poll_message(sender, message) == 1
receiver_handle_message(receiver, MS, message.raw, MESSAGE)
here, there = errors(sender, receiver)
assert "4 parts here, and 1 at the peer" in here and "1 parts here, and 4 at the peer" in there, (here, there)
sender, receiver = handshake(stream(version=2), stream())
text = c.create_string_buffer(512)
assert sender_end(sender, text, 512) == FAILED and text.value.endswith(b"version 2 here, and version 1 at the peer"), text.value
receiver_handle_timeout(receiver, receiver_poll_timeout(receiver))
assert receiver_end(receiver, text, 512) == FAILED and text.value.startswith(b"nothing came from the peer for 10s"), text.value
assert not sender_new(c.byref(stream(lengths=[0])), 9, 0, MS, text, 512) and text.value.startswith(b"a stream of 0 bytes")
assert not receiver_new(c.byref(stream()), c.byref(Place(ADDRESS, RKEY, 0)), 0, 0, MS, text, 512) and b"outstanding" in text.value

# A line of 1 GB/s and 10 ms.
warm_up, conditions, now, free, ends = warm_up_new(1 << 24, 64), Conditions(), MS, MS, []
while not warm_up_conditions(warm_up, c.byref(conditions)):
    while length := warm_up_poll_post(warm_up, now):
        free = max(free, now) + length
        ends.append(free + 10 * MS)
    now = ends.pop(0)
    warm_up_handle_completion(warm_up, now)
warm_up_free(warm_up)
assert 0.95 < conditions.rate_bps / 8e9 < 1.01 and 10 * MS <= conditions.round_trip_ns < 10.1 * MS, conditions.rate_bps

# 32 layers of 4 MiB, a millisecond each: transfer takes longer, and a chunk of 64 on their way carries the round trip.
layers = (Part * 32)(*(Part(layer * MS, 4 << 20) for layer in range(1, 33)))
chosen = choose(c.byref(conditions), layers, 32, 0)
times = {1 << power: total_ns(c.byref(conditions), layers, 32, 0, 1 << power) for power in range(16, 28)}
assert chosen in times and times[chosen] <= 1.01 * min(times.values()), (chosen, times)
assert times[1 << 16] > times[chosen] < times[1 << 27]
assert total_ns(c.byref(conditions), layers, 32, 128 << 20, chosen) == 0
print("all streams compared")
