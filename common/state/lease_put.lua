-- Write a worker's lease unless a later incarnation holds it.
-- KEYS: lease, names set. ARGV: record, incarnation, time to live in ms, instance. Returns 0 when refused.
local known = redis.call('GET', KEYS[1])
if known and cjson.decode(known)['incarnation'] > ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SADD', KEYS[2], ARGV[4])
return 1
