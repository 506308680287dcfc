-- How many leading blocks of a prompt each instance of the index holds.
-- KEYS[1]: members hash. ARGV: prefix of block sets, chain hashes as one string of 16 bytes each.
-- Returns instance, incarnation, blocks, instance, ... without instances that hold none.
--
-- An instance that holds a block holds its whole prefix (eviction is leaf-first), so the end of the prefix is found by
-- bisection: about 12 probes per instance for 2,560 blocks.
local members = redis.call('HGETALL', KEYS[1])
local prefix, hashes = ARGV[1], ARGV[2]
local total = #hashes / 16
local answer = {}
for i = 1, #members, 2 do
  local key = prefix .. members[i] .. ':' .. members[i + 1]
  local low, high = 0, total + 1  -- the first `low` blocks are held, block number `high` is not
  local probe = 1
  while high - low > 1 do
    if redis.call('SISMEMBER', key, string.sub(hashes, probe * 16 - 15, probe * 16)) == 1 then
      low = probe
    else
      high = probe
    end
    if low == 1 and high == total + 1 then
      probe = total  -- after the first, the last: wholly cached prompts are common
    else
      probe = math.floor((low + high) / 2)
    end
  end
  if low > 0 then
    answer[#answer + 1] = members[i]
    answer[#answer + 1] = members[i + 1]
    answer[#answer + 1] = low
  end
end
return answer
