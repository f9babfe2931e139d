-- For Wireshark and tshark from 4.0 on (Lua 5.2, from 4.4 on Lua 5.4): what docs/EXTENSIONS.md adds to RoCE v2, and
-- whether each ICRC is right.
--
--     tshark -X lua_script:tools/wireshark/uroce.lua -r capture.pcap -O uroce
--     tshark -X lua_script:tools/wireshark/uroce.lua -r capture.pcap -Y 'uroce.icrc == "bad" || uroce.attempt > 0'
--
-- Wireshark loads it by itself from its folder of personal plugins (Help, About, Folders).
--
-- It is a post-dissector: the stock dissectors say what they always say, and a tree «uroce» comes after theirs. It reads
-- the frame's own bytes, Ethernet with at most one VLAN tag, as `uroce decode` does, and never beyond what was captured.

-- Lua 5.2 has this library, Lua 5.3 and later have operators, which Lua 5.2 cannot read.
local bit32 = bit32 or load([[
    return {
        band = function(a, b) return a & b end,
        bor = function(a, b) return a | b end,
        bxor = function(a, b, c, d) return a ~ b ~ (c or 0) ~ (d or 0) end,
        bnot = function(a) return ~a & 0xffffffff end,
        btest = function(a, b) return a & b ~= 0 end,
        lshift = function(a, bits) return a << bits & 0xffffffff end,
        rshift = function(a, bits) return a >> bits end,
    }
]])()

local uroce = Proto("uroce", "uroce (RoCE v2: ICRC and extension)")

local KINDS = { [1] = "request", [2] = "selective acknowledge", [3] = "probe of a path", [4] = "further addresses",
    [5] = "hello", [6] = "report of answers", [7] = "request with an acknowledge", [8] = "telemetry" }

local DEADLINE_KINDS = { [1] = "request", [2] = "data", [3] = "report", [4] = "end", [5] = "refusal", [6] = "here" }
local DEADLINE_ENDS = { [1] = "complete", [2] = "cancelled", [3] = "deadline passed", [4] = "failed" }
local DEADLINE_REFUSALS = { [1] = "no such object", [2] = "other version", [3] = "other shape", [4] = "contradiction",
    [5] = "busy", [6] = "replaced or withdrawn", [7] = "request unknown", [8] = "symbols too long" }

