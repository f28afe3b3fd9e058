-- Wireshark dissector for Keiro's overlay (docs/wire-format.md): kinds, indices, paths, numbers.
-- It does not decrypt frames. Install: copy into the personal plugins folder of Wireshark.
local keiro = Proto("keiro", "Keiro overlay")

local kinds = {
  [1] = "Handshake initiation",
  [2] = "Handshake response",
  [3] = "Cookie reply",
  [4] = "Data",
  [5] = "Version reply",
}
local lengths = { [1] = 164, [2] = 120, [3] = 64, [5] = 24 }

local f = {
  kind = ProtoField.uint8("keiro.kind", "Kind", base.DEC, kinds),
  version = ProtoField.uint8("keiro.version", "Version"),
  sender = ProtoField.uint32("keiro.sender", "Sender index", base.HEX),
  receiver = ProtoField.uint32("keiro.receiver", "Receiver index", base.HEX),
  path = ProtoField.uint8("keiro.path", "Path"),
  number = ProtoField.uint32("keiro.number", "Packet number (low 32 bits)"),
  ephemeral = ProtoField.bytes("keiro.ephemeral", "Ephemeral public key"),
  static = ProtoField.bytes("keiro.static", "Static public key (encrypted)"),
  payload = ProtoField.bytes("keiro.payload", "Payload (encrypted)"),
  mac1 = ProtoField.bytes("keiro.mac1", "First MAC"),
  mac2 = ProtoField.bytes("keiro.mac2", "Second MAC"),
  nonce = ProtoField.bytes("keiro.nonce", "Nonce"),
  cookie = ProtoField.bytes("keiro.cookie", "Cookie (encrypted)"),
  frames = ProtoField.bytes("keiro.frames", "Frames (encrypted)"),
  oldest = ProtoField.uint8("keiro.oldest_version", "Oldest version"),
  newest = ProtoField.uint8("keiro.newest_version", "Newest version"),
  mac = ProtoField.bytes("keiro.mac", "MAC"),
  tag = ProtoField.bytes("keiro.tag", "Authentication tag"),
}
keiro.fields = f

local dissect = {
  [1] = function(b, t)
    t:add(f.version, b(1, 1))
    t:add(f.sender, b(4, 4))
    t:add(f.ephemeral, b(8, 32))
    t:add(f.static, b(40, 48))
    t:add(f.payload, b(88, 44))
    t:add(f.mac1, b(132, 16))
    t:add(f.mac2, b(148, 16))
  end,
  [2] = function(b, t)
    t:add(f.sender, b(4, 4))
    t:add(f.receiver, b(8, 4))
    t:add(f.ephemeral, b(12, 32))
    t:add(f.payload, b(44, 44))
    t:add(f.mac1, b(88, 16))
    t:add(f.mac2, b(104, 16))
  end,
  [3] = function(b, t)
    t:add(f.receiver, b(4, 4))
    t:add(f.nonce, b(8, 24))
    t:add(f.cookie, b(32, 32))
  end,
  [4] = function(b, t)
    t:add(f.path, b(1, 1))
    t:add(f.receiver, b(2, 4))
    t:add(f.number, b(6, 4))
    t:add(f.frames, b(10, b:len() - 26))
    t:add(f.tag, b(b:len() - 16, 16))
  end,
  [5] = function(b, t)
    t:add(f.oldest, b(1, 1))
    t:add(f.newest, b(2, 1))
    t:add(f.receiver, b(4, 4))
    t:add(f.mac, b(8, 16))
  end,
}

local function is_keiro(b)
  if b:len() < 24 then return false end
  local kind = b(0, 1):uint()
  if kind == 4 then return b:len() >= 26 end
  return lengths[kind] == b:len()
end

function keiro.dissector(b, pinfo, root)
  if not is_keiro(b) then return 0 end
  local kind = b(0, 1):uint()
  pinfo.cols.protocol = "Keiro"
  local info = kinds[kind]
  if kind == 4 then
    info = string.format("%s, path %d, number %d", info, b(1, 1):uint(), b(6, 4):uint())
  end
  pinfo.cols.info = info
  local tree = root:add(keiro, b(), "Keiro overlay: " .. info)
  tree:add(f.kind, b(0, 1))
  dissect[kind](b, tree)
  return b:len()
end

-- The default port of the examples; "Decode as" serves for others.
DissectorTable.get("udp.port"):add(7600, keiro)
