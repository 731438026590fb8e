-- Streams of what is to be done to home timelines.

-- Ends a step of a job, and adds the step that follows, if there is one; unless somebody else did.
--
-- KEYS: stream. ARGV: group, the step, what follows.
-- Returns whether it did.
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

-- Creates a stream's group, unless it is there. It begins with the oldest entry: what was added before
-- the group is not to be missed.
--
-- KEYS: stream. ARGV: group.
local function listen(keys, args)
  local created = redis.pcall('XGROUP', 'CREATE', keys[1], args[1], '0', 'MKSTREAM')
  if created.err and string.sub(created.err, 1, 9) ~= 'BUSYGROUP' then
    return redis.error_reply(created.err)
  end
end

register('tl_listen', listen, 'allow-oom')
register('tl_advance', advance, 'allow-oom')
