-- Deliveries to the timeline service.

-- How long posts may be delivered again: far longer than replicas of Redis lag behind.
local REDELIVERY_MS = 3600000

-- The most posts of a call.
local REDELIVERED_MAX = 500

-- Records that posts were delivered. Removes up to twice as many that were delivered long ago: after
-- an outage of the timeline service, those from just before it stay for some time.
--
-- KEYS: outbox, delivered. ARGV: posts…
local function delivered(keys, args)
  local now, entries = now_ms(), {}
  for _, id in ipairs(args) do
    entries[#entries + 1] = integer(now * 4096)
    entries[#entries + 1] = id
  end
  call_with('ZREM', keys[1], args)
  add_recent(keys[2], entries, now - REDELIVERY_MS)
end

-- Puts the posts into the outbox again that were delivered since a time, except those that have left
-- Redis or may be evicted: no post of the outbox is evictable.
--
-- KEYS: outbox, delivered, evictable; the prefix of the partition's post keys. ARGV: the time (a stamp).
-- Returns the number of those that were not in the outbox, and the time from which to continue; 0 if
-- there are no more.
local function redeliver(keys, args)
  local outbox, delivered, evictable, prefix = unpack(keys)
  local page = redis.call('ZRANGE', delivered, args[1], '+inf', 'BYSCORE', 'LIMIT', 0,
    REDELIVERED_MAX, 'WITHSCORES')
  local count = 0
  for i = 1, #page, 2 do
    local id = page[i]
    if redis.call('EXISTS', prefix .. id) == 1 and not redis.call('ZSCORE', evictable, id) then
      count = count + redis.call('ZADD', outbox, id, id)
    end
  end
  return { count, #page == 2 * REDELIVERED_MAX and tonumber(page[#page]) or 0 }
end

register('post_delivered', delivered, 'allow-oom')
register('post_redeliver', redeliver, 'allow-oom')
