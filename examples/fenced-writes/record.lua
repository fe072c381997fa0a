-- Reads or writes a record. The record is a hash, and its field `fence` is the largest token that has read or written the record.
-- KEYS[1]: the record. ARGV[1]: the token. ARGV[2]: the value to write. Without ARGV[2], the script only reads.
local fence = redis.call('HGET', KEYS[1], 'fence') or '0'
if tonumber(ARGV[1]) < tonumber(fence) then
    return redis.error_reply('FENCED the record has seen token ' .. fence)
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
if ARGV[2] then
    redis.call('HSET', KEYS[1], 'pairs', ARGV[2])
end
return redis.call('HGET', KEYS[1], 'pairs')
