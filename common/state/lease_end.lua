-- End a worker's lease if this incarnation holds it. KEYS: lease, names set. ARGV: incarnation, instance.
local known = redis.call('GET', KEYS[1])
local is_json, record = pcall(cjson.decode, known or '')
if known and not (is_json and type(record) == 'table' and record['incarnation'] == ARGV[1]) then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[2])
return 1
