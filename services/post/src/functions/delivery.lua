-- Deliveries to the timeline service.

-- How long posts may be delivered again: far longer than replicas of Redis lag behind.
local REDELIVERY_MS = 3600000

-- Records that posts were delivered. Removes up to twice as many that were delivered long ago: after
-- an outage of the timeline service, those from just before it stay for some time.
--
-- KEYS: outbox, delivered. ARGV: posts…
local function delivered(keys, args)
  local now = now_ms()
  call_with('ZREM', keys[1], args)
  for _, id in ipairs(args) do
    redis.call('ZADD', keys[2], integer(now * 4096), id)
  end
  local cutoff = integer((now - REDELIVERY_MS) * 4096)
  local old = redis.call('ZRANGE', keys[2], '-inf', cutoff, 'BYSCORE', 'LIMIT', 0, 2 * #args)
  if #old > 0 then
    call_with('ZREM', keys[2], old)
  end
end

-- Puts the posts into the outbox again that were delivered since a time, unless they have left Redis.
--
-- KEYS: outbox, delivered; the prefix of the partition's post keys. ARGV: the time (a stamp).
-- Returns their number.
local function redeliver(keys, args)
  local count = 0
  for _, id in ipairs(redis.call('ZRANGE', keys[2], args[1], '+inf', 'BYSCORE')) do
    if redis.call('EXISTS', keys[3] .. id) == 1 then
      redis.call('ZADD', keys[1], id, id)
      count = count + 1
    end
  end
  return count
end

register('post_delivered', delivered, 'allow-oom')
register('post_redeliver', redeliver, 'allow-oom')
