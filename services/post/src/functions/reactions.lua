-- Reactions to a post: likes and comments.

-- Likes a post. The time is a stamp that need not be unique, so it does not use the partition's
-- clock: thousands of likes a second would drive that clock ahead.
--
-- KEYS: of the post: post, likes. ARGV: partition, account.
-- Returns the outcome (DONE, UNCHANGED, NOT_FOUND), since when, and the number of likes.
local function like(keys, args)
  local post, likes = keys[1], keys[2]
  local partition, account = tonumber(args[1]), args[2]
  if redis.call('EXISTS', post) == 0 then
    return { NOT_FOUND, 0, 0 }
  end
  local since = redis.call('ZSCORE', likes, account)
  if since then
    return { UNCHANGED, tonumber(since), tonumber(redis.call('HGET', post, 'l') or 0) }
  end
  local now = stamp_at(now_ticks(), partition)
  redis.call('ZADD', likes, integer(now), account)
  return { DONE, now, count(post, 'l', 1) }
end

-- Unlikes a post.
--
-- KEYS: of the post: post, likes. ARGV: account.
-- Returns the outcome (DONE, UNCHANGED, NOT_FOUND), and the number of likes.
local function unlike(keys, args)
  local post, likes = keys[1], keys[2]
  if redis.call('ZREM', likes, args[1]) == 1 then
    return { DONE, count(post, 'l', -1) }
  end
  if redis.call('EXISTS', post) == 0 then
    return { NOT_FOUND, 0 }
  end
  return { UNCHANGED, tonumber(redis.call('HGET', post, 'l') or 0) }
end

-- Removes the likes of accounts that are being erased.
--
-- KEYS: of the post: post, likes. ARGV: accounts… Returns how many were removed.
local function erase_likes(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    return 0
  end
  local erased = call_with('ZREM', keys[2], args)
  if erased > 0 then
    count(keys[1], 'l', -erased)
  end
  return erased
end

-- Admits a comment under the author's rate limit, in the author's partition, before it is added in
-- the post's. Idempotent: a repeated request is admitted again, to the same post, unless the
-- account is deleted.
--
-- KEYS: comment_admission, comment_rate, forgotten.
-- ARGV: account, post, limit per minute, lifetime of the idempotency key in seconds.
-- Returns the outcome (DONE; UNCHANGED, NOT_FOUND: admitted before, to this or another post;
-- THROTTLED, ACCOUNT_DELETED) and the milliseconds to wait.
local function admit_comment(keys, args)
  local admission, rate, forgotten = keys[1], keys[2], keys[3]
  if redis.call('SISMEMBER', forgotten, args[1]) == 1 then
    return { ACCOUNT_DELETED, 0 }
  end
  local admitted = redis.call('GET', admission)
  if admitted then
    return { admitted == args[2] and UNCHANGED or NOT_FOUND, 0 }
  end
  local wait = check_rate(rate, tonumber(args[3]))
  if wait > 0 then
    return { THROTTLED, wait }
  end
  redis.call('SET', admission, args[2], 'EX', args[4])
  return { DONE, 0 }
end

-- Adds a comment to a post.
--
-- KEYS: clock, comment_request, archive_outbox; of the post: post, comments, comment_bodies.
-- ARGV: issuer, post, content, the comment that it replies to (0 for none), lifetime of the
--       idempotency key in seconds.
-- Returns the outcome and: the id (DONE; UNCHANGED: of the comment that the request made before),
-- or what is missing (NOT_FOUND: 0 the post, 1 the comment that it replies to).
local function add_comment(keys, args)
  local clock, request, archive_outbox = keys[1], keys[2], keys[3]
  local post, comments, bodies = keys[4], keys[5], keys[6]
  local issuer, content, in_reply_to = tonumber(args[1]), args[3], args[4]
  local known = redis.call('GET', request)
  if known then
    return { UNCHANGED, tonumber(known) }
  end
  if redis.call('EXISTS', post) == 0 then
    return { NOT_FOUND, 0 }
  end
  if in_reply_to ~= '0' and redis.call('HEXISTS', bodies, in_reply_to) == 0 then
    return { NOT_FOUND, 1 }
  end
  local id = issue(clock, issuer, 1)[1]
  redis.call('HSET', bodies, id, content)
  redis.call('ZADD', comments, id, id)
  count(post, 'c', 1)
  enqueue(archive_outbox, id, 'c' .. args[2] .. ':' .. id)
  redis.call('SET', request, id, 'EX', args[5])
  return { DONE, tonumber(id) }
end

-- Deletes a comment.
--
-- KEYS: clock, archive_outbox; of the post: post, comments, comment_bodies.
-- ARGV: issuer, post, comment. Returns DONE or NOT_FOUND.
local function delete_comment(keys, args)
  local clock, archive_outbox, post, comments, bodies = keys[1], keys[2], keys[3], keys[4], keys[5]
  local issuer, id = tonumber(args[1]), args[3]
  if not redis.call('ZSCORE', comments, id) then
    return NOT_FOUND
  end
  local version = issue(clock, issuer, 1)[1]
  redis.call('ZREM', comments, id)
  redis.call('HDEL', bodies, id)
  count(post, 'c', -1)
  enqueue(archive_outbox, version, 'd' .. args[2] .. ':' .. id)
  return DONE
end

register('post_like', like)
register('post_unlike', unlike, 'allow-oom')
register('post_erase_likes', erase_likes, 'allow-oom')
register('post_admit_comment', admit_comment)
register('post_add_comment', add_comment)
register('post_delete_comment', delete_comment, 'allow-oom')
