-- The archive: what it may not know, what leaves Redis for it, and what comes back.
--
-- `unarchived` has, by stamp: p<post>, x<post>: a post that was made, that ended; c<post>:<comment>,
-- d<post>:<comment>: likewise a comment. And, for good, the member - with the score 0, which says
-- that there is an archive: without it, nothing is noted.

-- Lets one of several have something for a while, and again as long as it asks in time.
--
-- KEYS: lease. ARGV: whose, milliseconds. Returns 1 if it has it now.
local function lease(keys, args)
  local holder = redis.call('GET', keys[1])
  if holder and holder ~= args[1] then
    return 0
  end
  redis.call('SET', keys[1], args[1], 'PX', args[2])
  return 1
end

-- Has somebody keep such a thing for longer, or shorter, if they still have it.
--
-- KEYS: lease. ARGV: whose, milliseconds. Returns 1 if they have.
local function keep(keys, args)
  if redis.call('GET', keys[1]) ~= args[1] then
    return 0
  end
  return redis.call('PEXPIRE', keys[1], args[2])
end

-- Takes posts off their author's list, the oldest first, where the archive knows them; they stay in
-- Redis until they are evicted. Ends at the first that has still to be told to somebody, or is not
-- the oldest any more.
--
-- KEYS: unarchived, outbox, retired, horizon; the author's posts. ARGV: posts…, oldest first.
-- Returns how many were taken off.
local function retire(keys, args)
  local unarchived, outbox, retired, horizon, posts = keys[1], keys[2], keys[3], keys[4], keys[5]
  local oldest = redis.call('ZRANGE', posts, 0, #args)
  local at = oldest[1] == '0' and 1 or 0
  local count = 0
  for i, id in ipairs(args) do
    if oldest[at + i] ~= id or redis.call('ZSCORE', unarchived, 'p' .. id)
      or redis.call('ZSCORE', outbox, id) then
      break
    end
    redis.call('ZREM', posts, id)
    redis.call('ZADD', retired, 0, id)
    count = i
  end
  if count > 0 then
    add_unlisted(posts, count)
    if tonumber(redis.call('GET', horizon) or 0) < tonumber(args[count]) then
      redis.call('SET', horizon, args[count])
    end
  end
  return count
end

-- Says how many of an author's posts are not on their list, unless one came to be or ended since they
-- began to be counted.
--
-- KEYS: the author's posts. ARGV: the score that says that they are being counted, how many.
-- Returns 1 if it says so now.
local function count_unlisted(keys, args)
  local score = redis.call('ZSCORE', keys[1], '0')
  if not score or tonumber(score) ~= tonumber(args[1]) then
    return 0
  end
  redis.call('ZADD', keys[1], integer(tonumber(args[2]) + 1), '0')
  return 1
end

-- Marks a post that is to be evicted, before it is read: whoever changes what it gathered wipes the
-- mark. Not where a repost of it ended so lately that word of the repost may be on its way: it would
-- be put on the list of a post that came back.
--
-- KEYS: clock, retired; of the post: post, unreposted. ARGV: issuer, post.
-- Returns the outcome (DONE, UNCHANGED, NOT_FOUND) and the mark.
local function mark(keys, args)
  local clock, retired, post, unreposted = keys[1], keys[2], keys[3], keys[4]
  if redis.call('EXISTS', post) == 0 then
    redis.call('ZREM', retired, args[2])
    return { NOT_FOUND, 0 }
  end
  if may_be_told(unreposted) then
    return { UNCHANGED, 0 }
  end
  local stamp = issue(clock, tonumber(args[1]), 1)[1]
  redis.call('HSET', post, 'm', stamp)
  return { DONE, tonumber(stamp) }
end

-- Returns whether posts must not leave, since accounts are being erased: `erasing` says of the last
-- run which one it was and, behind a colon, what it keeps posts from; 0 for nothing.
local function is_fenced(erasing)
  local fence = redis.call('GET', erasing)
  return fence and string.sub(fence, -2) ~= ':0'
end

-- Takes a post out of Redis that the archive has as it was when it was marked.
--
-- KEYS: retired; of the post: post, likes, comments, comment_bodies, reposts, unreposted; erasing.
-- ARGV: post, mark. Returns the outcome: DONE; UNCHANGED: it was changed since, or no post may leave
-- now (see erasure.rs), and it stays.
local function evict(keys, args)
  local retired, post = keys[1], keys[2]
  if redis.call('HGET', post, 'm') ~= args[2] or may_be_told(keys[7])
    or is_fenced(keys[8]) then
    return UNCHANGED
  end
  call_with('UNLINK', post, { unpack(keys, 3, 7) })
  redis.call('ZREM', retired, args[1])
  return DONE
end

-- Begins to bring a post back: lets one do so at a time, and clears away what another one left. Not
-- where it is here: it may have changed, and leave again, before what the archive has now is here.
-- And not where it ended, which the archive may not know; if it ends from now on, the lease does.
--
-- KEYS: restoring, unarchived, post; restored… ARGV: whose, milliseconds, post. Returns 1 if it may
-- begin.
local function begin_restore(keys, args)
  if redis.call('EXISTS', keys[3]) == 1 or redis.call('ZSCORE', keys[2], 'x' .. args[3])
    or lease(keys, args) == 0 then
    return 0
  end
  call_with('UNLINK', keys[4], rest(keys, 5))
  return 1
end

-- Lets an account have a post brought back, or makes it wait: in the account's own partition.
--
-- KEYS: restore_pace. ARGV: limit per minute. Returns the milliseconds to wait; 0 if it may.
local function admit_restore(keys, args)
  return admit(keys[1], tonumber(args[1]))
end

-- Puts aside a part of what a post had gathered, for four times as long as the lease, which each part
-- prolongs.
--
-- KEYS: restoring, the list of that kind. ARGV: whose, milliseconds, the command that adds to such
-- lists (ZADD, HSET), its arguments… Returns 1 if it is still whose it was.
local function stage(keys, args)
  if keep(keys, args) == 0 then
    return 0
  end
  call_with(args[3], keys[2], rest(args, 4))
  redis.call('PEXPIRE', keys[2], 4 * args[2])
  return 1
end

-- Brings a post back, with what was put aside.
--
-- KEYS: restoring, unarchived, retired; of the post: post; likes, comments, comment_bodies, reposts;
--       and where those were put aside, in the same order; erasing.
-- ARGV: whose, post, the score that says until when it stays, content, likes, comments, reposts,
--       what `erasing` was before the archive was read.
-- Returns the outcome: DONE; UNCHANGED: it is there; NOT_FOUND: it was deleted; OPEN: it took too
-- long, or something may have been erased since it was read, and has to begin again.
local function restore(keys, args)
  local restoring, unarchived, retired, post = keys[1], keys[2], keys[3], keys[4]
  if redis.call('GET', restoring) ~= args[1] then
    return OPEN
  end
  redis.call('UNLINK', restoring)
  if (redis.call('GET', keys[13]) or '') ~= args[8] then
    return OPEN
  end
  if redis.call('ZSCORE', unarchived, 'x' .. args[2]) then
    return NOT_FOUND
  end
  if redis.call('EXISTS', post) == 1 then
    return UNCHANGED
  end
  -- Nothing is written before it is known that all of it is there.
  local sizes = { tonumber(args[5]), tonumber(args[6]), tonumber(args[6]), tonumber(args[7]) }
  for i, size in ipairs(sizes) do
    if redis.call(i == 3 and 'HLEN' or 'ZCARD', keys[8 + i]) ~= size then
      return OPEN
    end
  end
  for i, size in ipairs(sizes) do
    if size > 0 then
      redis.call('PERSIST', keys[8 + i])
      redis.call('RENAME', keys[8 + i], keys[4 + i])
    end
  end
  redis.call('HSET', post, 'b', args[4])
  for i, field in ipairs({ 'l', 'c', 'r' }) do
    if args[4 + i] ~= '0' then
      redis.call('HSET', post, field, args[4 + i])
    end
  end
  redis.call('ZADD', retired, args[3], args[2])
  return DONE
end

-- Adds an entry to a list of what waits, or changes its score. What the archive and the mover need to
-- go on at `maxmemory`.
--
-- KEYS: the list. ARGV: NX or XX, as for ZADD; score, member.
local function enlist(keys, args)
  redis.call('ZADD', keys[1], args[1], args[2], args[3])
end

-- Writes a string: how far an erasure is, and what it keeps posts from. Erasing frees memory, so it
-- must go on at `maxmemory`.
--
-- KEYS: the string. ARGV: its value.
local function put(keys, args)
  redis.call('SET', keys[1], args[1])
end

register('post_enlist', enlist, 'allow-oom')
register('post_put', put, 'allow-oom')
register('post_lease', lease, 'allow-oom')
register('post_keep', keep, 'allow-oom')
register('post_retire', retire, 'allow-oom')
register('post_count_unlisted', count_unlisted, 'allow-oom')
register('post_mark', mark, 'allow-oom')
register('post_evict', evict, 'allow-oom')
register('post_begin_restore', begin_restore)
register('post_admit_restore', admit_restore)
register('post_stage', stage)
register('post_restore', restore)
