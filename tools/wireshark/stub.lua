-- As much of Wireshark's Lua interface as uroce.lua uses, for a plain Lua: shows that the script runs in each version.
--
--     lua5.4 tools/wireshark/stub.lua FRAMES
--
-- FRAMES has an Ethernet frame a line, in hexadecimal. Printed are the fields of each, a line a frame.

local path = arg[0]:gsub("[^/]*$", "")

local shown = {}

local Range = {}
Range.__index = Range

local function number(bytes)
    local value = 0
    for i = 1, #bytes do value = value * 256 + bytes:byte(i) end
    return value
end

function Range:uint() return number(self.bytes) end
function Range:le_uint() return number(self.bytes:reverse()) end
function Range:hex() return (self.bytes:gsub(".", function(c) return string.format("%02x", c:byte()) end)) end

local Tvb = {}
Tvb.__index = Tvb
function Tvb:captured_len() return #self.bytes end
function Tvb:reported_len() return #self.bytes end
function Tvb:raw(at, length) return self.bytes:sub(at + 1, at + length) end
function Tvb.__call(self, at, length)
    assert(at >= 0 and length >= 0 and at + length <= #self.bytes, "out of range")
    return setmetatable({ bytes = self.bytes:sub(at + 1, at + length) }, Range)
end

local Item = {}
Item.__index = Item
local function show(name, value) table.insert(shown, name .. "=" .. value) end
function Item:add(field, range, value)
    show(field.name, value == nil and range:hex() or type(value) == "number" and string.format("%08x", value) or tostring(value))
    return self
end
Item.add_le = Item.add
function Item:add_proto_expert_info(info, text) show(info.name, text or "") end
function Item:set_generated() return self end
function Item:set_text() return self end
function Item:append_text() return self end

local function named(name) return { name = name } end
local any_kind = { __index = function() return named end }
local any_name = { __index = function(_, name) return name end }

local protocol
function Proto(name)
    protocol = { name = name, prefs = {} }
    return protocol
end
ProtoField = setmetatable({}, any_kind)
ProtoExpert = { new = named }
Pref = { bool = function(_, default) return default end }
Field = { new = function() return function() return { value = 1 } end end }
base = setmetatable({}, any_name)
expert = { group = setmetatable({}, any_name), severity = setmetatable({}, any_name) }
function register_postdissector() end

dofile(path .. "uroce.lua")
protocol.init()

local frame = 0
for line in io.lines(arg[1]) do
    frame = frame + 1
    shown = {}
    local bytes = line:gsub("%x%x", function(byte) return string.char(tonumber(byte, 16)) end)
    protocol.dissector(setmetatable({ bytes = bytes }, Tvb), { number = frame }, setmetatable({}, Item))
    print(frame .. "\t" .. table.concat(shown, " "))
end
