-- Checkpoints: they tell a Redis server that lacks writes of the service, after a failover, a restart
-- or as an older copy.

-- Renews the checkpoint if the server has the replication id of the last one: it has all writes since.
-- A server that was promoted or restarted has another id.
--
-- KEYS: checkpoint. ARGV: the id with which a new checkpoint may begin, if any.
-- Returns the server's id, and the id and the time of the checkpoint, in milliseconds since 2024; 0 if
-- there is none.
local function checkpoint(keys, args)
  local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  local known, time = string.match(redis.call('GET', keys[1]) or '', '^(%x+) (%d+)$')
  if id == known or id == args[1] then
    known, time = id, integer(now_ms())
    redis.call('SET', keys[1], id .. ' ' .. time)
  end
  return { id, known or '', tonumber(time or 0) }
end

register('tl_checkpoint', checkpoint, 'allow-oom')
