-- Add and remove blocks of one instance. Absent blocks to remove and present ones to add are no error.
-- KEYS: members hash, block set. ARGV: instance, incarnation, hashes to add, hashes to remove (16 bytes each).
-- Returns 0 and writes nothing when this incarnation is not registered (the index was wiped, or a later one is here).
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
local function each(command, hashes)
  for first = 1, #hashes, 16000 do  -- a call takes a few thousand arguments at most
    local members = {}
    for at = first, math.min(first + 15999, #hashes), 16 do
      members[#members + 1] = string.sub(hashes, at, at + 15)
    end
    redis.call(command, KEYS[2], unpack(members))
  end
end
each('SADD', ARGV[3])
each('SREM', ARGV[4])
return 1
