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

redis.register_function('tl_advance' .. suffix, advance)
