-- Write a worker's lease unless a later incarnation holds it; a record that cannot be read is nobody's.
-- KEYS: lease, names set. ARGV: record, incarnation, time to live in ms, instance. Returns 0 when refused.
local known = redis.call('GET', KEYS[1])
local is_json, record = pcall(cjson.decode, known or '')
local held = is_json and type(record) == 'table' and record['incarnation']
if type(held) == 'string' and held > ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SADD', KEYS[2], ARGV[4])
return 1
