-- Make an incarnation the one whose blocks of an instance are in the index; drop those of an earlier one.
-- KEYS[1]: members hash. ARGV: prefix of block sets, instance, incarnation. Returns 0 when a later one is registered.
local known = redis.call('HGET', KEYS[1], ARGV[2])
if known then
  if known > ARGV[3] then
    return 0
  end
  if known < ARGV[3] then
    redis.call('UNLINK', ARGV[1] .. ARGV[2] .. ':' .. known)
  end
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 1
