-- Reactions to a post: likes and comments.

-- Likes a post. The time is a stamp that need not be unique, so it does not use the partition's
-- clock: thousands of likes a second would drive that clock ahead.
--
-- KEYS: of the post: post, likes. ARGV: post, account.
-- Returns the outcome (DONE, UNCHANGED, NOT_FOUND), since when, and the number of likes.
local function like(keys, args)
  local post, likes = keys[1], keys[2]
  local account = args[2]
  if redis.call('EXISTS', post) == 0 then
    return { NOT_FOUND, 0, 0 }
  end
  local since = redis.call('ZSCORE', likes, account)
  if since then
    return { UNCHANGED, tonumber(since), tonumber(redis.call('HGET', post, 'l') or 0) }
  end
  local now = now_stamp(args[1])
  append_change('like', args[1], account, now)
  redis.call('ZADD', likes, now, account)
  return { DONE, tonumber(now), count(post, 'l', 1) }
end

-- Unlikes a post.
--
-- KEYS: of the post: post, likes. ARGV: post, account.
-- Returns the outcome (DONE, UNCHANGED, NOT_FOUND), and the number of likes.
local function unlike(keys, args)
  local post, likes = keys[1], keys[2]
  if redis.call('EXISTS', post) == 0 then
    return { NOT_FOUND, 0 }
  end
  local since = redis.call('ZSCORE', likes, args[2])
  -- Also ends a like that was recorded and then lost.
  append_change('unlike', args[1], args[2], stamp_of_end(args[1], since or 0))
  if since then
    redis.call('ZREM', likes, args[2])
    return { DONE, count(post, 'l', -1) }
  end
  return { UNCHANGED, tonumber(redis.call('HGET', post, 'l') or 0) }
end

-- Removes the likes of accounts that are being erased.
--
-- KEYS: of the post: post, likes. ARGV: post, accounts… Returns how many were removed.
local function erase_likes(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    return 0
  end
  local accounts, liked = rest(args, 2), {}
  for i, since in ipairs(call_with('ZMSCORE', keys[2], accounts)) do
    if since then
      append_change('unlike', args[1], accounts[i], stamp_of_end(args[1], since))
      liked[#liked + 1] = accounts[i]
    end
  end
  if #liked > 0 then
    call_with('ZREM', keys[2], liked)
    count(keys[1], 'l', -#liked)
  end
  return #liked
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
-- KEYS: clock, comment_request; of the post: post, comments, comment_bodies.
-- ARGV: issuer, post, content, the comment that it replies to (0 for none), lifetime of the
--       idempotency key in seconds, author, the request's id.
-- Returns the outcome and: the id (DONE; UNCHANGED: of the comment that the request made before),
-- or what is missing (NOT_FOUND: 0 the post, 1 the comment that it replies to).
local function add_comment(keys, args)
  local clock, request, post, comments, bodies = unpack(keys)
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
  append_change('comment', args[2], args[6], args[7], id)
  redis.call('HSET', bodies, id, content)
  redis.call('ZADD', comments, id, id)
  count(post, 'c', 1)
  redis.call('SET', request, id, 'EX', args[5])
  return { DONE, tonumber(id) }
end

-- Deletes a comment.
--
-- KEYS: clock; of the post: post, comments, comment_bodies.
-- ARGV: issuer, post, comment. Returns DONE or NOT_FOUND.
local function delete_comment(keys, args)
  local clock, post, comments, bodies = unpack(keys)
  local issuer, id = tonumber(args[1]), args[3]
  if not redis.call('ZSCORE', comments, id) then
    return NOT_FOUND
  end
  append_change('uncomment', args[2], id, issue(clock, issuer, 1)[1])
  redis.call('ZREM', comments, id)
  redis.call('HDEL', bodies, id)
  count(post, 'c', -1)
  return DONE
end

register_change('post_like', like)
register_change('post_unlike', unlike, 'allow-oom')
register_change('post_erase_likes', erase_likes, 'allow-oom')
register('post_admit_comment', admit_comment)
register_change('post_add_comment', add_comment)
register_change('post_delete_comment', delete_comment, 'allow-oom')