local field = {
    icrc = ProtoField.string("uroce.icrc", "ICRC verdict", base.ASCII,
        "ok, bad, or absent when it cannot be judged: cut off by the snap length, or no room for it"),
    icrc_computed = ProtoField.uint32("uroce.icrc.computed", "ICRC computed", base.HEX,
        nil, nil, "What the ICRC should be"),
    offer = ProtoField.bool("uroce.offer", "Offer", 8,
        { "the sender understands the extension", "none" }, 0x40, "BTH byte 8"),
    extended = ProtoField.bool("uroce.extended", "Extended", 8,
        { "a trailer before the ICRC", "no trailer" }, 0x20, "BTH byte 8"),
    copy = ProtoField.uint8("uroce.copy", "Copy", base.DEC, nil, 0x1f,
        "BTH byte 8 of a READ response: how often the requester had asked for some again, modulo 32"),
    tag = ProtoField.uint32("uroce.tag", "Tag", base.HEX, nil, nil, "The receiver's nonce; 0 while it is not known"),
    trailer = ProtoField.bytes("uroce.trailer", "Trailer"),
    kind = ProtoField.uint8("uroce.kind", "Kind", base.DEC, KINDS, 0xf0),
    words = ProtoField.uint8("uroce.words", "Length in words", base.DEC, nil, 0x0f, "Of kinds 1 and 7"),
    index = ProtoField.uint24("uroce.index", "Index", base.DEC,
        nil, nil, "The packet's place in its message: 0 for the first"),
    attempt = ProtoField.uint8("uroce.attempt", "Attempt", base.DEC,
        nil, nil, "0 when the packet is sent for the first time, then one more each time, up to 255"),
    receive_number = ProtoField.uint24("uroce.receive_number", "Receive number", base.DEC,
        nil, nil, "How many messages of this connection before this one take a receive request"),
    reth_va = ProtoField.uint64("uroce.reth.va", "Virtual address of the message", base.HEX),
    reth_key = ProtoField.uint32("uroce.reth.key", "R_Key", base.HEX),
    reth_length = ProtoField.uint32("uroce.reth.length", "DMA length of the message", base.DEC),
    carried_psn = ProtoField.uint24("uroce.carried.psn", "Acknowledged PSN", base.DEC,
        nil, nil, "All requests up to this PSN have executed, as in the BTH of an acknowledge"),
    sack_trigger = ProtoField.uint24("uroce.sack.trigger", "Trigger", base.DEC,
        nil, nil, "The PSN of the request packet that arrived last"),
    sack_attempt = ProtoField.uint8("uroce.sack.attempt", "Attempt", base.DEC, nil, nil, "The trigger's"),
    sack_delay = ProtoField.uint16("uroce.sack.delay", "Delay", base.DEC,
        nil, nil, "How long ago the trigger arrived, in microseconds; 65535 for longer"),
    sack_marked = ProtoField.uint16("uroce.sack.marked", "Marked", base.DEC,
        nil, nil, "Request packets that arrived with «congestion experienced», modulo 2^16"),
    sack_trigger_marked = ProtoField.bool("uroce.sack.trigger_marked", "Trigger was marked", 8,
        { "it arrived with «congestion experienced»", "no" }, 0x01),
    sack_blocks = ProtoField.uint16("uroce.sack.blocks", "Blocks", base.DEC, nil, nil, "How many"),
    block = ProtoField.bytes("uroce.sack.block", "Block"),
    block_base = ProtoField.uint24("uroce.sack.block.base", "Base", base.DEC, nil, nil, "A PSN"),
    block_bits = ProtoField.uint64("uroce.sack.block.bits", "Bits", base.HEX,
        nil, nil, "Bit i, from the least significant on: PSN base + i was received"),
    block_received = ProtoField.string("uroce.sack.block.received", "Received", base.ASCII, "The PSNs that the bits stand for"),
    probe_path = ProtoField.uint8("uroce.probe.path", "Path", base.DEC, nil, nil, "Its number at the side that probes"),
    probe_answer = ProtoField.bool("uroce.probe.answer", "Answer", 8, { "an answer", "a probe" }, 0x01),
    probe_delay = ProtoField.uint16("uroce.probe.delay", "Delay", base.DEC,
        nil, nil, "How long the answer was owed, in microseconds; 65535 for longer"),
    probe_token = ProtoField.uint32("uroce.probe.token", "Token", base.HEX,
        nil, nil, "What tells the answers to a probe from all others"),
    address = ProtoField.ipv6("uroce.addresses.address", "Address", "IPv4 as ::ffff:a.b.c.d"),
    addresses_known = ProtoField.bool("uroce.addresses.known", "Known", 8,
        { "the sender knows the receiver's list", "no" }, 0x01),
    addresses_count = ProtoField.uint8("uroce.addresses.count", "Addresses", base.DEC, nil, nil, "How many"),
    hello_nonce = ProtoField.uint32("uroce.hello.nonce", "Nonce", base.HEX,
        nil, nil, "What the sender wants brought back as the tag of all that is sent to it"),
    hello_window = ProtoField.uint24("uroce.hello.window", "Window", base.DEC,
        nil, nil, "PSNs that the sender has in flight at the most"),
    hello_tags_from = ProtoField.uint24("uroce.hello.tags_from", "Tags from", base.DEC,
        nil, nil, "The PSN of the sender's first request with a tag"),
    hello_takes_carried = ProtoField.bool("uroce.hello.takes_carried", "Takes carried acknowledges", 8,
        { "requests to the sender may carry acknowledges", "no" }, 0x04),
    hello_knows = ProtoField.bool("uroce.hello.knows", "Knows", 8,
        { "the sender knows the receiver's nonce", "no" }, 0x01),
    answers_newest = ProtoField.uint24("uroce.answers.newest", "Newest", base.DEC,
        nil, nil, "The PSN of the READ response with data that arrived last"),
    answers_marked_newest = ProtoField.bool("uroce.answers.newest_marked", "Newest was marked", 8,
        { "it arrived with «congestion experienced»", "no" }, 0x01),
    answers_copy = ProtoField.uint8("uroce.answers.copy", "Copy", base.DEC, nil, 0xf8, "The newest's"),
    answers_delay = ProtoField.uint16("uroce.answers.delay", "Delay", base.DEC,
        nil, nil, "How long ago the newest arrived, in microseconds; 65535 for longer"),
    answers_marked = ProtoField.uint16("uroce.answers.marked", "Marked", base.DEC,
        nil, nil, "Such responses that arrived with «congestion experienced», modulo 2^16"),
    answers_arrived = ProtoField.uint24("uroce.answers.arrived", "Arrived", base.DEC,
        nil, nil, "Such responses that arrived, modulo 2^24"),
    hello_takes_telemetry = ProtoField.bool("uroce.hello.takes_telemetry", "Takes telemetry", 8,
        { "requests to the sender may have room for telemetry", "no" }, 0x08),
    telemetry = ProtoField.bytes("uroce.telemetry", "Telemetry"),
    telemetry_link = ProtoField.bytes("uroce.telemetry.link", "Link"),
    telemetry_rate = ProtoField.uint16("uroce.telemetry.rate", "Rate", base.DEC,
        nil, nil, "Of the link, in units of 100 Mb/s"),
    telemetry_queue = ProtoField.uint16("uroce.telemetry.queue", "Queue", base.DEC,
        nil, nil, "What waited when the packet left, in units of 256 bytes; 65535 for that and more"),
    telemetry_time = ProtoField.uint32("uroce.telemetry.time", "Time", base.DEC,
        nil, nil, "The switch's clock when the packet left, in nanoseconds modulo 2^32"),
    telemetry_sent = ProtoField.uint32("uroce.telemetry.sent", "Sent", base.DEC,
        nil, nil, "Bytes of frames that the link had sent by then, modulo 2^32"),
    telemetry_path = ProtoField.uint16("uroce.telemetry.path", "Path", base.HEX,
        nil, nil, "The exclusive-or of the switches' numbers"),
    telemetry_links = ProtoField.uint8("uroce.telemetry.links", "Links", base.DEC, nil, nil, "How many"),
    cnp = ProtoField.bool("uroce.cnp", "Congestion notification (CNP)", base.NONE, nil, nil,
        "The receiver's packets arrive with «congestion experienced» (IBTA A17.9.3)"),
    deadline_kind = ProtoField.uint8("uroce.deadline.kind", "Deadline mode", base.DEC, DEADLINE_KINDS),
    deadline_request = ProtoField.uint64("uroce.deadline.request", "Request", base.HEX, nil, nil, "Drawn by the receiver"),
    deadline_object = ProtoField.uint64("uroce.deadline.object", "Object", base.DEC),
    deadline_version = ProtoField.uint64("uroce.deadline.version", "Version", base.DEC),
    deadline_bytes = ProtoField.uint64("uroce.deadline.bytes", "Bytes of the object", base.DEC),
    deadline_block_bytes = ProtoField.uint32("uroce.deadline.block_bytes", "Bytes of a block", base.DEC),
    deadline_symbol_bytes = ProtoField.uint16("uroce.deadline.symbol_bytes", "Bytes of a symbol", base.DEC),
    deadline_repair = ProtoField.uint16("uroce.deadline.repair", "Repair symbols for a thousand", base.DEC),
    deadline_left = ProtoField.uint32("uroce.deadline.left", "Left", base.DEC, nil, nil, "Microseconds until the deadline"),
    deadline_part = ProtoField.uint8("uroce.deadline.part", "Part", base.DEC, nil, nil, "Of the request, from 0 on"),
    deadline_parts = ProtoField.uint8("uroce.deadline.parts", "Parts", base.DEC),
    deadline_runs = ProtoField.uint16("uroce.deadline.runs", "Runs", base.DEC, nil, nil, "How many"),
    deadline_run = ProtoField.bytes("uroce.deadline.run", "Run"),
    deadline_first = ProtoField.uint32("uroce.deadline.first", "First", base.DEC),
    deadline_count = ProtoField.uint32("uroce.deadline.count", "Count", base.DEC),
    deadline_number = ProtoField.uint32("uroce.deadline.number", "Number", base.DEC, nil, nil, "Of the datagram"),
    deadline_block = ProtoField.uint32("uroce.deadline.block", "Block", base.DEC),
    deadline_symbol = ProtoField.uint32("uroce.deadline.symbol", "Symbol", base.DEC,
        nil, nil, "Of the block; repair symbols come after its own"),
    deadline_checksum = ProtoField.uint32("uroce.deadline.checksum", "Checksum", base.HEX, nil, nil, "CRC-32 of the block"),
    deadline_payload = ProtoField.bytes("uroce.deadline.payload", "Payload"),
    deadline_sequence = ProtoField.uint32("uroce.deadline.sequence", "Sequence", base.DEC, nil, nil, "Of the report"),
    deadline_newest = ProtoField.uint32("uroce.deadline.newest", "Newest", base.DEC, nil, nil, "The number that arrived last"),
    deadline_delay = ProtoField.uint32("uroce.deadline.delay", "Delay", base.DEC,
        nil, nil, "Microseconds since the newest arrived"),
    deadline_ranges = ProtoField.uint16("uroce.deadline.ranges", "Ranges", base.DEC, nil, nil, "How many"),
    deadline_words = ProtoField.uint16("uroce.deadline.words", "Words", base.DEC, nil, nil, "How many"),
    deadline_word = ProtoField.bytes("uroce.deadline.word", "Whole blocks"),
    deadline_index = ProtoField.uint32("uroce.deadline.index", "Index", base.DEC, nil, nil, "Of the word: 64 blocks each"),
    deadline_bits = ProtoField.uint64("uroce.deadline.bits", "Bits", base.HEX, nil, nil, "A bit for each whole block"),
    deadline_end = ProtoField.uint8("uroce.deadline.end", "Reason of the end", base.DEC, DEADLINE_ENDS),
    deadline_refusal = ProtoField.uint8("uroce.deadline.refusal", "Reason of the refusal", base.DEC, DEADLINE_REFUSALS),
    hello_tags_all = ProtoField.bool("uroce.hello.tags_all", "Tags all", 8,
        { "all of the sender's requests have tags", "no" }, 0x02),
}
uroce.fields = field

