"""A site with a Mooncake transfer engine: `mooncake_site.py PLAN PORT DEVICE ADDRESS` serves, and with HOST at the end it posts.

PLAN is JSON; its protocol is `rdma` or `tcp`.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import agreed
from mooncake.engine import TransferEngine


class Engine:
    """Requests of a Mooncake engine, over the blocks of both sites. Its calls wait, so threads wait in them."""

    def __init__(self, engine, op, name, block_bytes, here, there):
        self.submit = engine.batch_transfer_sync_write if op == "WRITE" else engine.batch_transfer_sync_read
        self.op, self.name, self.block_bytes, self.here, self.there = op, name, block_bytes, here, there
        self.threads = ThreadPoolExecutor(max_workers=64)

    def post(self, blocks):
        here, there = ([places[block] for block in blocks] for places in (self.here, self.there))
        return self.threads.submit(self.submit, self.name, here, there, [self.block_bytes] * len(here))

    def is_done(self, waiting):
        if waiting.done() and waiting.result() != 0:
            sys.exit(f"Mooncake's {self.op} failed")
        return waiting.done()

    def release(self, waiting):
        waiting.result()


plan, port, device, address, *host = sys.argv[1:]
plan, port = json.loads(plan), int(port)
area = agreed.Area(plan, is_scattered=not host)
engine = TransferEngine()
if engine.initialize(f"{address}:0", "P2PHANDSHAKE", plan["protocol"], device) != 0:
    sys.exit("the engine does not begin")
if engine.register_memory(area.address, area.bytes) != 0:
    sys.exit("memory is not registered")
stream = agreed.meet(port, host[0] if host else None)
if host:
    known = stream.receive()
    there = agreed.places(known["address"], agreed.table(plan, True), area.block_bytes)
    name = f"{host[0]}:{known['port']}"
    posts = Engine(engine, plan["op"], name, area.block_bytes, area.places(), there)
    agreed.Site(stream, area, plan, posts).play()
else:
    stream.send({"port": engine.get_rpc_port(), "address": area.address})
    agreed.serve(stream, area)
