-- For a record on the same server as its lock. LOCK.RENEW fails when the tenure is over, so the script ends and writes nothing.
-- No fence is kept.
-- KEYS[1]: the lock. KEYS[2]: the value. ARGV[1]: the owner. ARGV[2]: the token. ARGV[3]: the lease, in milliseconds.
-- ARGV[4]: the value to write, or none to read only.
redis.call('LOCK.RENEW', KEYS[1], ARGV[1], 'TOKEN', ARGV[2], 'PX', ARGV[3])
if ARGV[4] then
    redis.call('SET', KEYS[2], ARGV[4])
end
return redis.call('GET', KEYS[2])
