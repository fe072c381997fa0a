-- Reads or writes a plain string. Its fence is in a second key. In a cluster both keys must have the same slot, such as
-- {stock:shoes} and {stock:shoes}:fence. Both keys must have the same TTL, or none.
-- KEYS[1]: the value. KEYS[2]: the fence. ARGV[1]: the token. ARGV[2]: the value to write. Without ARGV[2], the script only reads.
local fence = redis.call('GET', KEYS[2]) or '0'
if tonumber(ARGV[1]) < tonumber(fence) then
    return redis.error_reply('FENCED the record has seen token ' .. fence)
end
redis.call('SET', KEYS[2], ARGV[1])
if ARGV[2] then
    redis.call('SET', KEYS[1], ARGV[2])
end
return redis.call('GET', KEYS[1])
