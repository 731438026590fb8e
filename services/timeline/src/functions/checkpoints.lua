-- Checkpoints: they tell a Redis server that lacks writes of the service, after a failover, a restart
-- or as an older copy.

-- Renews the checkpoint if the server has the replication id of the last one: it has all writes since.
-- A server that was promoted or restarted has another id, and so has one to which the first replica
-- connects.
--
-- KEYS: checkpoint. ARGV: the id with which a new checkpoint may begin, if any; the time since when
-- the server lacks writes of earlier ones. Times are stamps.
-- Returns the server's id; the id and the time of the checkpoint, and the time with which it began; 0 if
-- there is none.
local function checkpoint(keys, args)
  local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  local known = redis.call('GET', keys[1]) or ''
  local known_id, time, since = string.match(known, '^(%x+) (%d+) (%d+)$')
  if id ~= known_id and id == args[1] then
    known_id, since = id, args[2]
  end
  if id == known_id then
    time = integer(now_ms() * 4096)
    redis.call('SET', keys[1], table.concat({ id, time, since }, ' '))
  end
  return { id, known_id or '', tonumber(time or 0), tonumber(since or 0) }
end

register('tl_checkpoint', checkpoint, 'allow-oom')
