"""A site with a NIXL agent: `nixl_site.py PLAN PORT` serves, and `nixl_site.py PLAN PORT HOST` posts. PLAN is JSON."""

import base64
import json
import sys

import agreed
from nixl._api import nixl_agent, nixl_agent_config


class Engine:
    """Requests of a NIXL agent, over the blocks of both sites."""

    def __init__(self, agent, op, block_bytes, here, there):
        def prepared(name, places):
            return agent.prep_xfer_dlist(name, [(place, block_bytes, 0) for place in places], "DRAM")

        self.agent, self.op = agent, op
        self.here, self.there = prepared("NIXL_INIT_AGENT", here), prepared("serves", there)

    def post(self, blocks):
        blocks = list(blocks)
        handle = self.agent.make_prepped_xfer(self.op, self.here, blocks, self.there, blocks)
        if self.agent.transfer(handle) == "ERR":
            sys.exit(f"NIXL's {self.op} failed when it was posted")
        return handle

    def is_done(self, handle):
        state = self.agent.check_xfer_state(handle)
        if state == "ERR":
            sys.exit(f"NIXL's {self.op} failed")
        return state == "DONE"

    def release(self, handle):
        self.agent.release_xfer_handle(handle)


plan, port = json.loads(sys.argv[1]), int(sys.argv[2])
posts = len(sys.argv) > 3
area = agreed.Area(plan, is_scattered=not posts)
agent = nixl_agent("posts" if posts else "serves", nixl_agent_config(backends=["UCX"]))
agent.register_memory([(area.address, area.bytes, 0, "")], "DRAM")
stream = agreed.meet(port, sys.argv[3] if posts else None)
if posts:
    known = stream.receive()
    agent.add_remote_agent(base64.b64decode(known["agent"]))
    there = agreed.places(known["address"], agreed.table(plan, True), area.block_bytes)
    engine = Engine(agent, plan["op"], area.block_bytes, area.places(), there)
    agreed.Site(stream, area, plan, engine).play()
else:
    stream.send({"agent": base64.b64encode(agent.get_agent_metadata()).decode(), "address": area.address})
    agreed.serve(stream, area)