local wrong = {
    icrc = ProtoExpert.new("uroce.icrc.wrong", "The ICRC is wrong", expert.group.CHECKSUM, expert.severity.ERROR),
    trailer = ProtoExpert.new("uroce.trailer.malformed", "The trailer cannot be",
        expert.group.MALFORMED, expert.severity.ERROR),
    cnp = ProtoExpert.new("uroce.cnp.malformed", "A CNP has 16 bytes after its BTH",
        expert.group.MALFORMED, expert.severity.ERROR),
    deadline = ProtoExpert.new("uroce.deadline.malformed", "The datagram of deadline mode cannot be",
        expert.group.MALFORMED, expert.severity.ERROR),
    place = ProtoExpert.new("uroce.trailer.misplaced", "A trailer of this kind does not belong to this opcode",
        expert.group.PROTOCOL, expert.severity.WARN),
    cut = ProtoExpert.new("uroce.trailer.cut", "The trailer was not captured",
        expert.group.UNDECODED, expert.severity.NOTE),
}
uroce.experts = wrong

uroce.prefs.validate = Pref.bool("Validate the ICRC", true, "Compute the ICRC of every RoCE v2 packet and compare")

local encapsulation = Field.new("frame.encap_type")

local ENCAPSULATION_ETHERNET = 1
local ROCE_PORT = 4791
local UDP_PROTOCOL = 17
local UDP_BYTES = 8
local BTH_BYTES = 12
local ICRC_BYTES = 4
local TAG_BYTES = 4

