-- Wireshark and tshark: data frames over UDP, control messages over TCP, as docs/protocol.md has them.
--
--   wireshark -X lua_script:analysis/dblp.lua results/.../captures/s1-w1.pcap
--   tshark -X lua_script:analysis/dblp.lua -r s1-w1.pcap -Y 'dblp.round == 6'
--
-- Control messages are known by the server's TCP port: it is the kernel's choice in each run, so give it as
-- "Decode As", or as -d tcp.port==PORT,dblp_control.

local TYPES = {
  [1] = "CHALLENGE", [2] = "HELLO", [3] = "WELCOME", [4] = "ROUND", [5] = "PROBE", [6] = "BITMAP", [7] = "PROGRESS",
  [8] = "STOP", [9] = "ERROR", [10] = "BYE",
}
local HEADER, PREFIX, CAP = 16, 5, 16777216

local data = Proto("dblp", "DBLP data frame")
local version = ProtoField.uint8("dblp.version", "Version")
local flags = ProtoField.uint8("dblp.flags", "Flags", base.HEX)
local length = ProtoField.uint16("dblp.length", "Length")
local session = ProtoField.uint32("dblp.session", "Session", base.HEX)
local round = ProtoField.uint32("dblp.round", "Round")
local sequence = ProtoField.uint32("dblp.sequence", "Sequence")
local chunk = ProtoField.bytes("dblp.chunk", "Chunk")
data.fields = {version, flags, length, session, round, sequence, chunk}

function data.dissector(buffer, pinfo, tree)
  if buffer:len() < HEADER or buffer(0, 1):uint() ~= 1 then return 0 end
  pinfo.cols.protocol = "DBLP"
  pinfo.cols.info = string.format("round %u chunk %u", buffer(8, 4):uint(), buffer(12, 4):uint())
  local branch = tree:add(data, buffer())
  branch:add(version, buffer(0, 1))
  branch:add(flags, buffer(1, 1))
  branch:add(length, buffer(2, 2))
  branch:add(session, buffer(4, 4))
  branch:add(round, buffer(8, 4))
  branch:add(sequence, buffer(12, 4))
  local size = math.min(buffer(2, 2):uint(), buffer:len() - HEADER)      -- captures may hold headers only
  if size > 0 then branch:add(chunk, buffer(HEADER, size)) end
  return buffer:len()
end

local control = Proto("dblp_control", "DBLP control message")
local c = {
  length = ProtoField.uint32("dblp_control.length", "Length"),
  type = ProtoField.uint8("dblp_control.type", "Type", base.DEC, TYPES),
  version = ProtoField.uint8("dblp_control.version", "Version"),
  nonce = ProtoField.bytes("dblp_control.nonce", "Nonce"),
  text = ProtoField.string("dblp_control.text", "Text", base.UNICODE),
  round = ProtoField.uint32("dblp_control.round", "Round"),
  tolerance = ProtoField.double("dblp_control.tolerance", "Tolerance"),
  in_clr = ProtoField.bool("dblp_control.in_clr", "In CLR"),
  pass = ProtoField.uint32("dblp_control.pass", "Pass"),
  delivered = ProtoField.uint32("dblp_control.delivered", "Delivered"),
  sequence = ProtoField.uint32("dblp_control.sequence", "Sequence"),
  stale = ProtoField.uint32("dblp_control.stale", "Stale"),
  duplicate = ProtoField.uint32("dblp_control.duplicate", "Duplicate"),
  bits = ProtoField.bytes("dblp_control.bits", "Delivered chunks"),
}
for _, each in pairs(c) do table.insert(control.fields, each) end

-- Fields of a body in order: name and bytes; 0 bytes is what remains.
local BODIES = {
  [1] = {{"version", 1}, {"nonce", 16}}, [2] = {{"text", 0}}, [3] = {{"text", 0}},
  [4] = {{"round", 4}, {"tolerance", 8}, {"in_clr", 1}}, [5] = {{"round", 4}, {"pass", 4}},
  [6] = {{"round", 4}, {"pass", 4}, {"bits", 0}},
  [7] = {{"round", 4}, {"pass", 4}, {"delivered", 4}, {"sequence", 4}},
  [8] = {{"round", 4}, {"stale", 4}, {"duplicate", 4}, {"bits", 0}}, [9] = {{"text", 0}}, [10] = {},
}

local function message(buffer, pinfo, tree)
  local kind = buffer(4, 1):uint()
  pinfo.cols.protocol = "DBLP"
  pinfo.cols.info:append(" " .. (TYPES[kind] or "unknown"))
  local branch = tree:add(control, buffer())
  branch:add(c.length, buffer(0, 4))
  branch:add(c.type, buffer(4, 1))
  local at = PREFIX
  for _, field in ipairs(BODIES[kind] or {}) do
    local size = field[2] > 0 and field[2] or buffer:len() - at
    if size == 0 or at + size > buffer:len() then break end
    branch:add_packet_field(c[field[1]], buffer(at, size), field[1] == "text" and ENC_UTF_8 or ENC_BIG_ENDIAN)
    at = at + size
  end
  return buffer:len()
end

function control.dissector(buffer, pinfo, tree)
  local size = buffer(0, math.min(4, buffer:len())):uint()
  if buffer:len() >= 4 and (size < 1 or size > CAP) then return 0 end
  pinfo.cols.info = ""
  dissect_tcp_pdus(buffer, tree, PREFIX, function(bytes, _, at) return 4 + bytes(at, 4):uint() end, message)
  return buffer:len()
end

local udp = DissectorTable.get("udp.port")
for port = 52224, 52479 do udp:add(port, data) end
DissectorTable.get("tcp.port"):add_for_decode_as(control)
