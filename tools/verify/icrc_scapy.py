#!/usr/bin/env python3
"""Checks the ICRC of every RoCE v2 frame of a pcap, twice: as scapy.contrib.roce computes it, and as written down here
from the IBTA's rules (7.8.1, A17.3.3) with zlib's CRC-32. Prints "<frame> ok" or "<frame> bad" a line, and
"<frame> scapy <verdict>, rules <verdict>" where the two disagree (exit status 1).

usage: icrc_scapy.py FILE
"""

import struct
import sys
import zlib

from scapy.compat import raw
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader, RawPcapReader

ROCE_PORT = 4791


def by_scapy(frame):
    """True or False; None when it is no RoCE v2 frame."""
    packet = Ether(frame)
    if UDP not in packet or packet[UDP].dport != ROCE_PORT or BTH not in packet:
        return None
    if IP not in packet and IPv6 not in packet:
        return None
    stored = struct.pack("!I", packet[BTH].icrc)
    return packet[BTH].compute_icrc(raw(packet[BTH])) == stored


def by_rules(frame):
    """The same from the bytes alone."""
    at = 14
    ether_type = frame[12:14]
    if ether_type in (b"\x81\x00", b"\x88\xa8"):
        ether_type = frame[16:18]
        at = 18
    if ether_type == b"\x08\x00":
        if frame[at] != 0x45 or frame[at + 9] != 17:
            return None
        udp = at + 20
        variant = [at + 1, at + 8, at + 10, at + 11]
    elif ether_type == b"\x86\xdd":
        if frame[at + 6] != 17:
            return None
        udp = at + 40
        variant = [at + 1, at + 2, at + 3, at + 7]
    else:
        return None
    if int.from_bytes(frame[udp + 2:udp + 4], "big") != ROCE_PORT:
        return None
    end = udp + int.from_bytes(frame[udp + 4:udp + 6], "big")
    pseudo = bytearray(frame[at:end - 4])
    if ether_type == b"\x86\xdd":
        pseudo[0] |= 0x0F
    for byte in variant + [udp + 6, udp + 7, udp + 8 + 4]:
        pseudo[byte - at] = 0xFF
    crc = zlib.crc32(b"\xff" * 8 + bytes(pseudo)) & 0xFFFFFFFF
    return struct.pack("<I", crc) == frame[end - 4:end]


def main(path):
    disagreements = 0
    with open(path, "rb") as file:
        is_pcapng = file.read(4) == b"\x0a\x0d\x0d\x0a"
    reader = (RawPcapNgReader if is_pcapng else RawPcapReader)(path)
    for number, (frame, _) in enumerate(reader, 1):
        scapy, rules = by_scapy(frame), by_rules(frame)
        if scapy is None and rules is None:
            continue
        if scapy == rules:
            print(number, "ok" if rules else "bad")
        else:
            print(number, f"scapy {scapy}, rules {rules}")
            disagreements += 1
    return 1 if disagreements else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[-1])
    sys.exit(main(sys.argv[1]))