-- Bytes of extended headers between BTH and payload, by RC opcode (IBTA Table 38, A19); none where nothing stands.
local EXTENDED_HEADER_BYTES = {
    [0x03] = 4, [0x05] = 4, [0x06] = 16, [0x09] = 4, [0x0a] = 16, [0x0b] = 20, [0x0c] = 16, [0x0d] = 4, [0x0f] = 4,
    [0x10] = 4, [0x11] = 4, [0x12] = 12, [0x13] = 28, [0x14] = 28, [0x16] = 4, [0x17] = 4, [0x1c] = 20, [0x1d] = 16,
}

local READ_RESPONSE_FIRST, READ_RESPONSE_ONLY = 0x0d, 0x10
local ACKNOWLEDGE = 0x11
local CNP = 0x81
local CNP_BYTES = BTH_BYTES + 16 + ICRC_BYTES

-- Addresses of a trailer of kind 4 at the most.
local ADDRESSES_MAX = 7

-- SENDs, WRITEs, READ and atomic requests, FLUSHes and ATOMIC WRITEs.
local function is_request(opcode)
    return opcode <= 0x0c or opcode == 0x13 or opcode == 0x14 or opcode == 0x16 or opcode == 0x17 or opcode == 0x1c
        or opcode == 0x1d
end

-- WRITEs that have no RETH of their own: MIDDLE, LAST, LAST with immediate.
local function is_later_write(opcode)
    return opcode >= 0x07 and opcode <= 0x09
end

-- The ICRC: the CRC-32 of Ethernet, four bytes a step. TABLES[1] is for the last of them.
local TABLES = { {}, {}, {}, {} }
for value = 0, 255 do
    local crc = value
    for _ = 1, 8 do
        crc = bit32.band(crc, 1) == 1 and bit32.bxor(bit32.rshift(crc, 1), 0xedb88320) or bit32.rshift(crc, 1)
    end
    TABLES[1][value] = crc
end
for value = 0, 255 do
    for step = 2, 4 do
        local before = TABLES[step - 1][value]
        TABLES[step][value] = bit32.bxor(bit32.rshift(before, 8), TABLES[1][bit32.band(before, 0xff)])
    end
end

local function crc32(text)
    local bxor, band, rshift, byte = bit32.bxor, bit32.band, bit32.rshift, string.byte
    local t1, t2, t3, t4 = TABLES[1], TABLES[2], TABLES[3], TABLES[4]
    local crc, whole = 0xffffffff, #text - #text % 4
    for at = 1, whole, 4 do
        local a, b, c, d = byte(text, at, at + 3)
        local word = bxor(crc, a + b * 0x100 + c * 0x10000 + d * 0x1000000)
        crc = bxor(t4[band(word, 0xff)], t3[band(rshift(word, 8), 0xff)], t2[band(rshift(word, 16), 0xff)],
            t1[rshift(word, 24)])
    end
    for at = whole + 1, #text do
        crc = bxor(rshift(crc, 8), t1[band(bxor(crc, byte(text, at)), 0xff)])
    end
    return bit32.bnot(crc)
end

-- Where the parts of a RoCE v2 frame are; nil when it is none, or too little was captured to tell. `broken` when its
-- headers contradict each other: then nothing more is said about it here, since the stock dissectors do.
local function find_roce(tvb)
    local captured = tvb:captured_len()
    local function u8(at) return tvb(at, 1):uint() end
    local function u16(at) return tvb(at, 2):uint() end
    if captured < 14 then return nil end
    local ip, ether_type = 14, u16(12)
    if ether_type == 0x8100 or ether_type == 0x88a8 then
        if captured < 18 then return nil end
        ip, ether_type = 18, u16(16)
    end
    if captured <= ip then return nil end
    local udp, says, is_fragment, is_strange
    local version = bit32.rshift(u8(ip), 4)
    if ether_type == 0x0800 then
        local words = bit32.band(u8(ip), 0x0f)
        udp = ip + 4 * words
        if version ~= 4 or words < 5 or captured < udp + UDP_BYTES or u8(ip + 9) ~= UDP_PROTOCOL then return nil end
        says = u16(ip + 2)
        is_strange = words > 5
        is_fragment = bit32.band(u16(ip + 6), 0x3fff) ~= 0
        -- Only the first fragment has the ports.
        if bit32.band(u16(ip + 6), 0x1fff) ~= 0 then return nil end
    elseif ether_type == 0x86dd then
        udp = ip + 40
        if version ~= 6 or captured < udp + UDP_BYTES or u8(ip + 6) ~= UDP_PROTOCOL then return nil end
        says = 40 + u16(ip + 4)
    else
        return nil
    end
    if u16(udp + 2) ~= ROCE_PORT then return nil end
    local ip_bytes = udp - ip
    local udp_says = u16(udp + 4)
    local broken = is_fragment or is_strange or says > tvb:reported_len() - ip or says < ip_bytes + UDP_BYTES
        or udp_says > says - ip_bytes or udp_says < UDP_BYTES
    return { version = version, ip = ip, udp = udp, bth = udp + UDP_BYTES, stop = udp + udp_says, broken = broken }
