-- Forget an incarnation of an instance. KEYS: members hash, its block set. ARGV: instance, incarnation.
redis.call('UNLINK', KEYS[2])
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
