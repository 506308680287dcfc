-- Write a document of a higher version. KEYS[1]: the hash. ARGV: version, document.
-- Returns whether it was written, and the version now stored.
local known = tonumber(redis.call('HGET', KEYS[1], 'version') or '-1')
local version = tonumber(ARGV[1])
if version <= known then
  return {0, known}
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2])
return {1, version}