end

-- The ICRC that the packet should have. What routers may change counts as ones, and so do eight bytes before it.
local function compute_icrc(tvb, roce)
    local headers_end = roce.bth + BTH_BYTES
    local bytes = { tvb:raw(roce.ip, headers_end - roce.ip):byte(1, -1) }
    local variant
    if roce.version == 4 then
        variant = { 1, 8, 10, 11 } -- type of service, time to live, header checksum
    else
        variant = { 1, 2, 3, 7 } -- traffic class, flow label, hop limit
        bytes[1] = bit32.bor(bytes[1], 0x0f)
    end
    local udp = roce.udp - roce.ip
    for _, at in ipairs(variant) do bytes[at + 1] = 0xff end
    for _, at in ipairs({ udp + 6, udp + 7, udp + UDP_BYTES + 4 }) do bytes[at + 1] = 0xff end
    local text = string.rep("\255", 8) .. string.char(table.unpack(bytes))
    local rest = roce.stop - ICRC_BYTES - headers_end
    if rest > 0 then text = text .. tvb:raw(headers_end, rest) end
    return crc32(text)
end

-- Verdicts by frame number, since Wireshark dissects a frame again whenever somebody looks at it: what the ICRC should
-- be where it is wrong, true where it is right.
local verdicts = {}
function uroce.init() verdicts = {} end

local function show_icrc(tvb, pinfo, tree, roce)
    local is_there = not roce.broken and tvb:captured_len() >= roce.stop and roce.stop - roce.bth >= BTH_BYTES + ICRC_BYTES
    if not is_there then
        tree:add(field.icrc, tvb(roce.udp, UDP_BYTES), "absent"):set_generated()
        return
    end
    local range = tvb(roce.stop - ICRC_BYTES, ICRC_BYTES)
    local verdict = verdicts[pinfo.number]
    if verdict == nil then
        local computed = compute_icrc(tvb, roce)
        verdict = computed == range:le_uint() or computed
        verdicts[pinfo.number] = verdict
    end
    if verdict == true then
        tree:add(field.icrc, range, "ok"):set_generated()
        return
    end
    local item = tree:add(field.icrc, range, "bad")
    item:set_generated()
    tree:add_le(field.icrc_computed, range, verdict):set_generated()
    item:add_proto_expert_info(wrong.icrc, string.format("The ICRC is %08x, it should be %08x", range:le_uint(), verdict))
end

-- «7, 9–12»: the PSNs that the bits of a block stand for; `high` and `low` are the halves of the bits.
local function received(base_psn, high, low)
    local parts, first = {}, nil
    for i = 0, 64 do
        local is_set = i < 64 and bit32.btest(i < 32 and low or high, bit32.lshift(1, i % 32))
        if is_set and not first then
            first = i
        elseif first and not is_set then
            local function psn(bit) return string.format("%d", (base_psn + bit) % 0x1000000) end
            table.insert(parts, first == i - 1 and psn(first) or psn(first) .. "–" .. psn(i - 1))
            first = nil
        end
    end
    return #parts > 0 and table.concat(parts, ", ") or "none"
end

local function show_request(tvb, tree, at, words)
    if words == 5 then
        tree:add(field.carried_psn, tvb(at, 3))
        tree:add(field.sack_attempt, tvb(at + 3, 1))
        tree:add(field.sack_trigger, tvb(at + 4, 3))
        tree:add(field.sack_trigger_marked, tvb(at + 7, 1))
        tree:add(field.sack_delay, tvb(at + 8, 2)):append_text(" µs")
        tree:add(field.sack_marked, tvb(at + 10, 2))
        at = at + 12
    elseif words == 6 then
        tree:add(field.reth_va, tvb(at, 8))
        tree:add(field.reth_key, tvb(at + 8, 4))
        tree:add(field.reth_length, tvb(at + 12, 4))
        at = at + 16
    end
    tree:add(field.index, tvb(at, 3))
    tree:add(field.attempt, tvb(at + 3, 1))
    tree:add(field.receive_number, tvb(at + 4, 3))
    tree:add(field.kind, tvb(at + 7, 1))
    tree:add(field.words, tvb(at + 7, 1))
end

