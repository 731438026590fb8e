-- Blocks, which have two sides as well, and mutes, which have one.

-- The truth of blocks: makes a user block a target, and follow it no more.
--
-- KEYS: clock, pending, forgotten, users; of the user: blocks, following, following_ids, mutual.
-- ARGV: partition, user, target, limit of blocks.
-- Returns outcome, version of the block, version of the end of the follow (0 if there is none to
-- tell of).
local function block(keys, args)
  local clock, pending, forgotten, users = keys[1], keys[2], keys[3], keys[4]
  local blocks, following, following_ids, mutual = keys[5], keys[6], keys[7], keys[8]
  local partition, user, target = tonumber(args[1]), args[2], args[3]

  if redis.call('SISMEMBER', forgotten, user) == 1 then
    return { FORGOTTEN, 0, 0 }
  end
  local version = redis.call('ZSCORE', blocks, target)
  if version then
    local waiting = redis.call('ZSCORE', pending, waiting_block(user, target))
    local ended = redis.call('ZSCORE', pending, waiting_follow(user, target))
    local outcome = (waiting or ended) and PENDING or UNCHANGED
    return { outcome, tonumber(version), tonumber(ended or 0) }
  end
  if redis.call('ZCARD', blocks) >= tonumber(args[4]) then
    return { LIMIT, 0, 0 }
  end

  local follows = redis.call('SISMEMBER', following_ids, target) == 1
  local issued = issue(clock, partition, 2)
  redis.call('ZADD', blocks, issued[1], target)
  redis.call('ZADD', pending, issued[1], waiting_block(user, target))
  redis.call('SADD', users, user)
  if not follows then
    return { DONE, tonumber(issued[1]), 0 }
  end
  redis.call('ZREM', following, target)
  redis.call('SREM', following_ids, target)
  redis.call('ZREM', mutual, target)
  redis.call('ZADD', pending, issued[2], waiting_follow(user, target))
  return { DONE, tonumber(issued[1]), tonumber(issued[2]) }
end

-- The truth of blocks: makes a user block a target no more.
--
-- KEYS: clock, pending; of the user: blocks.
-- ARGV: partition, user, target, 1 to note an end also of what was not there.
-- Returns outcome, version of the end (0 if NOTHING).
local function unblock(keys, args)
  local clock, pending, blocks = keys[1], keys[2], keys[3]
  local partition, user, target, always = tonumber(args[1]), args[2], args[3], args[4] == '1'
  if not redis.call('ZSCORE', blocks, target) then
    local version = redis.call('ZSCORE', pending, waiting_block(user, target))
    if version then
      return { PENDING, tonumber(version) }
    elseif not always then
      return { NOTHING, 0 }
    end
  end
  local version = issue(clock, partition, 1)[1]
  redis.call('ZREM', blocks, target)
  redis.call('ZADD', pending, version, waiting_block(user, target))
  return { DONE, tonumber(version) }
end

-- The projection of blocks: what the blocked user's side hears. A block ends the blocked user's
-- follow of the blocker, whose truth lies here.
--
-- KEYS: clock, pending, forgotten, users; of the target: blocked_by, unblocked, following,
--       following_ids, mutual.
-- ARGV: partition, target, user who blocks, version, 1 if it blocks and 0 if it does not.
-- Returns outcome, version of the end of the follow (0 if there is none to tell of).
local function project_block(keys, args)
  local clock, pending, forgotten, users = keys[1], keys[2], keys[3], keys[4]
  local blocked_by, unblocked, following, following_ids = keys[5], keys[6], keys[7], keys[8]
  local mutual = keys[9]
  local partition, target, user, version = tonumber(args[1]), args[2], args[3], args[4]

  if args[5] == '1' and redis.call('SISMEMBER', forgotten, target) == 1 then
    return { FORGOTTEN, 0 }
  end
  local seen = redis.call('ZSCORE', blocked_by, user) or redis.call('ZSCORE', unblocked, user)
  if seen and tonumber(version) <= tonumber(seen) then
    local ended = false
    if redis.call('SISMEMBER', following_ids, user) == 0 then
      ended = redis.call('ZSCORE', pending, waiting_follow(target, user))
    end
    return { UNCHANGED, tonumber(ended or 0) }
  end
  if args[5] == '0' then
    redis.call('ZREM', blocked_by, user)
    bury(unblocked, { version, user })
    return { DONE, 0 }
  end

  redis.call('ZADD', blocked_by, version, user)
  redis.call('ZREM', unblocked, user)
  redis.call('SADD', users, target)
  if redis.call('SISMEMBER', following_ids, user) == 0 then
    return { DONE, 0 }
  end
  local ended = issue(clock, partition, 1)[1]
  redis.call('ZREM', following, user)
  redis.call('SREM', following_ids, user)
  redis.call('ZREM', mutual, user)
  redis.call('ZADD', pending, ended, waiting_follow(target, user))
  return { DONE, tonumber(ended) }
end

-- Makes a user mute a target. Nobody else hears of it.
--
-- KEYS: clock, forgotten, users; of the user: mutes.
-- ARGV: partition, user, target, limit of mutes.
-- Returns outcome.
local function mute(keys, args)
  local clock, forgotten, users, mutes = keys[1], keys[2], keys[3], keys[4]
  local partition, user, target, limit = tonumber(args[1]), args[2], args[3], tonumber(args[4])
  if redis.call('SISMEMBER', forgotten, user) == 1 then
    return FORGOTTEN
  elseif redis.call('ZSCORE', mutes, target) then
    return UNCHANGED
  elseif redis.call('ZCARD', mutes) >= limit then
    return LIMIT
  end
  redis.call('ZADD', mutes, issue(clock, partition, 1)[1], target)
  redis.call('SADD', users, user)
  return DONE
end

register('relation_block', block, 'allow-oom')
register('relation_unblock', unblock, 'allow-oom')
register('relation_project_block', project_block, 'allow-oom')
register('relation_mute', mute, 'allow-oom')
