-- Fan-out streams.

-- Acknowledges and deletes a step, and enqueues the next one if given. Does nothing if the step is
-- already deleted.
--
-- KEYS: stream. ARGV: group, step, next job.
-- Returns whether the step existed.
local function advance(keys, args)
  local stream, group, step = keys[1], args[1], args[2]
  redis.call('XACK', stream, group, step)
  if redis.call('XDEL', stream, step) == 0 then
    return 0
  end
  if args[3] then
    redis.call('XADD', stream, '*', 'job', args[3])
  end
  return 1
end

-- Returns whether the stream has the consumer group.
--
-- KEYS: stream. ARGV: group.
local function has_group(keys, args)
  return redis.pcall('XPENDING', keys[1], args[1]).err and 0 or 1
end

-- Creates the consumer group if needed. It starts at the oldest entry, so jobs added before it are
-- not skipped.
--
-- KEYS: stream. ARGV: group.
local function create_group(keys, args)
  local created = redis.pcall('XGROUP', 'CREATE', keys[1], args[1], '0', 'MKSTREAM')
  if created.err and string.sub(created.err, 1, 9) ~= 'BUSYGROUP' then
    return redis.error_reply(created.err)
  end
end

register('tl_has_group', has_group, 'allow-oom')
register('tl_create_group', create_group, 'allow-oom')
register('tl_advance', advance, 'allow-oom')