local function show_acknowledge(tvb, tree, at, blocks)
    tree:add(field.sack_trigger, tvb(at, 3))
    tree:add(field.sack_attempt, tvb(at + 3, 1))
    tree:add(field.sack_delay, tvb(at + 4, 2)):append_text(" µs")
    tree:add(field.sack_marked, tvb(at + 6, 2))
    at = at + 8
    for _ = 1, blocks do
        local text = received(tvb(at, 3):uint(), tvb(at + 4, 4):uint(), tvb(at + 8, 4):uint())
        local block = tree:add(field.block, tvb(at, 12))
        block:set_text("Block: " .. text)
        block:add(field.block_base, tvb(at, 3))
        block:add(field.block_bits, tvb(at + 4, 8))
        block:add(field.block_received, tvb(at + 4, 8), text):set_generated()
        at = at + 12
    end
    tree:add(field.sack_blocks, tvb(at, 2))
    tree:add(field.sack_trigger_marked, tvb(at + 2, 1))
    tree:add(field.kind, tvb(at + 3, 1))
end

local function show_probe(tvb, tree, at)
    tree:add(field.probe_path, tvb(at, 1))
    tree:add(field.probe_answer, tvb(at + 1, 1))
    tree:add(field.probe_delay, tvb(at + 2, 2)):append_text(" µs")
    tree:add(field.probe_token, tvb(at + 4, 4))
    tree:add(field.kind, tvb(at + 11, 1))
end

local function show_addresses(tvb, tree, at, count)
    for _ = 1, count do
        tree:add(field.address, tvb(at, 16))
        at = at + 16
    end
    tree:add(field.addresses_known, tvb(at, 1))
    tree:add(field.addresses_count, tvb(at + 2, 1))
    tree:add(field.kind, tvb(at + 3, 1))
end

local function show_hello(tvb, tree, at)
    tree:add(field.hello_nonce, tvb(at, 4))
    tree:add(field.hello_window, tvb(at + 4, 3))
    tree:add(field.hello_tags_from, tvb(at + 7, 3))
    tree:add(field.hello_knows, tvb(at + 10, 1))
    tree:add(field.hello_tags_all, tvb(at + 10, 1))
    tree:add(field.hello_takes_carried, tvb(at + 10, 1))
    tree:add(field.hello_takes_telemetry, tvb(at + 10, 1))
    tree:add(field.kind, tvb(at + 11, 1))
end

local function show_answers(tvb, tree, at)
    tree:add(field.answers_newest, tvb(at, 3))
    tree:add(field.answers_marked_newest, tvb(at + 3, 1))
    tree:add(field.answers_copy, tvb(at + 3, 1))
    tree:add(field.answers_delay, tvb(at + 4, 2)):append_text(" µs")
    tree:add(field.answers_marked, tvb(at + 6, 2))
    tree:add(field.answers_arrived, tvb(at + 8, 3))
    tree:add(field.kind, tvb(at + 11, 1))
end

local TELEMETRY_BYTES = 64
local LINK_BYTES = 12
local LINKS_MAX = 5

local function show_telemetry(tvb, tree, at, links)
    local telemetry = tree:add(field.telemetry, tvb(at, TELEMETRY_BYTES))
    telemetry:set_text(string.format("Telemetry: %d links", links))
    for link = 0, links - 1 do
        local from = at + LINK_BYTES * link
        local record = telemetry:add(field.telemetry_link, tvb(from, LINK_BYTES))
        record:set_text(string.format("Link %d", link + 1))
        record:add(field.telemetry_rate, tvb(from, 2)):append_text(" × 100 Mb/s")
        record:add(field.telemetry_queue, tvb(from + 2, 2)):append_text(" × 256 bytes")
        record:add(field.telemetry_time, tvb(from + 4, 4)):append_text(" ns")
        record:add(field.telemetry_sent, tvb(from + 8, 4))
    end
    telemetry:add(field.telemetry_path, tvb(at + 60, 2))
    telemetry:add(field.telemetry_links, tvb(at + 62, 1))
    telemetry:add(field.kind, tvb(at + 63, 1))
end

