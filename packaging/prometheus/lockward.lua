-- Returns every number of INFO lock, for prometheus-redis-exporter --script.
local values = {}
for field, value in string.gmatch(redis.call('INFO', 'lock'), '(lock_[%w_]+):([^\r\n]+)') do
    if not string.find(value, '=') then
        table.insert(values, field)
        table.insert(values, value)
    end
    for name, number in string.gmatch(value, '([^,=]+)=(%d+)') do
        table.insert(values, field .. '_' .. string.gsub(name, '%.', '_'))
        table.insert(values, number)
    end
end
return values
