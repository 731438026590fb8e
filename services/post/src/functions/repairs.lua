-- Repairs of violations. Each function compares the current state first.

-- Sets a post's counts to the lengths of its lists. Deletes the lists of a missing post.
--
-- KEYS: of the post: post, likes, comments, comment_bodies, reposts.
-- Returns 1 if something was wrong, else 0.
local function recount(keys)
  local post, likes, comments, bodies, reposts = unpack(keys)
  if redis.call('EXISTS', post) == 0 then
    return redis.call('UNLINK', likes, comments, bodies, reposts) > 0 and 1 or 0
  end
  local differs = 0
  for field, list in pairs({ l = likes, c = comments, r = reposts }) do
    local length = redis.call('ZCARD', list)
    if tonumber(redis.call('HGET', post, field) or 0) ~= length then
      redis.call('HDEL', post, 'm', field)
      if length > 0 then
        redis.call('HSET', post, field, length)
      end
      differs = 1
    end
  end
  return differs
end

-- Restores the body of a comment, or deletes the comment if there is none; deletes a body without a
-- comment.
--
-- KEYS: clock; of the post: post, comments, comment_bodies.
-- ARGV: issuer, post, comment, content ('' if there is none).
-- Returns 1 if something was wrong, else 0.
local function repair_comment(keys, args)
  local post, comments, bodies, id = keys[2], keys[3], keys[4], args[3]
  local is_listed = redis.call('ZSCORE', comments, id)
  local has_content = redis.call('HEXISTS', bodies, id) == 1
  if is_listed and not has_content then
    if args[4] == '' then
      delete_comment(keys, args)
    else
      redis.call('HSET', bodies, id, args[4])
      redis.call('HDEL', post, 'm')
    end
    return 1
  elseif has_content and not is_listed then
    redis.call('HDEL', bodies, id)
    redis.call('HDEL', post, 'm')
    return 1
  end
  return 0
end

-- Adds an existing repost to a post's list, even if there is a tombstone.
--
-- KEYS: of the post: post, reposts, repost_tombstones. ARGV: post, repost.
-- Returns the outcome: DONE, UNCHANGED, NOT_FOUND.
local function relist(keys, args)
  local post, reposts, repost_tombstones = keys[1], keys[2], keys[3]
  if redis.call('EXISTS', post) == 0 then
    return NOT_FOUND
  end
  append_change('repost', args[1], args[2])
  redis.call('ZREM', repost_tombstones, args[2])
  if redis.call('ZADD', reposts, 'NX', args[2], args[2]) == 0 then
    return UNCHANGED
  end
  count(post, 'r', 1)
  return DONE
end

register('post_recount', recount, 'allow-oom')
register_change('post_repair_comment', repair_comment, 'allow-oom')
register_change('post_relist', relist, 'allow-oom')