-- Shows the tag that ends at `stop`, where the ICRC begins, and the trailer before it; no more than `room` bytes are left for both.
local function show_trailer(tvb, tree, opcode, room, stop)
    local function malformed(text)
        tree:add_proto_expert_info(wrong.trailer, "The trailer cannot be: " .. text)
    end
    if room < TAG_BYTES then return malformed("there is no room for its tag") end
    if tvb:captured_len() < stop then
        tree:add_proto_expert_info(wrong.cut)
        return
    end
    room, stop = room - TAG_BYTES, stop - TAG_BYTES
    tree:add(field.tag, tvb(stop, TAG_BYTES))
    -- Answers need none: data and its acknowledge are as ever.
    if not is_request(opcode) and (opcode ~= ACKNOWLEDGE or room == 0) then return end
    if room < 1 then return malformed("there is no room for it") end
    local last = tvb(stop - 1, 1):uint()
    local is_measured, links = last == 0x80, 0
    if is_measured then
        if room <= TELEMETRY_BYTES then return malformed("there is no room for telemetry and what it follows") end
        links = tvb(stop - 2, 1):uint()
        if links > LINKS_MAX then return malformed(string.format("telemetry of %d links", links)) end
        room, stop = room - TELEMETRY_BYTES, stop - TELEMETRY_BYTES
        last = tvb(stop - 1, 1):uint()
    end
    local kind, words = bit32.rshift(last, 4), bit32.band(last, 0x0f)
    local bytes, blocks, is_in_place
    if kind == 1 and (words == 2 or words == 6) then
        bytes = 4 * words
        is_in_place = is_request(opcode) and is_later_write(opcode) == (words == 6)
    elseif kind == 7 and words == 5 then
        bytes = 4 * words
        is_in_place = is_request(opcode) and not is_later_write(opcode)
    elseif kind == 2 and words == 0 then
        if room < 12 then return malformed(string.format("12 bytes at least, %d are there", room)) end
        blocks = tvb(stop - 4, 2):uint()
        bytes = 12 + 12 * blocks
        is_in_place = opcode == ACKNOWLEDGE
    elseif kind == 3 and words == 0 then
        bytes = 12
        is_in_place = opcode == ACKNOWLEDGE
    elseif kind == 4 and words == 0 then
        if room < 4 then return malformed(string.format("4 bytes at least, %d are there", room)) end
        blocks = tvb(stop - 2, 1):uint()
        if blocks > ADDRESSES_MAX then return malformed(string.format("%d addresses", blocks)) end
        bytes = 4 + 16 * blocks
        is_in_place = opcode == ACKNOWLEDGE
    elseif (kind == 5 or kind == 6) and words == 0 then
        bytes = 12
        is_in_place = opcode == ACKNOWLEDGE
    else
        return malformed(string.format("there is no 0x%02x", last))
    end
    -- An acknowledge has no payload, so its trailer is all that there is.
    if bytes > room or (opcode == ACKNOWLEDGE and kind >= 2 and bytes < room) then
        return malformed(string.format("it says %d bytes, %d are there", bytes, room))
    end
    -- In acknowledges, only what arrived goes with it.
    if is_measured and opcode == ACKNOWLEDGE and kind ~= 2 then is_in_place = false end
    local at = stop - bytes
    local trailer = tree:add(field.trailer, tvb(at, bytes))
    trailer:set_text(string.format("Trailer: %s, %d bytes", KINDS[kind], bytes))
    if not is_in_place then trailer:add_proto_expert_info(wrong.place) end
    if kind == 1 or kind == 7 then
        show_request(tvb, trailer, at, words)
    elseif kind == 2 then
        show_acknowledge(tvb, trailer, at, blocks)
    elseif kind == 3 then
        show_probe(tvb, trailer, at)
    elseif kind == 4 then
        show_addresses(tvb, trailer, at, blocks)
    elseif kind == 5 then
        show_hello(tvb, trailer, at)
    else
        show_answers(tvb, trailer, at)
    end
    if is_measured then show_telemetry(tvb, tree, stop, links) end
end

-- The bits of BTH byte 8 belong to the reliable connection's opcodes alone.
local function show_extension(tvb, tree, roce)
    if roce.broken or roce.stop - roce.bth < BTH_BYTES or tvb:captured_len() < roce.bth + BTH_BYTES then return end
    local opcode = tvb(roce.bth, 1):uint()
    if opcode > 0x1f then return end
    local flags = tvb(roce.bth + 8, 1)
    tree:add(field.offer, flags)
    tree:add(field.extended, flags)
    if not bit32.btest(flags:uint(), 0x20) then return end
    if opcode >= READ_RESPONSE_FIRST and opcode <= READ_RESPONSE_ONLY then tree:add(field.copy, flags) end
    local pad = bit32.band(bit32.rshift(tvb(roce.bth + 1, 1):uint(), 4), 3)
    local stop = roce.stop - ICRC_BYTES
    local room = stop - (roce.bth + BTH_BYTES + (EXTENDED_HEADER_BYTES[opcode] or 0) + pad)
    show_trailer(tvb, tree, opcode, room, stop)
end

local function show_notification(tvb, tree, roce)
    if roce.broken or roce.stop <= roce.bth or tvb:captured_len() <= roce.bth then return end
    local opcode = tvb(roce.bth, 1)
    if opcode:uint() ~= CNP then return end
    local item = tree:add(field.cnp, opcode, true)
    item:set_generated()
    if roce.stop - roce.bth ~= CNP_BYTES then item:add_proto_expert_info(wrong.cnp) end
end

-- Pairs of numbers, as runs of blocks and ranges of datagrams are.
local function show_runs(tvb, tree, at, count)
    for _ = 1, count do
        local run = tree:add(field.deadline_run, tvb(at, 8))
        local first, length = tvb(at, 4):uint(), tvb(at + 4, 4):uint()
        run:set_text(string.format("Run: %d from %d on", length, first))
        run:add(field.deadline_first, tvb(at, 4))
        run:add(field.deadline_count, tvb(at + 4, 4))
        at = at + 8
    end
    return at
end

local function show_deadline_request(tvb, tree, at)
    tree:add(field.deadline_object, tvb(at + 16, 8))
    tree:add(field.deadline_version, tvb(at + 24, 8))
    tree:add(field.deadline_bytes, tvb(at + 32, 8))
    tree:add(field.deadline_block_bytes, tvb(at + 40, 4))
    tree:add(field.deadline_symbol_bytes, tvb(at + 44, 2))
    tree:add(field.deadline_repair, tvb(at + 46, 2))
    tree:add(field.deadline_left, tvb(at + 48, 4)):append_text(" µs")
    tree:add(field.deadline_part, tvb(at + 52, 1))
    tree:add(field.deadline_parts, tvb(at + 53, 1))
    tree:add(field.deadline_runs, tvb(at + 54, 2))
    show_runs(tvb, tree, at + 56, tvb(at + 54, 2):uint())
