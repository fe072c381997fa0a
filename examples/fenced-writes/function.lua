#!lua name=stock
-- The same as record.lua, but as a function that the server stores: FCALL stock_write 1 stock:shoes token pairs
redis.register_function('stock_write', function(keys, args)
    local fence = redis.call('HGET', keys[1], 'fence') or '0'
    if tonumber(args[1]) < tonumber(fence) then
        return redis.error_reply('FENCED the record has seen token ' .. fence)
    end
    redis.call('HSET', keys[1], 'fence', args[1])
    if args[2] then
        redis.call('HSET', keys[1], 'pairs', args[2])
    end
    return redis.call('HGET', keys[1], 'pairs')
end)