end

local function show_deadline_data(tvb, tree, at, bytes)
    tree:add(field.deadline_version, tvb(at + 16, 8))
    tree:add(field.deadline_number, tvb(at + 24, 4))
    tree:add(field.deadline_block, tvb(at + 28, 4))
    tree:add(field.deadline_symbol, tvb(at + 32, 4))
    tree:add(field.deadline_checksum, tvb(at + 36, 4))
    tree:add(field.deadline_payload, tvb(at + 40, bytes - 40))
end

local function show_deadline_report(tvb, tree, at)
    tree:add(field.deadline_sequence, tvb(at + 16, 4))
    tree:add(field.deadline_left, tvb(at + 20, 4)):append_text(" µs")
    tree:add(field.deadline_newest, tvb(at + 24, 4))
    tree:add(field.deadline_delay, tvb(at + 28, 4)):append_text(" µs")
    tree:add(field.deadline_ranges, tvb(at + 32, 2))
    tree:add(field.deadline_words, tvb(at + 34, 2))
    local next = show_runs(tvb, tree, at + 40, tvb(at + 32, 2):uint())
    for _ = 1, tvb(at + 34, 2):uint() do
        local word = tree:add(field.deadline_word, tvb(next, 12))
        word:add(field.deadline_index, tvb(next, 4))
        word:add(field.deadline_bits, tvb(next + 4, 8))
        next = next + 12
    end
end

local function show_deadline_refusal(tvb, tree, at)
    tree:add(field.deadline_refusal, tvb(at + 16, 1))
    tree:add(field.deadline_block_bytes, tvb(at + 20, 4))
    tree:add(field.deadline_version, tvb(at + 24, 8))
    tree:add(field.deadline_bytes, tvb(at + 32, 8))
end

-- How many bytes a datagram of deadline mode has to have, by what it says; of data at least as many.
local function deadline_bytes(tvb, at, bytes, kind)
    if kind == 1 then return bytes < 56 and 56 or 56 + 8 * tvb(at + 54, 2):uint() end
    if kind == 2 then return math.max(bytes, 41) end
    if kind == 3 then return bytes < 40 and 40 or 40 + 8 * tvb(at + 32, 2):uint() + 12 * tvb(at + 34, 2):uint() end
    return ({ [4] = 20, [5] = 40, [6] = 16 })[kind]
end

local UD_SEND_ONLY = 0x64
local DETH_BYTES = 8
local DEADLINE_HEADER_BYTES = 16
local DEADLINE_MAGIC = "uDL1"

-- Deadline mode is the payload of SENDs of unreliable datagrams that begins with its magic.
local function show_deadline(tvb, tree, roce)
    local at = roce.bth + BTH_BYTES + DETH_BYTES
    if roce.broken or tvb:captured_len() < roce.stop or roce.stop - ICRC_BYTES < at + DEADLINE_HEADER_BYTES then return end
    if tvb(roce.bth, 1):uint() ~= UD_SEND_ONLY or tvb:raw(at, 4) ~= DEADLINE_MAGIC then return end
    local pad = bit32.band(bit32.rshift(tvb(roce.bth + 1, 1):uint(), 4), 3)
    local bytes = roce.stop - ICRC_BYTES - pad - at
    local kind = tvb(at + 4, 1):uint()
    tree:add(field.deadline_kind, tvb(at + 4, 1))
    tree:add(field.deadline_request, tvb(at + 8, 8))
    local needed = deadline_bytes(tvb, at, bytes, kind)
    if needed ~= bytes then
        local text = needed and string.format("it says %d bytes, %d are there", needed, bytes) or "there is no such kind"
        tree:add_proto_expert_info(wrong.deadline, "The datagram of deadline mode cannot be: " .. text)
    elseif kind == 1 then
        show_deadline_request(tvb, tree, at)
    elseif kind == 2 then
        show_deadline_data(tvb, tree, at, bytes)
    elseif kind == 3 then
        show_deadline_report(tvb, tree, at)
    elseif kind == 4 then
        tree:add(field.deadline_end, tvb(at + 16, 1))
    elseif kind == 5 then
        show_deadline_refusal(tvb, tree, at)
    end
end

function uroce.dissector(tvb, pinfo, tree)
    local link = encapsulation()
    if link == nil or link.value ~= ENCAPSULATION_ETHERNET then return end
    local roce = find_roce(tvb)
    if roce == nil then return end
    local stop = math.min(math.max(roce.stop, roce.bth), tvb:captured_len())
    local branch = tree:add(uroce, tvb(roce.udp, stop - roce.udp))
    if uroce.prefs.validate then show_icrc(tvb, pinfo, branch, roce) end
    show_extension(tvb, branch, roce)
    show_notification(tvb, branch, roce)
    show_deadline(tvb, branch, roce)
end

register_postdissector(uroce)
